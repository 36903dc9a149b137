//! Nodes that follow a channel by themselves, for the page: no command drives them, so they are only looked at.

use std::collections::BTreeMap;
use std::time::Duration;

use instar_api::instar::upgrade_follow_service_client::UpgradeFollowServiceClient;
use instar_api::instar::{FollowStatus, FollowStatusRequest};
use instar_client::{Failure, Node};
use instar_rollout::MachineName;
use instar_rollout_page::{MachineView, View};
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::Code;

use super::look::{ask_all, reach};
use super::members::Way;
use crate::cli::Global;

/// The name of the part of the page.
const NAME: &str = "followers";
/// The pause between two looks at all nodes.
const LOOK: Duration = Duration::from_secs(1);
/// Timeout of one look at a node, a new connection included.
const ANSWER: Duration = Duration::from_secs(3);
/// The step of a node that does not answer.
const AWAY: &str = "away";

/// Looks at the nodes for as long as somebody can see it.
pub(super) async fn keep(
    global: &Global,
    ways: BTreeMap<MachineName, Way>,
    shown: watch::Sender<Option<View>>,
) {
    let mut nodes: BTreeMap<MachineName, Node> = BTreeMap::new();
    let mut machines: BTreeMap<MachineName, MachineView> = BTreeMap::new();
    while !shown.is_closed() {
        let told = ask_all(global, &ways, ANSWER, |name, target, way| {
            let known = nodes.get(name).cloned();
            async move {
                let node = reach(known, &target, &way).await?;
                let status = status(&node).await?;
                Ok((node, status))
            }
        });
        for (name, told) in told.await {
            let before = machines.remove(&name);
            let running = before.and_then(|before| before.running);
            match told {
                Ok((node, status)) => {
                    machines.insert(name.clone(), machine(&name, status));
                    nodes.insert(name, node);
                }
                Err(why) => {
                    nodes.remove(&name);
                    machines.insert(name.clone(), away(&name, running, why));
                }
            }
        }
        shown.send_replace(Some(view(&machines)));
        sleep(LOOK).await;
    }
}

/// Returns how a node follows its channel; `None` if it follows none.
async fn status(node: &Node) -> Result<Option<FollowStatus>, Failure> {
    let mut client = UpgradeFollowServiceClient::new(node.channel());
    let reply = client.status(node.request(FollowStatusRequest {})).await;
    match reply {
        Ok(status) => Ok(Some(status.into_inner())),
        Err(status) if status.code() == Code::FailedPrecondition => Ok(None),
        Err(status) => Err(node.explain("cannot show the channel", status)),
    }
}

/// The part of the page with all nodes. It has no rollout, so that nothing can be steered.
fn view(machines: &BTreeMap<MachineName, MachineView>) -> View {
    View {
        name: NAME.to_owned(),
        pool: "nodes that follow a channel".to_owned(),
        version: String::new(),
        image: String::new(),
        phase: "each upgrades by itself",
        why: String::new(),
        paused: None,
        ended: true,
        holds: false,
        driven: true,
        approved: None,
        machines: machines.values().cloned().collect(),
    }
}

fn machine(name: &MachineName, status: Option<FollowStatus>) -> MachineView {
    let Some(status) = status else {
        let why = "its config has no UpgradeFollowConfig".to_owned();
        return seen(name, "follows none", why);
    };
    let parts = [
        Some(status.release).filter(|release| !release.is_empty() && *release != status.running),
        Some(status.reason).filter(|reason| !reason.is_empty()),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    MachineView {
        pool: status.channel,
        running: Some(status.running),
        ..seen(name, &status.state, parts.join(": "))
    }
}

fn away(name: &MachineName, running: Option<String>, why: String) -> MachineView {
    MachineView {
        running,
        ..seen(name, AWAY, why)
    }
}

fn seen(name: &MachineName, step: &str, reason: String) -> MachineView {
    MachineView {
        name: name.to_string(),
        pool: String::new(),
        running: None,
        before: None,
        step: step.to_owned(),
        since: None,
        reason,
        hold: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_shown_with_its_channel_and_the_release_it_goes_to() {
        let name = MachineName::from("lamp-1");
        let status = |running: &str, release: &str, reason: &str| FollowStatus {
            channel: "stable".to_owned(),
            running: running.to_owned(),
            release: release.to_owned(),
            state: "window".to_owned(),
            reason: reason.to_owned(),
            ..FollowStatus::default()
        };
        for (status, shown) in [
            (Some(status("v1", "v2", "opens at 3")), "v2: opens at 3"),
            (Some(status("v2", "v2", "")), ""),
            (Some(status("v2", "", "no list")), "no list"),
            (None, "its config has no UpgradeFollowConfig"),
        ] {
            let machine = machine(&name, status.clone());
            assert_eq!(machine.reason, shown);
            assert_eq!(machine.running, status.map(|status| status.running));
        }
        let machine = away(&name, Some("v1".to_owned()), "no answer".to_owned());
        assert_eq!(
            (machine.step.as_str(), machine.running.as_deref()),
            (AWAY, Some("v1"))
        );
    }
}
