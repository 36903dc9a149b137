//! `mounts`: filesystems and their free space.

use instar_api::machine::MountStat;
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::each_node::each_node;
use crate::output::{human, table};

pub(super) async fn run(global: &Global) -> Result<(), Failure> {
    each_node(global, async |node| {
        let reply = node.machine().mounts(node.request(())).await;
        let reply = reply.map_err(|status| node.explain("cannot list mounts", status))?;
        let mounts = node.only(reply.into_inner().messages)?.stats;
        global.output.show(
            || {
                // The kernel's own filesystems have no size.
                let sized = mounts.iter().filter(|mount| mount.size > 0);
                let rows: Vec<_> = sized.map(|mount| row(node.name(), mount)).collect();
                table(
                    &[
                        "NODE", "FILESYSTEM", "SIZE", "USED", "AVAILABLE", "USED%", "MOUNTED ON",
                    ],
                    &rows,
                )
            },
            || {
                let mount = |mount: &MountStat| {
                    json!({
                        "filesystem": mount.filesystem,
                        "size": mount.size,
                        "available": mount.available,
                        "mounted_on": mount.mounted_on,
                    })
                };
                json!({ "node": node.name(), "mounts": mounts.iter().map(mount).collect::<Vec<_>>() })
            },
        )?;
        Ok(())
    })
    .await
}

fn row(node: &str, mount: &MountStat) -> Vec<String> {
    let used = mount.size.saturating_sub(mount.available);
    vec![
        node.to_owned(),
        mount.filesystem.clone(),
        human(mount.size),
        human(used),
        human(mount.available),
        format!("{:.1}%", used as f64 * 100.0 / mount.size.max(1) as f64),
        mount.mounted_on.clone(),
    ]
}
