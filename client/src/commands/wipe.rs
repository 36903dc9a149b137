//! `wipe disk`: erases disks and partitions that the node does not use.

use instar_api::storage::block_device_wipe_descriptor::Method;
use instar_api::storage::storage_service_client::StorageServiceClient;
use instar_api::storage::{BlockDeviceWipeDescriptor, BlockDeviceWipeRequest};
use instar_client::Failure;
use serde_json::json;

use crate::cli::{Global, Wipe, WipeMethod};
use crate::target;

pub(super) async fn run(global: &Global, wipe: Wipe) -> Result<(), Failure> {
    let Wipe::Disk {
        devices,
        method,
        drop_partition,
    } = wipe;
    let node = target::one(global).await?;
    let method = match method {
        WipeMethod::Fast => Method::Fast,
        WipeMethod::Zeroes => Method::Zeroes,
    };
    let device = |name: &String| BlockDeviceWipeDescriptor {
        // The node knows devices by the kernel's names.
        device: name.strip_prefix("/dev/").unwrap_or(name).to_owned(),
        method: method.into(),
        drop_partition,
        ..BlockDeviceWipeDescriptor::default()
    };
    let request = BlockDeviceWipeRequest {
        devices: devices.iter().map(device).collect(),
    };
    let mut storage = StorageServiceClient::new(node.channel());
    let reply = storage.block_device_wipe(node.request(request)).await;
    let reply = reply.map_err(|status| node.explain("did not wipe", status))?;
    node.only(reply.into_inner().messages)?;
    global.output.show(
        || format!("{}: wiped {}", node.name(), devices.join(", ")),
        || json!({ "node": node.name(), "wiped": devices }),
    )
}
