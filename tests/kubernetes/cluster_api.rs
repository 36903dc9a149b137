//! Machines of Cluster API that change in place: the real core manager calls the extension server.

mod callers;
mod control_planes;
mod kubernetes_and_config;
mod lab;
mod objects;
mod on_a_machine;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use instar_tests::{ControlPlane, Outcome, Scratch, Test, chapters, tests};
use serde_json::{Value, json};

use self::lab::{Lab, pool};
use self::objects::{condition, machine, machines, mark, uid};
use crate::node_upgrades::granted;

pub(crate) fn tests() -> Vec<Test> {
    [
        tests![the_manager_and_the_extension_agree],
        callers::tests(),
        control_planes::tests(),
        kubernetes_and_config::tests(),
        on_a_machine::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

const FIRST: &str = "registry.example/installer:v0.1.0";
const SECOND: &str = "registry.example/installer:v0.2.0";

/// The manager is real, and the node and its operator are objects that the test writes: each answer of the extension is seen by what the manager
/// makes of it.
async fn the_manager_and_the_extension_agree(scratch: Scratch) -> Outcome {
    let mut worker = Worker {
        lab: Lab::start(&scratch)?,
        uid: String::new(),
    };
    chapters![
        the_shipped_manifest_is_taken(&worker),
        the_extension_is_discovered(&worker),
        a_machine_becomes_a_node(&mut worker),
        a_machine_is_updated_in_place(&mut worker),
        what_cannot_change_in_place_stops_where_nothing_is_replaced(&worker),
        it_is_replaced_where_that_is_allowed(&worker),
        a_health_check_takes_one_that_is_not_updated(&mut worker),
        every_right_was_used(&worker),
    ]
    .await
}

async fn a_machine_is_updated_in_place(worker: &mut Worker) -> Outcome {
    chapters![
        another_image_makes_a_pool_and_protects_the_machine(worker),
        a_killed_extension_goes_on(worker),
        a_health_check_leaves_the_machine_alone(worker),
        a_failure_is_told_and_replaces_nothing(worker),
        the_update_ends_once_the_node_runs_the_image(worker),
    ]
    .await
}

/// The one Machine of the deployment.
struct Worker {
    lab: Lab,
    /// Its id.
    uid: String,
}

impl Worker {
    /// Waits until the Machine's condition `Updating` has these words, and its mark is there or not; it is still the same Machine.
    async fn is_updating(&self, words: &str, is_marked: bool) -> Outcome {
        let what = format!("the Machine is updating: {words}");
        self.lab
            .seen(&what, || {
                let machine = machine(&self.lab.plane)?;
                ensure!(uid(&machine) == self.uid, "it was replaced");
                let updating = condition(&machine, "Updating");
                ensure!(updating.contains(words), "{updating}");
                ensure!(mark(&machine).is_empty() != is_marked, "{machine:#}");
                println!("{updating}");
                Ok(())
            })
            .await
    }
}

/// By the API server and the manager's webhooks; the extension itself runs beside them here.
async fn the_shipped_manifest_is_taken(worker: &Worker) -> Outcome {
    let manifest = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../operator/deploy/instar-capi-extension.yaml"
    );
    let apply = ["apply", "--dry-run=server", "-f", manifest];
    println!("{}", worker.lab.plane.kubectl().run(&apply)?);
    Ok(())
}

async fn the_extension_is_discovered(worker: &Worker) -> Outcome {
    let settings = json!({"configPatchesPath": "/spec/strategicPatches"});
    worker.lab.register(&settings).await
}

async fn a_machine_becomes_a_node(worker: &mut Worker) -> Outcome {
    let lab = &mut worker.lab;
    lab.add_node("worker")?;
    objects::make_cluster(&lab.plane, FIRST)?;
    lab.nodes.push("control-plane".to_owned());
    worker.uid = lab.have_machine("worker").await?;
    Ok(())
}

async fn another_image_makes_a_pool_and_protects_the_machine(worker: &Worker) -> Outcome {
    let plane = &worker.lab.plane;
    let spec = json!({"osImage": SECOND, "memoryMiB": 1024});
    objects::template(plane, "v2", &spec)?;
    objects::roll(plane, "v2")?;
    let words = "the operator has not taken up the pool yet";
    worker.is_updating(words, true).await?;
    let pool = plane.kubectl().get(&[&pool(&worker.uid)])?;
    let selected = &pool["spec"]["nodeSelector"]["matchLabels"]["kubernetes.io/hostname"];
    ensure!(selected == "worker", "{pool:#}");
    ensure!(pool["spec"]["image"] == SECOND, "{pool:#}");
    let owner = &pool["metadata"]["ownerReferences"][0];
    ensure!(owner["kind"] == "Node", "{owner}");
    Ok(())
}

async fn a_killed_extension_goes_on(worker: &mut Worker) -> Outcome {
    worker.lab.extension.kill();
    worker
        .lab
        .operator_says(&worker.uid, "Rolling", "under way: worker", 0)?;
    worker.is_updating("InPlaceUpdateFailed", true).await?;
    worker.lab.extension.restart()?;
    worker.is_updating("under way: worker", true).await
}

/// A node that is not ready for a second is enough for this health check.
async fn a_health_check_leaves_the_machine_alone(worker: &Worker) -> Outcome {
    objects::make_health_check(&worker.lab.plane)?;
    worker.lab.are_sick.set(true);
    let seen = worker.lab.seen("the node is not ready", || {
        let healthy = condition(&machine(&worker.lab.plane)?, "NodeHealthy");
        ensure!(healthy.starts_with("False"), "{healthy}");
        Ok(())
    });
    seen.await?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    let machine = machine(&worker.lab.plane)?;
    ensure!(!is_going(&machine), "{machine:#}");
    worker.lab.are_sick.set(false);
    worker.is_updating("under way: worker", true).await
}

fn is_going(machine: &Value) -> bool {
    !machine["metadata"]["deletionTimestamp"].is_null()
}

/// So it was the mark that has kept it away before.
async fn a_health_check_takes_one_that_is_not_updated(worker: &mut Worker) -> Outcome {
    let lab = &mut worker.lab;
    // With the Machine its node was deleted.
    lab.nodes.retain(|node| node != "worker");
    lab.add_node("another")?;
    let uid = lab.have_machine("another").await?;
    lab.are_sick.set(true);
    let taken = lab.seen("it is taken", || is_taken(&lab.plane, &uid));
    taken.await
}

fn is_taken(plane: &ControlPlane, id: &str) -> Outcome {
    let machines = machines(plane)?;
    let left = machines.iter().find(|it| uid(it) == id);
    ensure!(left.is_none_or(is_going), "it is there");
    Ok(())
}

/// The mark is gone: a node that is dead may be remediated. A person has it tried again.
async fn a_failure_is_told_and_replaces_nothing(worker: &Worker) -> Outcome {
    worker
        .lab
        .operator_says(&worker.uid, "Halted", "stopped: the moon is full", 0)?;
    worker.is_updating("InPlaceUpdateFailed", false).await?;
    worker.lab.managers_log("the moon is full").await?;
    worker
        .lab
        .operator_says(&worker.uid, "Rolling", "once more: worker", 0)?;
    worker.is_updating("once more: worker", true).await
}

async fn the_update_ends_once_the_node_runs_the_image(worker: &Worker) -> Outcome {
    let lab = &worker.lab;
    lab.operator_says(&worker.uid, "Done", "1 of 1 nodes", 1)?;
    worker.is_updating("NotUpdating", false).await?;
    objects::no_pool_is_left(&lab.plane)?;
    let of_the_deployment = ["instarmachine", "-l", objects::OF_THE_DEPLOYMENT];
    let shown = lab.plane.kubectl().get(&of_the_deployment)?;
    let image = &shown["items"][0]["spec"]["osImage"];
    ensure!(image == SECOND, "{image}");
    Ok(())
}

async fn what_cannot_change_in_place_stops_where_nothing_is_replaced(worker: &Worker) -> Outcome {
    objects::never_replace(&worker.lab.plane, "true")?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    objects::template(
        &worker.lab.plane,
        "v3",
        &json!({"osImage": FIRST, "memoryMiB": 2048}),
    )?;
    objects::roll(&worker.lab.plane, "v3")?;
    let words = "take back infrastructure machine /spec/memoryMiB";
    worker.lab.managers_log(words).await?;
    tokio::time::sleep(Duration::from_secs(15)).await;
    worker.is_updating("NotUpdating", false).await
}

async fn it_is_replaced_where_that_is_allowed(worker: &Worker) -> Outcome {
    let lab = &worker.lab;
    objects::never_replace(&lab.plane, "false")?;
    let taken = lab.seen("it is replaced", || is_taken(&lab.plane, &worker.uid));
    taken.await?;
    objects::no_pool_is_left(&lab.plane)
}

/// The role names no kind of a provider, as every provider has its own.
async fn every_right_was_used(worker: &Worker) -> Outcome {
    let used = worker.lab.plane.audited("instar-capi-extension")?;
    let any = |verb: &String| {
        let verb = verb.replace("/instarmachines", "/*");
        verb.replace("/instarconfigs", "/*")
    };
    let used: BTreeSet<String> = used.iter().map(any).collect();
    let role = worker
        .lab
        .plane
        .kubectl()
        .get(&["clusterrole", "instar-capi-extension"])?;
    let granted = granted(&[role]);
    ensure!(used == granted, "used {used:#?}, granted {granted:#?}");
    Ok(())
}
