//! `reset`: erases the node's data.

use instar_api::machine::{ResetPartitionSpec, ResetRequest};
use instar_client::{Failure, Goal, Node};
use serde_json::json;

use crate::cli::{Global, Reset};
use crate::follow::follow;
use crate::target;

pub(super) async fn run(global: &Global, arguments: &Reset) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let labels = arguments.system_labels_to_wipe.iter();
    let request = ResetRequest {
        graceful: arguments.graceful,
        reboot: arguments.reboot,
        system_partitions_to_wipe: labels
            .map(|label| ResetPartitionSpec {
                label: label.clone(),
                wipe: true,
            })
            .collect(),
        ..ResetRequest::default()
    };
    let act = async |node: &Node| {
        let reply = node.machine().reset(node.request(request)).await;
        let reply = reply.map_err(|status| node.explain("did not reset", status))?;
        Ok(node.only(reply.into_inner().messages)?.actor_id)
    };
    // The node's identity is not checked afterwards: it may have lost its authority with its config.
    let (actor, seconds) = if arguments.wait.wanted() {
        let done = follow(&node, Goal::Stopped, arguments.wait.timeout, act).await?;
        (done.actor, Some(done.took.as_secs_f64()))
    } else {
        (act(&node).await?, None)
    };
    let next = if arguments.reboot {
        "boots again"
    } else {
        "powers off"
    };
    global.output.show(
        || match seconds {
            Some(seconds) => format!("{}: erased after {seconds:.1} s, it {next}", node.name()),
            None => format!("{}: accepted, actor {actor}", node.name()),
        },
        || json!({ "node": node.name(), "actor_id": actor, "seconds": seconds }),
    )
}
