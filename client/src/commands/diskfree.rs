//! `diskfree`: the free space of each filesystem.

use instar_api::machine::storage_service_client::StorageServiceClient;
use instar_api::machine::{StorageServiceStatfsRequest, StorageServiceStatfsResponse};
use instar_client::{Failure, Node};
use serde_json::json;
use tonic::Code;

use super::get;
use crate::cli::Global;
use crate::each_node::each_node;
use crate::output::{human, table};

/// A filesystem and its space.
struct Filesystem {
    source: String,
    target: String,
    room: StorageServiceStatfsResponse,
}

pub(super) async fn run(global: &Global) -> Result<(), Failure> {
    each_node(global, async |node| {
        let filesystems = filesystems(node).await?;
        global.output.show(
            || {
                let rows: Vec<_> = filesystems.iter().map(|one| row(node.name(), one)).collect();
                table(
                    &[
                        "NODE", "FILESYSTEM", "SIZE", "USED", "AVAILABLE", "USED%", "INODES%", "MOUNTED ON",
                    ],
                    &rows,
                )
            },
            || {
                let one = |one: &Filesystem| {
                    json!({
                        "filesystem": one.source,
                        "mounted_on": one.target,
                        "size": one.room.size,
                        "used": one.room.used,
                        "available": one.room.available,
                        "inodes": one.room.inodes,
                        "inodes_used": one.room.inodes_used,
                    })
                };
                json!({ "node": node.name(), "filesystems": filesystems.iter().map(one).collect::<Vec<_>>() })
            },
        )?;
        Ok(())
    })
    .await
}

async fn filesystems(node: &Node) -> Result<Vec<Filesystem>, Failure> {
    let mounts = get::all(
        node,
        "runtime",
        "MountStatuses.block.talos.dev",
        "cannot list mounts",
    )
    .await?;
    let mut storage = StorageServiceClient::new(node.channel());
    let refused = |target: &str, status| {
        node.explain(&format!("cannot ask for the room on {target}"), status)
    };
    let (mut filesystems, mut left_out) = (Vec::new(), None);
    for mount in mounts {
        let mount = get::content(&mount);
        let text = |key: &str| mount[key].as_str().unwrap_or_default().to_owned();
        let (source, target) = (text("source"), text("target"));
        let request = StorageServiceStatfsRequest {
            path: target.clone(),
        };
        let reply = storage.statfs(node.request(request)).await;
        match reply {
            Ok(reply) => filesystems.push(Filesystem {
                source,
                target,
                room: reply.into_inner(),
            }),
            // Filesystems that the node keeps to itself, or that were unmounted meanwhile.
            Err(status) if matches!(status.code(), Code::PermissionDenied | Code::NotFound) => {
                left_out = Some((target, status));
            }
            Err(status) => return Err(refused(&target, status)),
        }
    }
    match left_out {
        Some((target, status)) if filesystems.is_empty() => Err(refused(&target, status)),
        _ => Ok(filesystems),
    }
}

fn row(node: &str, filesystem: &Filesystem) -> Vec<String> {
    let room = &filesystem.room;
    vec![
        node.to_owned(),
        filesystem.source.clone(),
        human(room.size),
        human(room.used),
        human(room.available),
        percent(room.used, room.used + room.available),
        percent(room.inodes_used, room.inodes),
        filesystem.target.clone(),
    ]
}

/// A share in percent; `-` if the whole is 0.
fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        whole => format!("{:.1}%", part as f64 * 100.0 / whole as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_nothing_is_none() {
        assert_eq!(percent(1, 8), "12.5%");
        assert_eq!(percent(0, 0), "-");
    }
}
