//! `storage.StorageService`: disks. `machine.StorageService`: filesystems.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use instar_api::machine as machine_wire;
use instar_api::machine::storage_service_server::StorageService as FilesystemService;
use instar_api::storage as wire;
use instar_api::storage::disk::DiskType;
use instar_api::storage::storage_service_server::StorageService as DiskService;
use instar_pki::Role;
use tonic::{Request, Response, Status};

use super::caller::Holder;
use super::{blocking, caller, files};
use crate::base::blocking_io;
use crate::base::error_chain::chain;
use crate::disk::{Disk, WipeError, WipeMethod, WipeOrder, WipeOtherError, discover, wipe_others};
use crate::machine::Machine;
use crate::operation_lock::Operation;

/// Limit on the devices that one call wipes.
const MOST_DEVICES: usize = 64;

/// Implements both services.
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

/// Returns the disk that the machine uses. A disk of Instar's that was found counts only if there is a config or its STATE is mounted.
fn in_use(machine: &Machine) -> Option<PathBuf> {
    let is_used = machine.config().is_some() || machine.disk.state().is_some();
    let disk = machine.disk.status().borrow().disk.clone();
    disk.filter(|_| is_used)
}

fn orders(request: wire::BlockDeviceWipeRequest) -> Result<Vec<WipeOrder>, Status> {
    use wire::block_device_wipe_descriptor::Method;
    if request.devices.is_empty() || request.devices.len() > MOST_DEVICES {
        return Err(Status::invalid_argument(format!(
            "name the devices to wipe, 1 to {MOST_DEVICES}"
        )));
    }
    let order = |device: wire::BlockDeviceWipeDescriptor| {
        let method = match Method::try_from(device.method) {
            Ok(Method::Fast) => WipeMethod::Fast,
            Ok(Method::Zeroes) => WipeMethod::Zeroes,
            Err(_) => {
                let number = device.method;
                return Err(Status::invalid_argument(format!(
                    "there is no method {number}"
                )));
            }
        };
        Ok(WipeOrder {
            device: device.device,
            method,
            drop_partition: device.drop_partition,
        })
    };
    request.devices.into_iter().map(order).collect()
}

fn wipe_status(error: WipeOtherError) -> Status {
    let text = chain(&error);
    match error {
        WipeOtherError::Unknown(_) => Status::not_found(text),
        WipeOtherError::Wipe(WipeError::Erase { .. })
        | WipeOtherError::Table { .. }
        | WipeOtherError::Forget { .. } => Status::internal(text),
        _ => Status::failed_precondition(text),
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
            // Loop devices and the like are not disks of the machine.
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
        request: Request<wire::BlockDeviceWipeRequest>,
    ) -> Result<Response<wire::BlockDeviceWipeResponse>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        // apid admits callers without a certificate here too, while the node has no config and any caller may bring one. Its
        // check was at the start of the call, so check again.
        let is_admin = caller::roles(request.metadata()).contains(&Role::Admin);
        if !is_admin && !self.machine.is_open() {
            return Err(Status::permission_denied("not authorized"));
        }
        let peer = caller::peer(&request).to_owned();
        let orders = orders(request.into_inner())?;
        let lock = self
            .machine
            .lock_operation(Operation::WipeDisk)
            .map_err(|busy| Status::failed_precondition(busy.to_string()))?;
        let owned = in_use(&self.machine);
        tracing::warn!("wipe of {orders:?} asked for by {peer}");
        // The wipe runs to its end even if the caller hangs up, and holds the lock until then.
        let wiping = blocking_io::to_its_end(move || {
            let wiped = wipe_others(Path::new("/sys"), owned.as_deref(), &orders);
            drop(lock);
            wiped
        });
        wiping
            .await
            .map_err(|interrupted| Status::internal(interrupted.to_string()))?
            .map_err(wipe_status)?;
        Ok(Response::new(wire::BlockDeviceWipeResponse {
            messages: vec![wire::BlockDeviceWipe { metadata }],
        }))
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
