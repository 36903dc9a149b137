//! `rollback`: a reboot into the other version on the node's disk.

use instar_api::machine::RollbackRequest;
use instar_client::{Failure, Goal, Node};
use serde_json::json;

use crate::cli::{Global, Wait};
use crate::follow::follow;
use crate::target;

pub(super) async fn run(global: &Global, force: bool, wait: Wait) -> Result<(), Failure> {
    let node = target::one(global).await?;
    // The reply names no actor: the boot id shows when it is done.
    let act = async |node: &Node| {
        let reply = node
            .machine()
            .rollback(node.request(RollbackRequest { force }))
            .await;
        let reply = reply.map_err(|status| node.explain("did not roll back", status))?;
        node.only(reply.into_inner().messages)?;
        Ok(String::new())
    };
    if !wait.wanted() {
        act(&node).await?;
        return global.output.show(
            || format!("{}: accepted, it reboots", node.name()),
            || json!({ "node": node.name() }),
        );
    }
    let done = follow(&node, Goal::NewBoot, wait.timeout, act).await?;
    let seconds = done.took.as_secs_f64();
    global.output.show(
        || format!("{}: rolled back in {seconds:.1} s", node.name()),
        || json!({ "node": node.name(), "seconds": seconds }),
    )
}
