//! `etcd`: the data of the cluster on the node, and how their database is.

use std::path::Path;

use instar_api::machine::etcd_member_alarm::AlarmType;
use instar_api::machine::{
    EtcdMember, EtcdMemberAlarm, EtcdMemberListRequest, EtcdMemberStatus, EtcdSnapshotRequest,
};
use instar_base::byte_size::human_short;
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

pub(super) async fn status(global: &Global) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let reply = node.machine().etcd_status(node.request(())).await;
    let reply = reply.map_err(|status| node.explain("cannot show etcd", status))?;
    let element = node.only(reply.into_inner().messages)?;
    let status = element.member_status.unwrap_or_default();
    global.output.show(
        || {
            let head = [
                "MEMBER", "VERSION", "SIZE", "IN USE", "LEADER", "INDEX", "TERM", "APPLIED",
                "LEARNER", "ERRORS",
            ];
            table(&head, &[status_row(&status)])
        },
        || {
            json!({
                "node": node.name(),
                "member_id": format!("{:016x}", status.member_id),
                "version": status.protocol_version,
                "size_bytes": status.db_size,
                "in_use_bytes": status.db_size_in_use,
                "leader": format!("{:016x}", status.leader),
                "raft_index": status.raft_index,
                "raft_term": status.raft_term,
                "raft_applied_index": status.raft_applied_index,
                "is_learner": status.is_learner,
                "errors": status.errors,
            })
        },
    )
}

fn status_row(status: &EtcdMemberStatus) -> Vec<String> {
    let size = |bytes: i64| human_short(bytes.unsigned_abs());
    vec![
        format!("{:016x}", status.member_id),
        status.protocol_version.clone(),
        size(status.db_size),
        size(status.db_size_in_use),
        format!("{:016x}", status.leader),
        status.raft_index.to_string(),
        status.raft_term.to_string(),
        status.raft_applied_index.to_string(),
        status.is_learner.to_string(),
        status.errors.join(", "),
    ]
}

pub(super) async fn alarms(global: &Global) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let reply = node.machine().etcd_alarm_list(node.request(())).await;
    let reply = reply.map_err(|status| node.explain("cannot list alarms", status))?;
    let alarms = node.only(reply.into_inner().messages)?.member_alarms;
    show_alarms(global, node.name(), &alarms)
}

pub(super) async fn disarm(global: &Global) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let reply = node.machine().etcd_alarm_disarm(node.request(())).await;
    let reply = reply.map_err(|status| node.explain("cannot end alarms", status))?;
    let alarms = node.only(reply.into_inner().messages)?.member_alarms;
    show_alarms(global, node.name(), &alarms)
}

fn show_alarms(global: &Global, node: &str, alarms: &[EtcdMemberAlarm]) -> Result<(), Failure> {
    let name = |alarm: &EtcdMemberAlarm| match alarm.alarm() {
        AlarmType::None => "none",
        AlarmType::Nospace => "no space",
        AlarmType::Corrupt => "corrupt",
    };
    let member = |alarm: &EtcdMemberAlarm| format!("{:016x}", alarm.member_id);
    global.output.show(
        || {
            let rows = alarms
                .iter()
                .map(|it| vec![member(it), name(it).to_owned()]);
            table(&["MEMBER", "ALARM"], &rows.collect::<Vec<_>>())
        },
        || {
            let alarms = alarms.iter();
            let alarms = alarms.map(|it| json!({ "member_id": member(it), "alarm": name(it) }));
            json!({ "node": node, "alarms": alarms.collect::<Vec<_>>() })
        },
    )
}

pub(super) async fn defragment(global: &Global) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let reply = node.machine().etcd_defragment(node.request(())).await;
    reply.map_err(|status| node.explain("cannot defragment etcd", status))?;
    global.output.show(
        || {
            format!(
                "{}: etcd's database has given back what it did not use",
                node.name()
            )
        },
        || json!({ "node": node.name(), "done": "defragmented" }),
    )
}

pub(super) async fn snapshot(global: &Global, file: &Path, force: bool) -> Result<(), Failure> {
    private_file::check_free(file, force)?;
    let node = target::one(global).await?;
    let explain = |status| node.explain("cannot take a snapshot", status);
    let request = node.request(EtcdSnapshotRequest {});
    let reply = node.machine().etcd_snapshot(request).await;
    let mut stream = reply.map_err(explain)?.into_inner();
    let unwritten = |error| Failure::io(format!("cannot write {}", file.display()), error);
    // Only after the node has agreed: a refusal leaves no file behind. Beside the file: it may be the last good snapshot.
    let mut target = private_file::replacement(file).map_err(unwritten)?;
    let mut bytes = 0;
    while let Some(data) = stream.message().await.map_err(explain)? {
        bytes += data.bytes.len();
        target.write_all(&data.bytes).map_err(unwritten)?;
    }
    target.finish().map_err(unwritten)?;
    global.output.show(
        || format!("wrote {}, {bytes} bytes", file.display()),
        || json!({ "node": node.name(), "file": file, "bytes": bytes }),
    )
}
