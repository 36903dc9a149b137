//! `follow`: shows how nodes follow their channels, and tells them what people want.

use std::path::Path;

use instar_api::instar::upgrade_follow_service_client::UpgradeFollowServiceClient;
use instar_api::instar::{
    ApproveReleaseRequest, BringListRequest, CheckChannelRequest, FollowStatus,
    FollowStatusRequest, HoldReleaseRequest, ReleaseApproval,
};
use instar_client::{Failure, Node};
use serde_json::{Value, json};
use tonic::transport::Channel;

use crate::channel_folder;
use crate::cli::{Follow, Global};
use crate::each_node::each_node;
use crate::output::table;

pub(super) async fn run(global: &Global, follow: &Follow) -> Result<(), Failure> {
    each_node(global, async |node| match follow {
        Follow::Status => status(global, node).await,
        Follow::Check => check(global, node).await,
        Follow::Bring { folder } => bring(global, node, folder).await,
        Follow::Approve { release } => approve(global, node, release).await,
        Follow::Hold { release } => hold(global, node, release, false).await,
        Follow::Release { release } => hold(global, node, release, true).await,
    })
    .await
}

fn client(node: &Node) -> UpgradeFollowServiceClient<Channel> {
    UpgradeFollowServiceClient::new(node.channel())
}

async fn status(global: &Global, node: &Node) -> Result<(), Failure> {
    let reply = client(node)
        .status(node.request(FollowStatusRequest {}))
        .await;
    let reply = reply.map_err(|status| node.explain("cannot show the channel", status))?;
    let status = reply.into_inner();
    global
        .output
        .show(|| text(node, &status), || json(node, &status))
}

fn text(node: &Node, status: &FollowStatus) -> String {
    let list = match status.serial {
        0 => "no list was seen yet".to_owned(),
        serial => format!("list {serial}"),
    };
    let next = match status.release.as_str() {
        "" => String::new(),
        release => format!(" {release}"),
    };
    let reason = match status.reason.as_str() {
        "" => String::new(),
        reason => format!(": {reason}"),
    };
    let mut lines = vec![format!(
        "{}: {} ({list}), {} runs; {}{next}{reason}",
        node.name(),
        status.channel,
        status.running,
        status.state
    )];
    if status.until > 0 {
        lines.push(format!("until {}", date(status.until)));
    }
    if status.next_look > 0 {
        lines.push(format!(
            "the list is asked for next at {}",
            date(status.next_look)
        ));
    }
    if !status.look_error.is_empty() {
        lines.push(format!("the last look failed: {}", status.look_error));
    }
    if !status.releases.is_empty() {
        let rows = status.releases.iter();
        let rows = rows.map(|it| vec![it.version.clone(), it.why.clone(), it.digest.clone()]);
        let rows: Vec<Vec<String>> = rows.collect();
        lines.push(table(&["RELEASE", "WHY", "DIGEST"], &rows));
    }
    lines.join("\n")
}

fn json(node: &Node, status: &FollowStatus) -> Value {
    let releases = status.releases.iter();
    let releases: Vec<Value> = releases
        .map(|it| json!({"version": it.version, "digest": it.digest, "why": it.why}))
        .collect();
    json!({
        "node": node.name(),
        "channel": status.channel,
        "serial": status.serial,
        "running": status.running,
        "release": status.release,
        "digest": status.digest,
        "state": status.state,
        "reason": status.reason,
        "until": time(status.until),
        "looked_at": time(status.looked_at),
        "next_look": time(status.next_look),
        "look_error": status.look_error,
        "releases": releases,
    })
}

/// A moment for programs; none if there was or will be none.
fn time(seconds: i64) -> Option<String> {
    (seconds > 0).then(|| date(seconds))
}

fn date(seconds: i64) -> String {
    let date = jiff::Timestamp::from_second(seconds);
    date.map_or_else(|_| seconds.to_string(), |date| date.to_string())
}

async fn check(global: &Global, node: &Node) -> Result<(), Failure> {
    let reply = client(node)
        .check(node.request(CheckChannelRequest {}))
        .await;
    reply.map_err(|status| node.explain("cannot check the channel", status))?;
    global.output.show(
        || format!("{}: asks for the list now", node.name()),
        || json!({ "node": node.name() }),
    )
}

async fn bring(global: &Global, node: &Node, folder: &Path) -> Result<(), Failure> {
    let files = channel_folder::read(folder)?.files;
    let approvals = files.approvals().map(|(release, signature)| {
        let (digest, signature) = (release.to_string(), signature.to_vec());
        ReleaseApproval { digest, signature }
    });
    let request = BringListRequest {
        list: files.list().to_vec(),
        signature: files.signature().to_vec(),
        approvals: approvals.collect(),
    };
    let reply = client(node).bring(node.request(request)).await;
    let reply = reply.map_err(|status| node.explain("cannot bring the list", status))?;
    let serial = reply.into_inner().serial;
    global.output.show(
        || format!("{}: has list {serial}", node.name()),
        || json!({ "node": node.name(), "serial": serial }),
    )
}

async fn approve(global: &Global, node: &Node, release: &str) -> Result<(), Failure> {
    let request = ApproveReleaseRequest {
        release: release.to_owned(),
    };
    let reply = client(node).approve(node.request(request)).await;
    let doing = format!("cannot approve {release}");
    let reply = reply.map_err(|status| node.explain(&doing, status))?;
    let digest = reply.into_inner().digest;
    global.output.show(
        || format!("{}: {release} is approved ({digest})", node.name()),
        || json!({ "node": node.name(), "approved": digest }),
    )
}

async fn hold(global: &Global, node: &Node, release: &str, take_back: bool) -> Result<(), Failure> {
    let request = HoldReleaseRequest {
        release: release.to_owned(),
        take_back,
    };
    let reply = client(node).hold(node.request(request)).await;
    let reply = reply.map_err(|status| node.explain(&format!("cannot hold {release}"), status))?;
    let digest = reply.into_inner().digest;
    let is = match take_back {
        true => "is not held any more",
        false => "is held",
    };
    global.output.show(
        || format!("{}: {release} {is} ({digest})", node.name()),
        || json!({ "node": node.name(), "digest": digest, "held": !take_back }),
    )
}
