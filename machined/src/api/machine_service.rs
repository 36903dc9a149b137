//! `machine.MachineService`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use instar_api::common::{ContainerDriver, Data};
use instar_api::machine as wire;
use instar_api::machine::machine_service_server::MachineService;
use instar_api::machine::reboot_request::Mode;
use instar_pki::Role;
use tonic::{Request, Response, Status};

use super::caller::Holder;
use super::caller_credentials::CallerCredentials;
use super::changing::busy;
use super::{
    apply_config, blocking, caller, changing, container_facts, containers, deadline, events, files,
    image_operations, images, logs, netstat, packet_capture, reset, service_list, streamed,
    upgrade_request,
};
use crate::base::error_chain::chain;
use crate::config_source::Secrets;
use crate::disk::STATE;
use crate::intent::{NewClient, NewClientError, client_configuration};
use crate::machine::Machine;
use crate::meta::{Meta, MetaError};
use crate::operation_lock::Operation;
use crate::sequences::{self, Urgency};
use crate::services::ControlError;
use crate::statistics;

/// The service, over the machine.
pub(super) struct MachineApi {
    machine: Arc<Machine>,
    meta: Arc<Meta>,
}

impl MachineApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        MachineApi {
            machine,
            meta: Arc::new(Meta::on(Path::new(STATE))),
        }
    }

    async fn change_meta(
        &self,
        key: u32,
        (holder, credentials): (Holder, Option<CallerCredentials>),
        change: impl FnOnce(&Meta, u8) -> Result<(), MetaError> + Send + 'static,
    ) -> Result<(), Status> {
        let key = u8::try_from(key)
            .map_err(|_| Status::invalid_argument(format!("{key} is no key: they are 0 to 255")))?;
        if self.machine.disk.status().borrow().state.is_none() {
            return Err(meta_status(MetaError::NoState));
        }
        let meta = self.meta.clone();
        changing::alone(
            &self.machine,
            credentials,
            Operation::MetaChange,
            async move {
                blocking::once(&holder, move || Ok(change(&meta, key)))
                    .await?
                    .map_err(meta_status)
            },
        )
        .await
    }

    async fn containers_of(
        &self,
        holder: &Holder,
        namespace: &str,
        driver: ContainerDriver,
    ) -> Result<Vec<container_facts::ContainerFacts>, Status> {
        if !containers::are_meant(namespace, driver) {
            return Ok(Vec::new());
        }
        let machine = self.machine.clone();
        blocking::once(holder, move || container_facts::containers(&machine)).await
    }

    async fn restart_service(
        &self,
        id: &str,
        credentials: Option<CallerCredentials>,
    ) -> Result<(), Status> {
        let (machine, id) = (self.machine.clone(), id.to_owned());
        changing::to_its_end(async move {
            let services = machine.services.clone();
            // While it runs: what cannot be had does not end it, and is in nobody's way.
            services.renew(&id).await.map_err(control_status)?;
            changing::alone(
                &machine,
                credentials,
                Operation::ServiceRestart,
                async move { services.restart(&id).await.map_err(control_status) },
            )
            .await
        })
        .await
    }
}

fn control_status(error: ControlError) -> Status {
    let text = chain(&error);
    match error {
        ControlError::Unknown(_) => Status::not_found(text),
        ControlError::NotControllable { .. }
        | ControlError::Held { .. }
        | ControlError::NotRenewed { .. } => Status::failed_precondition(text),
        ControlError::NotStopped { .. } => Status::aborted(text),
    }
}

fn internal(error: anyhow::Error) -> Status {
    Status::internal(format!("{error:#}"))
}

fn meta_status(error: MetaError) -> Status {
    let text = chain(&error);
    match error {
        MetaError::NoState => Status::failed_precondition(text),
        MetaError::Unknown(_) => Status::not_found(text),
        MetaError::Full => Status::resource_exhausted(text),
        MetaError::Io { .. } => Status::internal(text),
    }
}

fn new_client_status(error: NewClientError) -> Status {
    let text = chain(&error);
    match error {
        NewClientError::NoRole | NewClientError::UnknownRole(_) | NewClientError::Lifetime => {
            Status::invalid_argument(text)
        }
        NewClientError::NoKey => Status::failed_precondition(text),
        NewClientError::Authority(_) | NewClientError::Write(_) => Status::internal(text),
    }
}

/// The answer to what belongs to Kubernetes.
fn no_kubernetes<T>(what: &str) -> Result<T, Status> {
    Err(Status::unimplemented(format!(
        "{what}: this node runs no Kubernetes"
    )))
}

#[tonic::async_trait]
impl MachineService for MachineApi {
    async fn version(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::VersionResponse>, Status> {
        let running = &self.machine.running;
        let message = wire::Version {
            metadata: caller::reply_metadata(request.metadata()),
            version: Some(wire::VersionInfo {
                tag: running.version.clone(),
                os: "linux".to_owned(),
                arch: running.architecture.clone(),
                ..Default::default()
            }),
            platform: Some(wire::PlatformInfo {
                name: "metal".to_owned(),
                mode: "metal".to_owned(),
            }),
            features: Some(wire::FeaturesInfo {
                rbac: self.machine.config().is_some(),
            }),
        };
        Ok(Response::new(wire::VersionResponse {
            messages: vec![message],
        }))
    }

    async fn service_list(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::ServiceListResponse>, Status> {
        let message = wire::ServiceList {
            metadata: caller::reply_metadata(request.metadata()),
            services: self
                .machine
                .services
                .list()
                .iter()
                .map(service_list::row)
                .collect(),
        };
        Ok(Response::new(wire::ServiceListResponse {
            messages: vec![message],
        }))
    }

    async fn service_start(
        &self,
        request: Request<wire::ServiceStartRequest>,
    ) -> Result<Response<wire::ServiceStartResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let id = &request.get_ref().id;
        let (services, name) = (self.machine.services.clone(), id.clone());
        changing::alone(
            &self.machine,
            CallerCredentials::of(&request),
            Operation::ServiceStart,
            async move { services.start(&name).map_err(control_status) },
        )
        .await?;
        let message = wire::ServiceStart {
            metadata,
            resp: format!("Service {id:?} started"),
        };
        Ok(Response::new(wire::ServiceStartResponse {
            messages: vec![message],
        }))
    }

    async fn service_stop(
        &self,
        request: Request<wire::ServiceStopRequest>,
    ) -> Result<Response<wire::ServiceStopResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let id = &request.get_ref().id;
        let (services, name) = (self.machine.services.clone(), id.clone());
        changing::alone(
            &self.machine,
            CallerCredentials::of(&request),
            Operation::ServiceStop,
            async move { services.stop(&name).await.map_err(control_status) },
        )
        .await?;
        let message = wire::ServiceStop {
            metadata,
            resp: format!("Service {id:?} stopped"),
        };
        Ok(Response::new(wire::ServiceStopResponse {
            messages: vec![message],
        }))
    }

    async fn service_restart(
        &self,
        request: Request<wire::ServiceRestartRequest>,
    ) -> Result<Response<wire::ServiceRestartResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let id = &request.get_ref().id;
        self.restart_service(id, CallerCredentials::of(&request))
            .await?;
        let message = wire::ServiceRestart {
            metadata,
            resp: format!("Service {id:?} restarted"),
        };
        Ok(Response::new(wire::ServiceRestartResponse {
            messages: vec![message],
        }))
    }

    async fn logs(
        &self,
        request: Request<wire::LogsRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<Data>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let holder = Holder::of(&request);
        let request = request.get_ref();
        let log = self.machine.log_of(&request.id).ok_or_else(|| {
            Status::not_found(format!(
                "there is no service {:?}; the list of services has the names",
                request.id
            ))
        })?;
        let disk = self.machine.log_disk.clone();
        Ok(streamed(logs::service(
            &log, disk, request, holder, metadata,
        )))
    }

    async fn logs_containers(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::LogsContainersResponse>, Status> {
        let message = wire::LogsContainer {
            metadata: caller::reply_metadata(request.metadata()),
            ids: self.machine.log_names(),
        };
        Ok(Response::new(wire::LogsContainersResponse {
            messages: vec![message],
        }))
    }

    async fn dmesg(
        &self,
        request: Request<wire::DmesgRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<Data>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let roles = caller::roles(request.metadata());
        let secrets = Secrets::of(&roles);
        Ok(streamed(logs::kernel(
            request.get_ref(),
            secrets,
            metadata,
        )?))
    }

    async fn events(
        &self,
        request: Request<wire::EventsRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<wire::Event>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        Ok(streamed(events::stream(
            &self.machine,
            request.into_inner(),
            metadata,
        )?))
    }

    async fn read(
        &self,
        request: Request<wire::ReadRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<Data>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let holder = Holder::of(&request);
        Ok(streamed(
            files::read(request.into_inner().path, holder, metadata).await?,
        ))
    }

    async fn memory(&self, request: Request<()>) -> Result<Response<wire::MemoryResponse>, Status> {
        let message = wire::Memory {
            metadata: caller::reply_metadata(request.metadata()),
            meminfo: Some(statistics::memory().map_err(internal)?),
        };
        Ok(Response::new(wire::MemoryResponse {
            messages: vec![message],
        }))
    }

    async fn hostname(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::HostnameResponse>, Status> {
        let message = wire::Hostname {
            metadata: caller::reply_metadata(request.metadata()),
            hostname: self.machine.hostname(),
        };
        Ok(Response::new(wire::HostnameResponse {
            messages: vec![message],
        }))
    }

    async fn apply_configuration(
        &self,
        request: Request<wire::ApplyConfigurationRequest>,
    ) -> Result<Response<wire::ApplyConfigurationResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        tracing::info!("apply-config by {}", caller::peer(&request));
        // apid judged when the call began.
        if self.machine.config().is_none()
            && !self.machine.is_open()
            && !caller::roles(request.metadata()).contains(&Role::Admin)
        {
            return Err(Status::permission_denied("not authorized"));
        }
        let is_talosctl = caller::is_talosctl(&request);
        let (machine, request) = (self.machine.clone(), request.into_inner());
        let applied = changing::to_its_end(async move {
            apply_config::apply(&machine, request, is_talosctl).await
        });
        let applied = applied.await?;
        Ok(Response::new(wire::ApplyConfigurationResponse {
            messages: vec![wire::ApplyConfiguration {
                metadata,
                ..applied
            }],
        }))
    }

    async fn upgrade(
        &self,
        request: Request<wire::UpgradeRequest>,
    ) -> Result<Response<wire::UpgradeResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let peer = caller::peer(&request).to_owned();
        let is_talosctl = caller::is_talosctl(&request);
        let request = request.into_inner();
        tracing::info!("upgrade to {} asked for by {peer}", request.image);
        // talosctl leaves `preserve` out unless it is told otherwise, and a Talos of today keeps the data either way.
        let kept = match request.preserve {
            true => "",
            false => "; what is on EPHEMERAL is kept, as with preserve (reset erases it)",
        };
        let wanted = upgrade_request::wanted(&request);
        let machine = self.machine.clone();
        let started = changing::to_its_end(async move {
            if !request.stage {
                let started = sequences::upgrade(machine, wanted).await;
                let actor = started.map_err(upgrade_request::status)?;
                return Ok(("Upgrade request received".to_owned(), actor));
            }
            let staged = sequences::stage(&machine, wanted).await;
            let (staged, lock) = staged.map_err(upgrade_request::status)?;
            let ack = format!("{} is staged; {}", staged.version, staged.start());
            // talosctl takes this for the beginning of a reboot, as Talos begins it, and waits for its end.
            let actor = match is_talosctl {
                true => sequences::reboot_holding(&machine, lock),
                false => staged.actor,
            };
            Ok((ack, actor))
        });
        let (ack, actor) = started.await?;
        let ack = ack + kept;
        let message = wire::Upgrade {
            metadata,
            ack,
            actor_id: actor.0,
        };
        Ok(Response::new(wire::UpgradeResponse {
            messages: vec![message],
        }))
    }

    async fn reboot(
        &self,
        request: Request<wire::RebootRequest>,
    ) -> Result<Response<wire::RebootResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        tracing::info!("reboot asked for by {}", caller::peer(&request));
        let actor = match request.get_ref().mode() {
            Mode::Kexec => {
                let machine = self.machine.clone();
                changing::to_its_end(async move {
                    let started = sequences::reboot_by_kexec(&machine).await;
                    started.map_err(|error| Status::failed_precondition(chain(&error)))
                })
                .await?
            }
            Mode::Default => sequences::reboot_quickest(&self.machine).map_err(busy)?,
            Mode::Powercycle => sequences::reboot(&self.machine, Urgency::Waits).map_err(busy)?,
            Mode::Force => sequences::reboot(&self.machine, Urgency::Force).map_err(busy)?,
        };
        let message = wire::Reboot {
            metadata,
            actor_id: actor.0,
        };
        Ok(Response::new(wire::RebootResponse {
            messages: vec![message],
        }))
    }

    async fn reset(
        &self,
        request: Request<wire::ResetRequest>,
    ) -> Result<Response<wire::ResetResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        tracing::warn!("reset asked for by {}", caller::peer(&request));
        let started = reset::reset(&self.machine, request.get_ref())?;
        Ok(Response::new(wire::ResetResponse {
            messages: vec![wire::Reset {
                metadata,
                ..started
            }],
        }))
    }

    async fn rollback(
        &self,
        request: Request<wire::RollbackRequest>,
    ) -> Result<Response<wire::RollbackResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        tracing::warn!("rollback asked for by {}", caller::peer(&request));
        let machine = self.machine.clone();
        changing::to_its_end(async move {
            let started = sequences::rollback(&machine).await;
            started.map_err(|error| Status::failed_precondition(chain(&error)))
        })
        .await?;
        Ok(Response::new(wire::RollbackResponse {
            messages: vec![wire::Rollback { metadata }],
        }))
    }

    async fn shutdown(
        &self,
        request: Request<wire::ShutdownRequest>,
    ) -> Result<Response<wire::ShutdownResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        tracing::info!("shutdown asked for by {}", caller::peer(&request));
        let urgency = match request.get_ref().force {
            true => Urgency::Force,
            false => Urgency::Waits,
        };
        let actor = sequences::shutdown(&self.machine, urgency).map_err(busy)?;
        let message = wire::Shutdown {
            metadata,
            actor_id: actor.0,
        };
        Ok(Response::new(wire::ShutdownResponse {
            messages: vec![message],
        }))
    }

    async fn load_avg(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::LoadAvgResponse>, Status> {
        let message = wire::LoadAvg {
            metadata: caller::reply_metadata(request.metadata()),
            ..statistics::load_average().map_err(internal)?
        };
        Ok(Response::new(wire::LoadAvgResponse {
            messages: vec![message],
        }))
    }

    async fn system_stat(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::SystemStatResponse>, Status> {
        let message = wire::SystemStat {
            metadata: caller::reply_metadata(request.metadata()),
            ..statistics::system_stat().map_err(internal)?
        };
        Ok(Response::new(wire::SystemStatResponse {
            messages: vec![message],
        }))
    }

    async fn cpu_info(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::CpuInfoResponse>, Status> {
        let message = wire::CpUsInfo {
            metadata: caller::reply_metadata(request.metadata()),
            cpu_info: statistics::cpu_info().map_err(internal)?,
        };
        Ok(Response::new(wire::CpuInfoResponse {
            messages: vec![message],
        }))
    }

    async fn cpu_freq_stats(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::CpuFreqStatsResponse>, Status> {
        let message = wire::CpUsFreqStats {
            metadata: caller::reply_metadata(request.metadata()),
            cpu_freq_stats: statistics::cpu_frequencies().map_err(internal)?,
        };
        Ok(Response::new(wire::CpuFreqStatsResponse {
            messages: vec![message],
        }))
    }

    async fn network_device_stats(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::NetworkDeviceStatsResponse>, Status> {
        let message = wire::NetworkDeviceStats {
            metadata: caller::reply_metadata(request.metadata()),
            ..statistics::network_device_stats().map_err(internal)?
        };
        Ok(Response::new(wire::NetworkDeviceStatsResponse {
            messages: vec![message],
        }))
    }

    async fn disk_stats(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::DiskStatsResponse>, Status> {
        let message = wire::DiskStats {
            metadata: caller::reply_metadata(request.metadata()),
            ..statistics::disk_stats().map_err(internal)?
        };
        Ok(Response::new(wire::DiskStatsResponse {
            messages: vec![message],
        }))
    }

    async fn processes(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::ProcessesResponse>, Status> {
        let message = wire::Process {
            metadata: caller::reply_metadata(request.metadata()),
            processes: blocking::once(&Holder::of(&request), statistics::processes).await?,
        };
        Ok(Response::new(wire::ProcessesResponse {
            messages: vec![message],
        }))
    }

    async fn mounts(&self, request: Request<()>) -> Result<Response<wire::MountsResponse>, Status> {
        let message = wire::Mounts {
            metadata: caller::reply_metadata(request.metadata()),
            stats: blocking::once(&Holder::of(&request), statistics::mounts).await?,
        };
        Ok(Response::new(wire::MountsResponse {
            messages: vec![message],
        }))
    }

    async fn netstat(
        &self,
        request: Request<wire::NetstatRequest>,
    ) -> Result<Response<wire::NetstatResponse>, Status> {
        let holder = Holder::of(&request);
        let query = netstat::query(request.get_ref());
        let message = wire::Netstat {
            metadata: caller::reply_metadata(request.metadata()),
            connectrecord: blocking::once(&holder, move || statistics::sockets(&query)).await?,
        };
        Ok(Response::new(wire::NetstatResponse {
            messages: vec![message],
        }))
    }

    async fn packet_capture(
        &self,
        request: Request<wire::PacketCaptureRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<Data>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let lasts = deadline::of(request.metadata());
        let chunks = packet_capture::stream(request.get_ref(), lasts, metadata)?;
        tracing::info!(
            "packet capture on {} by {}",
            request.get_ref().interface,
            caller::peer(&request)
        );
        Ok(streamed(chunks))
    }

    async fn containers(
        &self,
        request: Request<wire::ContainersRequest>,
    ) -> Result<Response<wire::ContainersResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let holder = Holder::of(&request);
        let request = request.get_ref();
        let found = self.containers_of(&holder, &request.namespace, request.driver());
        let message = wire::Container {
            metadata,
            containers: found.await?.iter().map(containers::info).collect(),
        };
        Ok(Response::new(wire::ContainersResponse {
            messages: vec![message],
        }))
    }

    async fn stats(
        &self,
        request: Request<wire::StatsRequest>,
    ) -> Result<Response<wire::StatsResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let holder = Holder::of(&request);
        let request = request.get_ref();
        let found = self.containers_of(&holder, &request.namespace, request.driver());
        let message = wire::Stats {
            metadata,
            stats: found.await?.iter().map(containers::stat).collect(),
        };
        Ok(Response::new(wire::StatsResponse {
            messages: vec![message],
        }))
    }

    async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<wire::FileInfo>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let holder = Holder::of(&request);
        Ok(streamed(
            files::list(request.into_inner(), holder, metadata).await?,
        ))
    }

    async fn copy(
        &self,
        request: Request<wire::CopyRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<Data>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let holder = Holder::of(&request);
        Ok(streamed(
            files::copy(request.into_inner().root_path, holder, metadata).await?,
        ))
    }

    async fn disk_usage(
        &self,
        request: Request<wire::DiskUsageRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<wire::DiskUsageInfo>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let holder = Holder::of(&request);
        Ok(streamed(
            files::disk_usage(request.into_inner(), holder, metadata).await?,
        ))
    }

    async fn image_list(
        &self,
        request: Request<wire::ImageListRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<wire::ImageListResponse>>, Status> {
        images::old_list(&self.machine, caller::reply_metadata(request.metadata()))
    }

    async fn image_pull(
        &self,
        request: Request<wire::ImagePullRequest>,
    ) -> Result<Response<wire::ImagePullResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let name = &request.get_ref().reference;
        tracing::info!("pull of {name} asked for by {}", caller::peer(&request));
        let (machine, name) = (self.machine.clone(), name.clone());
        changing::to_its_end(async move {
            let pulled = image_operations::pull(&machine, &name, &|_| {}).await;
            pulled.map(drop).map_err(images::status)
        })
        .await?;
        Ok(Response::new(wire::ImagePullResponse {
            messages: vec![wire::ImagePull { metadata }],
        }))
    }

    async fn meta_write(
        &self,
        request: Request<wire::MetaWriteRequest>,
    ) -> Result<Response<wire::MetaWriteResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let by = (Holder::of(&request), CallerCredentials::of(&request));
        let wire::MetaWriteRequest { key, value } = request.into_inner();
        self.change_meta(key, by, move |meta, key| meta.write(key, &value))
            .await?;
        Ok(Response::new(wire::MetaWriteResponse {
            messages: vec![wire::MetaWrite { metadata }],
        }))
    }

    async fn meta_delete(
        &self,
        request: Request<wire::MetaDeleteRequest>,
    ) -> Result<Response<wire::MetaDeleteResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let by = (Holder::of(&request), CallerCredentials::of(&request));
        self.change_meta(request.get_ref().key, by, Meta::delete)
            .await?;
        Ok(Response::new(wire::MetaDeleteResponse {
            messages: vec![wire::MetaDelete { metadata }],
        }))
    }

    async fn generate_client_configuration(
        &self,
        request: Request<wire::GenerateClientConfigurationRequest>,
    ) -> Result<Response<wire::GenerateClientConfigurationResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        tracing::info!(
            "a client configuration for {:?} asked for by {}",
            request.get_ref().roles,
            caller::peer(&request)
        );
        let configured = self.machine.config().ok_or_else(|| {
            Status::failed_precondition("there is no machine config yet, and so no authority")
        })?;
        let request = request.into_inner();
        let lifetime = request.crt_ttl.and_then(|ttl| Duration::try_from(ttl).ok());
        let network = self.machine.network.status();
        let endpoints: Vec<String> = network
            .borrow()
            .addresses
            .iter()
            .map(|address| address.address.address().to_string())
            .collect();
        let client = NewClient {
            name: self.machine.hostname(),
            endpoints,
            roles: request
                .roles
                .iter()
                .map(|role| role.as_str().into())
                .collect(),
            lifetime: lifetime.unwrap_or_default(),
        };
        let files = client_configuration(&configured.config, &client).map_err(new_client_status)?;
        let message = wire::GenerateClientConfiguration {
            metadata,
            ca: files.authority.into(),
            crt: files.certificate.into(),
            key: files.key.into(),
            talosconfig: files.config.into(),
        };
        Ok(Response::new(wire::GenerateClientConfigurationResponse {
            messages: vec![message],
        }))
    }

    async fn bootstrap(&self, _request: Request<()>) -> Result<Response<()>, Status> {
        no_kubernetes("there is no etcd to bootstrap")
    }

    async fn etcd_member_list(
        &self,
        _request: Request<wire::EtcdMemberListRequest>,
    ) -> Result<Response<wire::EtcdMemberListResponse>, Status> {
        no_kubernetes("there is no etcd")
    }

    async fn kubeconfig(
        &self,
        _request: Request<()>,
    ) -> Result<Response<tonic::codegen::BoxStream<Data>>, Status> {
        no_kubernetes("there is no kubeconfig")
    }

    async fn restart(
        &self,
        request: Request<wire::RestartRequest>,
    ) -> Result<Response<wire::RestartResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let (holder, credentials) = (Holder::of(&request), CallerCredentials::of(&request));
        let request = request.get_ref();
        let containers = self.containers_of(&holder, &request.namespace, request.driver());
        if !containers.await?.iter().any(|it| it.name == request.id) {
            return Err(Status::not_found(format!(
                "there is no container {:?}; the list of containers has the names",
                request.id
            )));
        }
        self.restart_service(&request.id, credentials).await?;
        Ok(Response::new(wire::RestartResponse {
            messages: vec![wire::Restart { metadata }],
        }))
    }
}
