//! `storage.StorageService`: disks. `machine.StorageService`: filesystems.

use std::path::Path;
use std::sync::Arc;

use instar_api::machine as machine_wire;
use instar_api::machine::storage_service_server::StorageService as FilesystemService;
use instar_api::storage as wire;
use instar_api::storage::disk::DiskType;
use instar_api::storage::storage_service_server::StorageService as DiskService;
use tonic::{Request, Response, Status};

use super::caller::Holder;
use super::{blocking, caller, files};
use crate::disk::{Disk, discover};
use crate::machine::Machine;

/// Both services.
#[derive(Clone)]
pub(super) struct StorageApi {
    machine: Arc<Machine>,
}

impl StorageApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        StorageApi { machine }
    }
}

fn row(disk: Disk, owned: Option<&Path>) -> wire::Disk {
    wire::Disk {
        r#type: kind(&disk).into(),
        size: disk.size,
        system_disk: owned == Some(disk.dev_path.as_path()),
        device_name: disk.dev_path.to_string(),
        subsystem: format!("/sys/class/block/{}", disk.name),
        model: disk.model,
        name: disk.name,
        serial: disk.serial,
        modalias: disk.modalias,
        uuid: disk.uuid,
        wwid: disk.wwid,
        bus_path: disk.bus_path,
        readonly: disk.readonly,
    }
}

fn kind(disk: &Disk) -> DiskType {
    match (disk.transport.as_str(), disk.cdrom, disk.rotational) {
        (_, true, _) => DiskType::Cd,
        ("nvme", ..) => DiskType::Nvme,
        ("mmc", ..) => DiskType::Sd,
        (.., true) => DiskType::Hdd,
        (.., false) => DiskType::Ssd,
    }
}

#[tonic::async_trait]
impl DiskService for StorageApi {
    async fn disks(&self, request: Request<()>) -> Result<Response<wire::DisksResponse>, Status> {
        let holder = Holder::of(&request);
        let disks = blocking::once(&holder, || Ok(discover(Path::new("/sys"))?)).await?;
        let owned = self.machine.disk.status().borrow().disk.clone();
        let disks = disks
            .into_iter()
            // Loop devices and the like are no disks of the machine.
            .filter(|disk| !disk.software)
            .map(|disk| row(disk, owned.as_deref()));
        let message = wire::Disks {
            metadata: caller::reply_metadata(request.metadata()),
            disks: disks.collect(),
        };
        Ok(Response::new(wire::DisksResponse {
            messages: vec![message],
        }))
    }

    async fn block_device_wipe(
        &self,
        _request: Request<wire::BlockDeviceWipeRequest>,
    ) -> Result<Response<wire::BlockDeviceWipeResponse>, Status> {
        Err(Status::unimplemented(
            "this version wipes no disks: it writes to the disk that the machine config names, and to no other",
        ))
    }
}

#[tonic::async_trait]
impl FilesystemService for StorageApi {
    async fn statfs(
        &self,
        request: Request<machine_wire::StorageServiceStatfsRequest>,
    ) -> Result<Response<machine_wire::StorageServiceStatfsResponse>, Status> {
        let holder = Holder::of(&request);
        let room = files::statfs(request.into_inner().path, &holder).await?;
        Ok(Response::new(room))
    }
}
