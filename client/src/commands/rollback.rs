//! `rollback`: a reboot into the other version on the node's disk.

use instar_client::{Failure, ask_for_rollback, roll_back};
use serde_json::json;

use crate::cli::{Global, Wait};
use crate::progress::ProgressDisplay;
use crate::target;

pub(super) async fn run(global: &Global, force: bool, wait: Wait) -> Result<(), Failure> {
    let node = target::one(global).await?;
    if !wait.wanted() {
        ask_for_rollback(&node, force).await?;
        return global.output.show(
            || format!("{}: accepted, it reboots", node.name()),
            || json!({ "node": node.name() }),
        );
    }
    let mut display = ProgressDisplay::new(node.name());
    let done = roll_back(&node, force, wait.timeout, &mut display).await;
    display.finish();
    let seconds = done?.took.as_secs_f64();
    global.output.show(
        || format!("{}: rolled back in {seconds:.1} s", node.name()),
        || json!({ "node": node.name(), "seconds": seconds }),
    )
}
