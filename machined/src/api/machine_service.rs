//! `machine.MachineService`: each method calls the module of its group.

mod about;
mod configuration;
mod containers;
mod etcd;
mod figures;
mod files;
mod images;
mod kubernetes;
mod meta;
mod sequences;
mod services;
mod streams;

use std::path::Path;
use std::sync::Arc;

use instar_api::common::Data;
use instar_api::machine as wire;
use instar_api::machine::machine_service_server::MachineService;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use crate::disk::STATE;
use crate::machine::Machine;
use crate::meta::Meta;

/// A method's result.
type Reply<Message> = Result<Response<Message>, Status>;

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
}

#[tonic::async_trait]
impl MachineService for MachineApi {
    async fn version(&self, request: Request<()>) -> Reply<wire::VersionResponse> {
        about::version(self, request)
    }

    async fn service_list(&self, request: Request<()>) -> Reply<wire::ServiceListResponse> {
        services::service_list(self, request)
    }

    async fn service_start(
        &self,
        request: Request<wire::ServiceStartRequest>,
    ) -> Reply<wire::ServiceStartResponse> {
        services::service_start(self, request).await
    }

    async fn service_stop(
        &self,
        request: Request<wire::ServiceStopRequest>,
    ) -> Reply<wire::ServiceStopResponse> {
        services::service_stop(self, request).await
    }

    async fn service_restart(
        &self,
        request: Request<wire::ServiceRestartRequest>,
    ) -> Reply<wire::ServiceRestartResponse> {
        services::service_restart(self, request).await
    }

    async fn logs(&self, request: Request<wire::LogsRequest>) -> Reply<BoxStream<Data>> {
        streams::logs(self, request).await
    }

    async fn logs_containers(&self, request: Request<()>) -> Reply<wire::LogsContainersResponse> {
        streams::logs_containers(self, request)
    }

    async fn dmesg(&self, request: Request<wire::DmesgRequest>) -> Reply<BoxStream<Data>> {
        streams::dmesg(request)
    }

    async fn events(&self, request: Request<wire::EventsRequest>) -> Reply<BoxStream<wire::Event>> {
        streams::events(self, request)
    }

    async fn read(&self, request: Request<wire::ReadRequest>) -> Reply<BoxStream<Data>> {
        files::read(self, request).await
    }

    async fn memory(&self, request: Request<()>) -> Reply<wire::MemoryResponse> {
        figures::memory(request)
    }

    async fn hostname(&self, request: Request<()>) -> Reply<wire::HostnameResponse> {
        about::hostname(self, request)
    }

    async fn apply_configuration(
        &self,
        request: Request<wire::ApplyConfigurationRequest>,
    ) -> Reply<wire::ApplyConfigurationResponse> {
        configuration::apply_configuration(self, request).await
    }

    async fn upgrade(
        &self,
        request: Request<wire::UpgradeRequest>,
    ) -> Reply<wire::UpgradeResponse> {
        sequences::upgrade(self, request).await
    }

    async fn reboot(&self, request: Request<wire::RebootRequest>) -> Reply<wire::RebootResponse> {
        sequences::reboot(self, request).await
    }

    async fn reset(&self, request: Request<wire::ResetRequest>) -> Reply<wire::ResetResponse> {
        sequences::reset(self, request)
    }

    async fn rollback(
        &self,
        request: Request<wire::RollbackRequest>,
    ) -> Reply<wire::RollbackResponse> {
        sequences::rollback(self, request).await
    }

    async fn shutdown(
        &self,
        request: Request<wire::ShutdownRequest>,
    ) -> Reply<wire::ShutdownResponse> {
        sequences::shutdown(self, request)
    }

    async fn load_avg(&self, request: Request<()>) -> Reply<wire::LoadAvgResponse> {
        figures::load_avg(request)
    }

    async fn system_stat(&self, request: Request<()>) -> Reply<wire::SystemStatResponse> {
        figures::system_stat(request)
    }

    async fn cpu_info(&self, request: Request<()>) -> Reply<wire::CpuInfoResponse> {
        figures::cpu_info(request)
    }

    async fn cpu_freq_stats(&self, request: Request<()>) -> Reply<wire::CpuFreqStatsResponse> {
        figures::cpu_freq_stats(request)
    }

    async fn network_device_stats(
        &self,
        request: Request<()>,
    ) -> Reply<wire::NetworkDeviceStatsResponse> {
        figures::network_device_stats(request)
    }

    async fn disk_stats(&self, request: Request<()>) -> Reply<wire::DiskStatsResponse> {
        figures::disk_stats(request)
    }

    async fn processes(&self, request: Request<()>) -> Reply<wire::ProcessesResponse> {
        figures::processes(request).await
    }

    async fn mounts(&self, request: Request<()>) -> Reply<wire::MountsResponse> {
        figures::mounts(request).await
    }

    async fn netstat(
        &self,
        request: Request<wire::NetstatRequest>,
    ) -> Reply<wire::NetstatResponse> {
        figures::netstat(request).await
    }

    async fn packet_capture(
        &self,
        request: Request<wire::PacketCaptureRequest>,
    ) -> Reply<BoxStream<Data>> {
        streams::packet_capture(request)
    }

    async fn containers(
        &self,
        request: Request<wire::ContainersRequest>,
    ) -> Reply<wire::ContainersResponse> {
        containers::containers(self, request).await
    }

    async fn stats(&self, request: Request<wire::StatsRequest>) -> Reply<wire::StatsResponse> {
        containers::stats(self, request).await
    }

    async fn list(&self, request: Request<wire::ListRequest>) -> Reply<BoxStream<wire::FileInfo>> {
        files::list(self, request).await
    }

    async fn copy(&self, request: Request<wire::CopyRequest>) -> Reply<BoxStream<Data>> {
        files::copy(self, request).await
    }

    async fn disk_usage(
        &self,
        request: Request<wire::DiskUsageRequest>,
    ) -> Reply<BoxStream<wire::DiskUsageInfo>> {
        files::disk_usage(self, request).await
    }

    async fn image_list(
        &self,
        request: Request<wire::ImageListRequest>,
    ) -> Reply<BoxStream<wire::ImageListResponse>> {
        images::image_list(self, request)
    }

    async fn image_pull(
        &self,
        request: Request<wire::ImagePullRequest>,
    ) -> Reply<wire::ImagePullResponse> {
        images::image_pull(self, request).await
    }

    async fn meta_write(
        &self,
        request: Request<wire::MetaWriteRequest>,
    ) -> Reply<wire::MetaWriteResponse> {
        meta::meta_write(self, request).await
    }

    async fn meta_delete(
        &self,
        request: Request<wire::MetaDeleteRequest>,
    ) -> Reply<wire::MetaDeleteResponse> {
        meta::meta_delete(self, request).await
    }

    async fn generate_client_configuration(
        &self,
        request: Request<wire::GenerateClientConfigurationRequest>,
    ) -> Reply<wire::GenerateClientConfigurationResponse> {
        configuration::generate_client_configuration(self, request)
    }

    async fn bootstrap(
        &self,
        request: Request<wire::BootstrapRequest>,
    ) -> Reply<wire::BootstrapResponse> {
        kubernetes::bootstrap(self, request).await
    }

    async fn etcd_member_list(
        &self,
        request: Request<wire::EtcdMemberListRequest>,
    ) -> Reply<wire::EtcdMemberListResponse> {
        etcd::etcd_member_list(self, request).await
    }

    async fn etcd_status(&self, request: Request<()>) -> Reply<wire::EtcdStatusResponse> {
        etcd::etcd_status(self, request).await
    }

    async fn etcd_alarm_list(&self, request: Request<()>) -> Reply<wire::EtcdAlarmListResponse> {
        etcd::etcd_alarm_list(self, request).await
    }

    async fn etcd_alarm_disarm(
        &self,
        request: Request<()>,
    ) -> Reply<wire::EtcdAlarmDisarmResponse> {
        etcd::etcd_alarm_disarm(self, request).await
    }

    async fn etcd_defragment(&self, request: Request<()>) -> Reply<wire::EtcdDefragmentResponse> {
        etcd::etcd_defragment(self, request).await
    }

    async fn etcd_recover(
        &self,
        request: Request<Streaming<Data>>,
    ) -> Reply<wire::EtcdRecoverResponse> {
        etcd::etcd_recover(self, request).await
    }

    async fn etcd_snapshot(
        &self,
        request: Request<wire::EtcdSnapshotRequest>,
    ) -> Reply<BoxStream<Data>> {
        etcd::etcd_snapshot(self, request).await
    }

    async fn kubeconfig(&self, request: Request<()>) -> Reply<BoxStream<Data>> {
        kubernetes::kubeconfig(self, request)
    }

    async fn restart(
        &self,
        request: Request<wire::RestartRequest>,
    ) -> Reply<wire::RestartResponse> {
        containers::restart(self, request).await
    }
}
