//! `reboot`: the whole machine, kernel and all.

use instar_api::machine::RebootRequest;
use instar_api::machine::reboot_request::Mode;
use instar_client::{Failure, Goal, Node};
use serde_json::json;

use crate::cli::{Global, RebootMode, Wait};
use crate::follow::follow;
use crate::target;

pub(super) async fn run(global: &Global, mode: RebootMode, wait: Wait) -> Result<(), Failure> {
    let node = target::one(global).await?;
    let mode = match mode {
        RebootMode::Default => Mode::Default,
        RebootMode::Powercycle => Mode::Powercycle,
        RebootMode::Force => Mode::Force,
        RebootMode::Kexec => Mode::Kexec,
    };
    let act = async |node: &Node| {
        let reply = node
            .machine()
            .reboot(node.request(RebootRequest { mode: mode.into() }))
            .await;
        let reply = reply.map_err(|status| node.explain("did not reboot", status))?;
        Ok(node.only(reply.into_inner().messages)?.actor_id)
    };
    if !wait.wanted() {
        let actor = act(&node).await?;
        return global.output.show(
            || format!("{}: accepted, actor {actor}", node.name()),
            || json!({ "node": node.name(), "actor_id": actor }),
        );
    }
    let done = follow(&node, Goal::NewBoot, wait.timeout, act).await?;
    let (before, after) = done.boot_ids.unzip();
    global.output.show(
        || {
            format!(
                "{}: rebooted in {:.1} s",
                node.name(),
                done.took.as_secs_f64()
            )
        },
        || {
            json!({
                "node": node.name(),
                "actor_id": done.actor,
                "boot_id_before": before,
                "boot_id_after": after,
                "seconds": done.took.as_secs_f64(),
            })
        },
    )
}
