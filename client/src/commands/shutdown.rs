//! `shutdown`: powers the machine off.

use instar_api::machine::ShutdownRequest;
use instar_client::{Failure, Goal, Node};
use serde_json::json;

use crate::cli::{Global, Wait};
use crate::follow::follow;
use crate::target;

pub(super) async fn run(global: &Global, force: bool, wait: Wait) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let act = async |node: &Node| {
        let reply = node
            .machine()
            .shutdown(node.request(ShutdownRequest { force }))
            .await;
        let reply = reply.map_err(|status| node.explain("did not shut down", status))?;
        Ok(node.only(reply.into_inner().messages)?.actor_id)
    };
    let (actor, seconds) = if wait.wanted() {
        let done = follow(&node, Goal::Stopped, wait.timeout, act).await?;
        (done.actor, Some(done.took.as_secs_f64()))
    } else {
        (act(&node).await?, None)
    };
    global.output.show(
        || match seconds {
            Some(seconds) => format!(
                "{}: everything stopped after {seconds:.1} s, it powers off",
                node.name()
            ),
            None => format!("{}: accepted, actor {actor}", node.name()),
        },
        || json!({ "node": node.name(), "actor_id": actor, "seconds": seconds }),
    )
}
