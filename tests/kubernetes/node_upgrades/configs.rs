//! A pool changes the configs of its nodes one by one, and takes a bad one back.

use anyhow::ensure;
use instar_tests::{Outcome, Scratch, chapters};

use super::eventually;
use super::fleet::{Fleet, NAMES, the_engine_comes_to_the_same_actions};
use super::told::{Told, column, has_event};

/// The label that the patches give to nodes.
const LABEL: &str = "example.org/batch";

pub(super) async fn a_pool_configures_its_nodes_one_by_one(scratch: Scratch) -> Outcome {
    let fleet = Fleet::start(&scratch).await?;
    chapters![
        without_the_administrators_consent_nothing_changes(&fleet),
        a_patch_goes_from_node_to_node(&fleet),
        a_version_goes_before_a_config(&fleet),
        pods_leave_before_their_extensions_change(&fleet),
        a_bad_config_stops_after_the_first_node_and_is_taken_back(&fleet),
        a_node_that_failed_tries_it_again(&fleet),
        a_config_that_a_node_refuses_begins_nowhere(&fleet),
        each_right_to_secrets_was_used(&fleet),
        the_engine_comes_to_the_same_actions(&fleet),
    ]
    .await
}

/// A patch that gives nodes the label with this value.
fn batch(value: &str) -> String {
    format!("apiVersion: v1alpha1\nkind: KubeNodeConfig\nlabels: {{{LABEL}: \"{value}\"}}\n")
}

/// With it a node has another label, and is never ready: nobody has the image.
fn never_ready() -> String {
    let image = "127.0.0.1:9/web:v1";
    let web = format!("apiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: {image}\n");
    format!("{}---\n{web}", batch("bad"))
}

/// Has the pool name these patches; `rest` are more lines of its spec.
fn configure(fleet: &Fleet, patches: &[String], rest: &str) -> Outcome {
    let patches = serde_json::to_string(patches)?;
    let pool = format!(
        "apiVersion: instar.dev/v1alpha1\nkind: Pool\nmetadata: {{name: lab}}\n\
         spec:\n  nodeSelector: {{matchLabels: {{rack: r1}}}}\n  configPatches: {patches}\n{rest}"
    );
    fleet.cluster.plane.kubectl().apply("lab", &pool)
}

async fn nodes_are_labelled(fleet: &Fleet, value: &str) -> Outcome {
    for name in NAMES {
        eventually(&format!("{name} is of batch {value}"), || {
            let shown = fleet.cluster.plane.kubectl().get(&["node", name])?;
            let labels = &shown["metadata"]["labels"];
            ensure!(labels[LABEL] == value, "{labels:#}");
            Ok(())
        })
        .await?;
        fleet.wait_until_uncordoned(name).await?;
    }
    Ok(())
}

async fn without_the_administrators_consent_nothing_changes(fleet: &Fleet) -> Outcome {
    configure(fleet, &[batch("1")], "")?;
    fleet.told("Invalid", "role os:admin").await?;
    let shown = Told::of(&fleet.cluster.plane, "lab")?;
    ensure!(
        shown.condition("Valid") == "False/NoConfigRights",
        "{shown:?}"
    );
    for name in NAMES {
        ensure!(!fleet.is_cordoned(name)?, "{name} is cordoned");
    }
    Ok(())
}

/// The consent comes while the operator runs, as a Secret does.
async fn a_patch_goes_from_node_to_node(fleet: &Fleet) -> Outcome {
    let plane = &fleet.cluster.plane;
    fleet.give_it_all_rights()?;
    fleet.told("Done", "2 of 2 nodes have config").await?;
    nodes_are_labelled(fleet, "1").await?;
    fleet.never_two_at_once(&NAMES)?;
    fleet.print(&["get", "pools"])?;
    fleet.print(&["get", "nodeupgrades"])?;
    let first = ("Node", NAMES[0]);
    has_event(plane, first, "Configured", "has config").await
}

async fn a_version_goes_before_a_config(fleet: &Fleet) -> Outcome {
    let image = format!("  image: {}\n", fleet.image("v0.2.0"));
    configure(fleet, &[batch("2")], &image)?;
    fleet.told("Done", "2 of 2 nodes have config").await?;
    nodes_are_labelled(fleet, "2").await?;
    let kubectl = fleet.cluster.plane.kubectl();
    let last = kubectl.get(&["nodeupgrade", &format!("lab.{}.2", NAMES[1])])?;
    let first = kubectl.get(&["nodeupgrade", &format!("lab.{}.3", NAMES[0])])?;
    let kinds = (&last["spec"]["kind"], &first["spec"]["kind"]);
    ensure!(kinds.0 == "Version" && kinds.1 == "Config", "{kinds:?}");
    let (ended, began) = (column(&last, "ended"), column(&first, "began"));
    ensure!(
        ended <= began,
        "the config began at {began}, the version ended at {ended}"
    );
    Ok(())
}

/// Their budget forbids it, so the node is not asked: nobody has this image.
async fn pods_leave_before_their_extensions_change(fleet: &Fleet) -> Outcome {
    let held = fleet.run_guarded_pod(NAMES[0]).await?;
    let extension = "apiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig\nname: kubernetes\n";
    let image = fleet
        .cluster
        .registry
        .image_for_guest("extensions/kubernetes:none");
    let patch = format!("{extension}image: {image}\n");
    configure(fleet, &[patch], "  drain: {timeout: 20s}\n")?;
    fleet.told("Halted", "disruption budget").await?;
    ensure!(fleet.guarded_pod()? == held, "the pod was replaced");
    let kubectl = fleet.cluster.plane.kubectl();
    kubectl
        .run(&["delete", "deployment,pdb", "guarded"])
        .map(drop)
}

async fn a_bad_config_stops_after_the_first_node_and_is_taken_back(fleet: &Fleet) -> Outcome {
    let plane = &fleet.cluster.plane;
    configure(fleet, &[never_ready()], "")?;
    fleet.told("Halted", "its previous config").await?;
    let shown = Told::of(plane, "lab")?;
    ensure!(shown.condition("Failed") == "True/NodeFailed", "{shown:?}");
    let first = ("Node", NAMES[0]);
    has_event(plane, first, "ConfigFailed", "previous config").await?;
    let second = format!("lab.{}.5", NAMES[1]);
    fleet.wait_for_phase(&second, "Waiting").await?;
    nodes_are_labelled(fleet, "2").await
}

/// It fails as before; the previous config is kept once more for it.
async fn a_node_that_failed_tries_it_again(fleet: &Fleet) -> Outcome {
    let first = format!("lab.{}.5", NAMES[0]);
    fleet.command("retry").await?;
    fleet.wait_for_phase(&first, "Upgrading").await?;
    fleet.told("Halted", "its previous config").await?;
    nodes_are_labelled(fleet, "2").await
}

async fn a_config_that_a_node_refuses_begins_nowhere(fleet: &Fleet) -> Outcome {
    configure(fleet, &["machine: {type: emperor}".to_owned()], "")?;
    fleet.told("Invalid", "emperor").await?;
    let shown = Told::of(&fleet.cluster.plane, "lab")?;
    ensure!(
        shown.condition("Valid") == "False/ConfigRefused",
        "{shown:?}"
    );
    configure(fleet, &[batch("3")], "")?;
    fleet.told("Done", "2 of 2 nodes have config").await?;
    nodes_are_labelled(fleet, "3").await
}

async fn each_right_to_secrets_was_used(fleet: &Fleet) -> Outcome {
    let used = fleet.cluster.plane.audited("instar-operator")?;
    for verb in ["get", "create", "update", "deletecollection"] {
        let right = format!("{verb} secrets");
        ensure!(used.contains(&right), "no {right}: {used:#?}");
    }
    Ok(())
}
