//! Kubernetes and the config of a Machine change in place: the manager is real, and the node and its operator are objects.

use std::time::Duration;

use anyhow::ensure;
use instar_tests::{Outcome, Scratch, Test, chapters, tests};
use serde_json::{Value, json};

use super::callers::{Caller, UPDATE};
use super::lab::{Lab, pool};
use super::objects::{self, machine};
use super::{FIRST, Worker};

pub(super) fn tests() -> Vec<Test> {
    tests![kubernetes_and_the_config_change_in_place]
}

const NODE: &str = "worker";
/// The version of the deployment at first.
const OLD: &str = "v1.36.3";
const NEXT: &str = "v1.37.0";
/// The patches by which the node gets a version, and another config of kubelet.
const WITH_OLD: &str = "kind: ExtensionConfig\nname: kubernetes\nimage: r/k:v1.36.3\n";
const WITH_NEXT: &str = "kind: ExtensionConfig\nname: kubernetes\nimage: r/k:v1.37.0\n";
const MORE_PODS: &str = "machine: {kubelet: {extraConfig: {maxPods: 200}}}";

async fn kubernetes_and_the_config_change_in_place(scratch: Scratch) -> Outcome {
    let mut worker = Worker {
        lab: Lab::start(&scratch)?,
        uid: String::new(),
    };
    chapters![
        a_machine_has_its_version(&mut worker),
        settings_that_nobody_wrote_change_nothing(&worker),
        kubernetes_is_updated_in_place(&worker),
        an_appended_patch_makes_a_pool(&worker),
        the_update_ends_with_the_pool(&worker),
        a_version_two_minor_ones_away_changes_nothing(&worker),
        a_version_of_before_changes_nothing(&worker),
        a_patch_that_is_taken_away_changes_nothing(&worker),
    ]
    .await
}

async fn kubernetes_is_updated_in_place(worker: &Worker) -> Outcome {
    chapters![
        the_next_version_makes_a_pool_with_its_patch(worker),
        the_update_waits_for_the_word_of_kubelet(worker),
        the_update_ends_by_the_word_of_kubelet(worker),
    ]
    .await
}

async fn a_machine_has_its_version(worker: &mut Worker) -> Outcome {
    let lab = &mut worker.lab;
    let settings = json!({
        "neverReplace": "true", "configPatchesPath": "/spec/strategicPatches",
        "kubernetesPatch": WITH_OLD.replace(OLD, "{version}"),
    });
    lab.register(&settings).await?;
    lab.add_node(NODE)?;
    lab.kubelet_tells(NODE, OLD)?;
    objects::make_cluster(&lab.plane, FIRST)?;
    lab.nodes.push("control-plane".to_owned());
    worker.uid = lab.have_machine(NODE).await?;
    Ok(())
}

/// A caller in reach of the extension names a patch of its own.
async fn settings_that_nobody_wrote_change_nothing(worker: &Worker) -> Outcome {
    let lab = &worker.lab;
    let metadata = machine(&lab.plane)?["metadata"].clone();
    let infrastructure = "infrastructure.cluster.x-k8s.io/v1alpha1";
    let request = json!({
        "settings": {"kubernetesPatch": "machine: {env: {OURS: '{version}'}}"},
        "desired": {"machine": {"metadata": metadata}, "infrastructureMachine": {"apiVersion": infrastructure}},
    });
    let caller = Caller::of(&lab.plane, &lab.extension)?;
    let answer = caller.hook(UPDATE, &request.to_string()).await?;
    let message = answer["message"].as_str().unwrap_or_default();
    ensure!(message.contains("no ExtensionConfig"), "{answer}");
    objects::no_pool_is_left(&lab.plane)
}

/// The pool that updates the node, whose patches are these.
fn pool_has(worker: &Worker, patches: &[&str]) -> Outcome {
    let kubectl = worker.lab.plane.kubectl();
    let pool = kubectl.get(&[&pool(&worker.uid)])?;
    ensure!(pool["spec"]["configPatches"] == json!(patches), "{pool:#}");
    ensure!(pool["spec"]["image"] == FIRST, "{pool:#}");
    Ok(())
}

async fn the_next_version_makes_a_pool_with_its_patch(worker: &Worker) -> Outcome {
    objects::roll_version(&worker.lab.plane, NEXT)?;
    let words = "the operator has not taken up the pool yet";
    worker.is_updating(words, true).await?;
    pool_has(worker, &[WITH_NEXT])
}

async fn the_update_waits_for_the_word_of_kubelet(worker: &Worker) -> Outcome {
    let lab = &worker.lab;
    lab.operator_says(&worker.uid, "Done", "1 of 1 nodes", 1)?;
    let words = "kubelet tells v1.36.3, and not v1.37.0 yet";
    worker.is_updating(words, true).await
}

async fn the_update_ends_by_the_word_of_kubelet(worker: &Worker) -> Outcome {
    worker.lab.kubelet_tells(NODE, NEXT)?;
    worker.is_updating("NotUpdating", false).await?;
    let machine = machine(&worker.lab.plane)?;
    ensure!(machine["spec"]["version"] == NEXT, "{machine:#}");
    objects::no_pool_is_left(&worker.lab.plane)
}

async fn an_appended_patch_makes_a_pool(worker: &Worker) -> Outcome {
    objects::roll_patches(&worker.lab.plane, "more-pods", &[MORE_PODS])?;
    let words = "the operator has not taken up the pool yet";
    worker.is_updating(words, true).await?;
    pool_has(worker, &[MORE_PODS, WITH_NEXT])
}

async fn the_update_ends_with_the_pool(worker: &Worker) -> Outcome {
    let lab = &worker.lab;
    lab.operator_says(&worker.uid, "Done", "1 of 1 nodes", 1)?;
    worker.is_updating("NotUpdating", false).await?;
    let of_the_deployment = ["instarconfig", "-l", objects::OF_THE_DEPLOYMENT];
    let shown = lab.plane.kubectl().get(&of_the_deployment)?;
    let patches = &shown["items"][0]["spec"]["strategicPatches"];
    ensure!(*patches == json!([MORE_PODS]), "{shown:#}");
    objects::no_pool_is_left(&lab.plane)
}

/// The manager tells why it stops, and the same Machine goes on as it was.
async fn nothing_changes(worker: &Worker, words: &str) -> Outcome {
    worker.lab.managers_log(words).await?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    worker.is_updating("NotUpdating", false).await?;
    let machine: Value = machine(&worker.lab.plane)?;
    ensure!(machine["spec"]["version"] == NEXT, "{machine:#}");
    objects::no_pool_is_left(&worker.lab.plane)
}

async fn a_version_two_minor_ones_away_changes_nothing(worker: &Worker) -> Outcome {
    objects::roll_version(&worker.lab.plane, "v1.39.0")?;
    nothing_changes(worker, "Kubernetes goes to the next minor version at most").await
}

async fn a_version_of_before_changes_nothing(worker: &Worker) -> Outcome {
    objects::roll_version(&worker.lab.plane, OLD)?;
    nothing_changes(worker, "Kubernetes does not go back").await
}

async fn a_patch_that_is_taken_away_changes_nothing(worker: &Worker) -> Outcome {
    objects::roll_version(&worker.lab.plane, NEXT)?;
    objects::roll_patches(&worker.lab.plane, "fewer", &[])?;
    nothing_changes(worker, "patches are only appended").await
}
