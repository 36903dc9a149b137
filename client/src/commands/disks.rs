//! `disks`: the node's disks, and which one it owns.

use instar_api::storage::Disk;
use instar_api::storage::storage_service_client::StorageServiceClient;
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::each_node::each_node;
use crate::output::{human, table};

pub(super) async fn run(global: &Global) -> Result<(), Failure> {
    each_node(global, async |node| {
        let mut storage = StorageServiceClient::new(node.channel());
        let reply = storage.disks(node.request(())).await;
        let reply = reply.map_err(|status| node.explain("cannot list disks", status))?;
        let disks = node.only(reply.into_inner().messages)?.disks;
        global.output.show(
            || {
                let row = |disk: &Disk| {
                    vec![
                        node.name().to_owned(),
                        disk.device_name.clone(),
                        disk.r#type().as_str_name().to_owned(),
                        human(disk.size),
                        disk.model.clone(),
                        disk.serial.clone(),
                        disk.wwid.clone(),
                        (if disk.readonly { "yes" } else { "" }).to_owned(),
                        (if disk.system_disk { "*" } else { "" }).to_owned(),
                    ]
                };
                table(
                    &[
                        "NODE",
                        "DEV",
                        "TYPE",
                        "SIZE",
                        "MODEL",
                        "SERIAL",
                        "WWID",
                        "READ-ONLY",
                        "SYSTEM",
                    ],
                    &disks.iter().map(row).collect::<Vec<_>>(),
                )
            },
            || {
                let disk = |disk: &Disk| {
                    json!({
                        "device": disk.device_name,
                        "type": disk.r#type().as_str_name(),
                        "size": disk.size,
                        "model": disk.model,
                        "serial": disk.serial,
                        "wwid": disk.wwid,
                        "uuid": disk.uuid,
                        "modalias": disk.modalias,
                        "bus_path": disk.bus_path,
                        "readonly": disk.readonly,
                        "system_disk": disk.system_disk,
                    })
                };
                json!({ "node": node.name(), "disks": disks.iter().map(disk).collect::<Vec<_>>() })
            },
        )?;
        Ok(())
    })
    .await
}
