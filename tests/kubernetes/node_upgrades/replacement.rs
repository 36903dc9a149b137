//! A pool whose nodes are replaced by a version: nothing is left on EPHEMERAL, and the node joins again.

use anyhow::ensure;
use instar_tests::{Outcome, Scratch, chapters};

use super::eventually;
use super::fleet::{Fleet, NAMES, the_engine_comes_to_the_same_actions};
use super::told::{Told, has_event};
use crate::shown::is_ready;

const STRATEGY: &str = "  strategy: Replace\n";
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

pub(super) async fn a_pool_replaces_its_node(scratch: Scratch) -> Outcome {
    let fleet = Fleet::start_from_disk(&scratch).await?;
    chapters![
        without_the_administrators_consent_nothing_is_erased(&fleet),
        a_member_of_etcd_is_not_replaced(&fleet),
        pods_that_may_not_leave_keep_their_node(&fleet),
        a_node_is_replaced_and_joins_again(&fleet),
        the_way_back_erases_nothing(&fleet),
        the_engine_comes_to_the_same_actions(&fleet),
    ]
    .await
}

async fn without_the_administrators_consent_nothing_is_erased(fleet: &Fleet) -> Outcome {
    fleet.roll(&fleet.image("v0.2.0"), STRATEGY)?;
    fleet.told("Invalid", "may not replace machines").await?;
    let shown = Told::of(&fleet.cluster.plane, "lab")?;
    ensure!(
        shown.condition("Valid") == "False/NoReplaceRights",
        "{shown:?}"
    );
    ensure!(!fleet.is_cordoned(NAMES[0])?, "it is cordoned");
    Ok(())
}

async fn a_member_of_etcd_is_not_replaced(fleet: &Fleet) -> Outcome {
    let kubectl = fleet.cluster.plane.kubectl();
    kubectl.run(&["label", "node", NAMES[0], &format!("{CONTROL_PLANE}=")])?;
    fleet.give_it_all_rights()?;
    fleet.told("Invalid", "its etcd would be lost").await?;
    let shown = Told::of(&fleet.cluster.plane, "lab")?;
    ensure!(shown.condition("Valid") == "False/BadStrategy", "{shown:?}");
    Ok(())
}

/// As before an upgrade by a reboot: the node is not asked while its budget forbids it.
async fn pods_that_may_not_leave_keep_their_node(fleet: &Fleet) -> Outcome {
    let held = fleet.run_guarded_pod(NAMES[0]).await?;
    let rest = format!("{STRATEGY}  drain: {{timeout: 20s}}\n");
    fleet.roll(&fleet.image("v0.2.0"), &rest)?;
    let kubectl = fleet.cluster.plane.kubectl();
    kubectl.run(&["label", "node", NAMES[0], &format!("{CONTROL_PLANE}-")])?;
    fleet.told("Halted", "disruption budget").await?;
    ensure!(fleet.guarded_pod()? == held, "the pod was replaced");
    ensure!(erasures(fleet) == 0, "EPHEMERAL was erased");
    kubectl.run(&["delete", "pdb", "guarded"]).map(drop)
}

async fn a_node_is_replaced_and_joins_again(fleet: &Fleet) -> Outcome {
    let kubectl = fleet.cluster.plane.kubectl();
    let before = kubectl.get(&["node", NAMES[0]])?;
    fleet.command("retry").await?;
    fleet.told("Done", "1 of 1 nodes run v0.2.0").await?;
    fleet.wait_until_uncordoned(NAMES[0]).await?;
    let after = kubectl.get(&["node", NAMES[0]])?;
    ensure!(is_ready(&after), "{:#}", after["status"]);
    let is_same = after["metadata"]["uid"] == before["metadata"]["uid"];
    ensure!(is_same, "it is another node");
    ensure!(erasures(fleet) == 1, "{} erasures", erasures(fleet));
    let node = ("Node", NAMES[0]);
    has_event(&fleet.cluster.plane, node, "Upgraded", "v0.2.0").await?;
    fleet.run_guarded_pod(NAMES[0]).await.map(drop)
}

/// Nothing of before is left to go back to.
async fn the_way_back_erases_nothing(fleet: &Fleet) -> Outcome {
    fleet.command("rollback").await?;
    fleet.told("WentBack", "").await?;
    fleet.wait_for_label(NAMES[0], "v0.1.0").await?;
    ensure!(erasures(fleet) == 1, "{} erasures", erasures(fleet));
    eventually("the pod runs", || fleet.guarded_pod())
        .await
        .map(drop)
}

/// How often EPHEMERAL was erased for a version that replaces the machine.
fn erasures(fleet: &Fleet) -> usize {
    let consoles = fleet.nodes.iter().map(|node| node.vm().console());
    consoles
        .map(|console| console.matches("this machine was replaced by").count())
        .sum()
}
