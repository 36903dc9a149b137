//! `upgrade --dry-run`: the effects of the upgrade on the node and on its containers.

use instar_api::instar::upgrade_service_client::UpgradeServiceClient;
use instar_api::instar::{ContainerPlan, UpgradePlanRequest, UpgradePlanResponse};
use instar_api::machine::UpgradeRequest;
use instar_client::{Failure, Node};
use serde_json::{Value, json};

use crate::cli::Global;
use crate::output::table;

pub(super) async fn run(
    global: &Global,
    node: &Node,
    upgrade: UpgradeRequest,
    erases: bool,
) -> Result<(), Failure> {
    let request = UpgradePlanRequest {
        upgrade: Some(upgrade),
    };
    let mut client = UpgradeServiceClient::new(node.channel());
    let reply = client.plan(node.request(request)).await;
    let plan = reply.map_err(|status| node.explain("would not take the upgrade", status))?;
    let plan = plan.into_inner();
    global.output.show(
        || text(node.name(), &plan, erases),
        || json(node.name(), &plan, erases),
    )
}

fn text(node: &str, plan: &UpgradePlanResponse, erases: bool) -> String {
    let (before, after) = (&plan.version_before, &plan.version);
    let how = match plan.reboot_reason.as_str() {
        _ if erases => "with a reboot, and erase EPHEMERAL".to_owned(),
        "" => "without a reboot".to_owned(),
        why => format!("with a reboot ({why})"),
    };
    let mut text =
        format!("{node}: would upgrade from {before} to {after} {how}; nothing has changed");
    for objection in &plan.overridden {
        text.push_str(&format!("\nforced, although {objection}"));
    }
    if !plan.containers.is_empty() {
        let rows: Vec<Vec<String>> = plan.containers.iter().map(row).collect();
        text.push('\n');
        text.push_str(&table(&["CONTAINER", "UPGRADE", "REASON"], &rows));
    }
    text
}

fn row(container: &ContainerPlan) -> Vec<String> {
    let fate = match container.lives_on {
        true => "lives on",
        false => "starts again",
    };
    vec![
        container.name.clone(),
        fate.to_owned(),
        container.reason.clone(),
    ]
}

fn json(node: &str, plan: &UpgradePlanResponse, erases: bool) -> Value {
    let containers = plan.containers.iter().map(|container| {
        json!({
            "name": container.name,
            "lives_on": container.lives_on,
            "reason": container.reason,
        })
    });
    json!({
        "node": node,
        "dry_run": true,
        "version_before": plan.version_before,
        "version_after": plan.version,
        "erases_ephemeral": erases,
        "reboot": !plan.reboot_reason.is_empty(),
        "reboot_reason": plan.reboot_reason,
        "overridden": plan.overridden,
        "digest": plan.digest,
        "created": plan.created,
        "containers": containers.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lives_on_and_who_does_not_is_told_with_the_reason() {
        let container = |name: &str, reason: &str| ContainerPlan {
            name: name.to_owned(),
            lives_on: reason.is_empty(),
            reason: reason.to_owned(),
        };
        let plan = UpgradePlanResponse {
            version_before: "v0.1.0".to_owned(),
            version: "v0.2.0".to_owned(),
            reboot_reason: String::new(),
            containers: vec![container("web", ""), container("tool", "it says restart")],
            overridden: vec!["it is old".to_owned()],
            ..UpgradePlanResponse::default()
        };
        let told = text("node-1", &plan, false);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(
            lines,
            [
                "node-1: would upgrade from v0.1.0 to v0.2.0 without a reboot; nothing has changed",
                "forced, although it is old",
                "CONTAINER  UPGRADE       REASON",
                "web        lives on",
                "tool       starts again  it says restart",
            ]
        );
        let reboot = UpgradePlanResponse {
            reboot_reason: "init is another one".to_owned(),
            containers: Vec::new(),
            ..plan
        };
        let told = text("node-1", &reboot, false);
        assert!(told.contains("with a reboot (init is another one)"));
        let told = text("node-1", &reboot, true);
        assert!(told.contains("with a reboot, and erase EPHEMERAL; nothing"));
        assert_eq!(json("node-1", &reboot, false)["reboot"], true);
    }
}
