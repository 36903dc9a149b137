//! `etcd`: the data of the cluster on the node.

use std::io::Write as _;
use std::path::Path;

use instar_api::machine::{EtcdMember, EtcdMemberListRequest, EtcdSnapshotRequest};
use instar_client::Failure;
use serde_json::json;

use crate::cli::Global;
use crate::output::table;
use crate::{private_file, target};

pub(super) async fn members(global: &Global) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let request = node.request(EtcdMemberListRequest::default());
    let reply = node.machine().etcd_member_list(request).await;
    let reply = reply.map_err(|status| node.explain("cannot list members", status))?;
    let members = node.only(reply.into_inner().messages)?.members;
    global.output.show(
        || {
            let rows: Vec<_> = members.iter().map(row).collect();
            table(&["ID", "NAME", "PEERS", "CLIENTS", "LEARNER"], &rows)
        },
        || {
            let member = |it: &EtcdMember| {
                json!({
                    "id": format!("{:016x}", it.id),
                    "name": it.hostname,
                    "peer_urls": it.peer_urls,
                    "client_urls": it.client_urls,
                    "is_learner": it.is_learner,
                })
            };
            json!({ "node": node.name(), "members": members.iter().map(member).collect::<Vec<_>>() })
        },
    )
}

fn row(member: &EtcdMember) -> Vec<String> {
    vec![
        format!("{:016x}", member.id),
        member.hostname.clone(),
        member.peer_urls.join(","),
        member.client_urls.join(","),
        member.is_learner.to_string(),
    ]
}

pub(super) async fn snapshot(global: &Global, file: &Path, force: bool) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let explain = |status| node.explain("cannot take a snapshot", status);
    let request = node.request(EtcdSnapshotRequest {});
    let reply = node.machine().etcd_snapshot(request).await;
    let mut stream = reply.map_err(explain)?.into_inner();
    // Only after the node has agreed: a refusal leaves no file behind.
    let mut target = private_file::create(file, force)?;
    let mut bytes = 0;
    while let Some(data) = stream.message().await.map_err(explain)? {
        bytes += data.bytes.len();
        let written = target.write_all(&data.bytes);
        written.map_err(|error| Failure::io(format!("cannot write {}", file.display()), error))?;
    }
    global.output.show(
        || format!("wrote {}, {bytes} bytes", file.display()),
        || json!({ "node": node.name(), "file": file, "bytes": bytes }),
    )
}
