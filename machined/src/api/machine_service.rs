//! `machine.MachineService`.

use std::sync::Arc;

use instar_api::common::Data;
use instar_api::machine as wire;
use instar_api::machine::machine_service_server::MachineService;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{apply_config, caller, events, logs, memory, read, reset, service_list};
use crate::machine::{Busy, Machine};
use crate::sequences;
use crate::services::ControlError;
use crate::upgrade::{UpgradeError, UpgradeRequest};

/// The service, over the machine.
pub(super) struct MachineApi {
    machine: Arc<Machine>,
}

impl MachineApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        MachineApi { machine }
    }

    fn control(
        &self,
        id: &str,
        operation: &'static str,
    ) -> Result<crate::services::Service, Status> {
        self.machine
            .services
            .controllable(id, operation)
            .map_err(|error| match error {
                ControlError::Unknown(_) => Status::not_found(error.to_string()),
                ControlError::NotControllable { .. } => {
                    Status::failed_precondition(error.to_string())
                }
            })
    }
}

fn busy(busy: Busy) -> Status {
    Status::failed_precondition(busy.to_string())
}

fn internal(error: anyhow::Error) -> Status {
    Status::internal(format!("{error:#}"))
}

/// A boxed stream, as the generated trait wants it.
fn streamed<T: Send + 'static>(
    stream: ReceiverStream<Result<T, Status>>,
) -> Response<tonic::codegen::BoxStream<T>> {
    Response::new(Box::pin(stream))
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
        self.control(id, "start")?.start();
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
        self.control(id, "stop")?.stop().await;
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
        let service = self.control(id, "restart")?;
        service.stop().await;
        service.start();
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
        let request = request.get_ref();
        let log = self.machine.log_of(&request.id).ok_or_else(|| {
            Status::not_found(format!(
                "there is no service {:?}; the list of services has the names",
                request.id
            ))
        })?;
        let disk = self.machine.log_disk.clone();
        Ok(streamed(logs::service(&log, disk, request, metadata)))
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
        Ok(streamed(logs::kernel(request.get_ref(), metadata)?))
    }

    async fn events(
        &self,
        request: Request<wire::EventsRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<wire::Event>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        Ok(streamed(events::stream(
            &self.machine.events,
            request.into_inner(),
            metadata,
        )?))
    }

    async fn read(
        &self,
        request: Request<wire::ReadRequest>,
    ) -> Result<Response<tonic::codegen::BoxStream<Data>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        Ok(streamed(
            read::stream(request.into_inner().path, metadata).await?,
        ))
    }

    async fn memory(&self, request: Request<()>) -> Result<Response<wire::MemoryResponse>, Status> {
        let message = wire::Memory {
            metadata: caller::reply_metadata(request.metadata()),
            meminfo: Some(memory::read().map_err(internal)?),
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
        let applied = apply_config::apply(&self.machine, request.into_inner()).await?;
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
        let request = request.into_inner();
        tracing::info!("upgrade to {} asked for by {peer}", request.image);
        if request.stage {
            return Err(Status::unimplemented(
                "a staged upgrade needs an installed system; leave out stage",
            ));
        }
        let wanted = UpgradeRequest {
            image: request.image.clone(),
            force: request.force,
            reboot: request.reboot_mode == i32::from(wire::upgrade_request::RebootMode::Powercycle),
        };
        let actor = sequences::upgrade(self.machine.clone(), wanted)
            .await
            .map_err(|error| match &error {
                UpgradeError::Busy(_) | UpgradeError::Refused(_) => {
                    Status::failed_precondition(error.chain())
                }
                UpgradeError::Reference(_) => Status::invalid_argument(error.chain()),
                UpgradeError::Pull(_) => Status::failed_precondition(error.chain()),
                UpgradeError::Machine(_) => Status::internal(error.chain()),
            })?;
        let message = wire::Upgrade {
            metadata,
            ack: "Upgrade request received".to_owned(),
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
        let actor = sequences::reboot(&self.machine).map_err(busy)?;
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
        sequences::rollback(&self.machine)
            .await
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
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
        let actor = sequences::shutdown(&self.machine).map_err(busy)?;
        let message = wire::Shutdown {
            metadata,
            actor_id: actor.0,
        };
        Ok(Response::new(wire::ShutdownResponse {
            messages: vec![message],
        }))
    }
}
