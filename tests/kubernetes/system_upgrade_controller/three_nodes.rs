//! A Plan over three machines with a concurrency of one: never two at once, also when the controller is ended at each step of each machine.

use std::collections::BTreeSet;

use anyhow::{Context as _, ensure};
use instar_tests::{Identity, Node, Outcome, Scratch, chapters};
use serde_json::Value;

use super::{
    CARRIED_OUT, NAMESPACE, Site, end_the_controller, start_the_controller, wait_for_the_controller,
};
use crate::PATIENCE;
use crate::cluster::Cluster;
use crate::cordons::Cordons;
use crate::node_upgrades::boot;

const NAMES: [&str; 3] = ["worker-1", "worker-2", "worker-3"];

/// The steps of a Plan on one machine, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The controller has made a job for it.
    Job,
    /// The job has cordoned it.
    Cordoned,
    /// It runs the version.
    Upgraded,
    /// The controller has noted that, and has uncordoned it.
    CarriedOut,
}

const STEPS: [Step; 4] = [Step::Job, Step::Cordoned, Step::Upgraded, Step::CarriedOut];

pub(super) async fn a_plan_takes_three_nodes_one_at_a_time(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let site = Site::prepare(&cluster, &scratch)?;
    let identity = Identity::administrator()?;
    let nodes = boot(&cluster, &identity, &NAMES, &scratch).await?;
    let mut cordons = Cordons::watch(cluster.plane.kubectl())?;
    chapters![
        a_controller_is_there(&nodes[0], &cluster, &site),
        its_end_at_each_step_stops_nothing(&nodes[0], &cluster, &site),
        one_was_away_at_a_time(&mut cordons),
        each_had_one_job(&cluster),
    ]
    .await
}

async fn a_controller_is_there(node: &Node, cluster: &Cluster, site: &Site) -> Outcome {
    start_the_controller(node, cluster, site).await?;
    wait_for_the_controller(node, cluster).await
}

async fn its_end_at_each_step_stops_nothing(
    node: &Node,
    cluster: &Cluster,
    site: &Site,
) -> Outcome {
    let plan = site.plan("os", "v0.2.0", "cordon: true");
    cluster.plane.kubectl().apply("os", &plan.yaml())?;
    let mut seen = Reached::new();
    while !is_over(&seen) {
        let new = next_steps(node, cluster, &seen).await?;
        println!("the controller ends at {new:?}");
        another_controller_takes_over(node, cluster).await?;
        seen.extend(new);
    }
    // A machine is cordoned for a while only: that step may pass while there is no controller, but not on all machines.
    let missed = STEPS.map(|step| seen.iter().filter(|(_, it)| *it == step).count());
    ensure!(
        !missed.contains(&0),
        "it was never ended at one of {STEPS:?}"
    );
    Ok(())
}

async fn another_controller_takes_over(node: &Node, cluster: &Cluster) -> Outcome {
    end_the_controller(node, cluster).await?;
    wait_for_the_controller(node, cluster).await
}

/// The steps that machines have shown.
type Reached = BTreeSet<(&'static str, Step)>;

fn is_over(seen: &Reached) -> bool {
    let mut names = NAMES.iter();
    names.all(|name| seen.contains(&(*name, Step::CarriedOut)))
}

/// Waits until a machine shows a step that none was seen at.
async fn next_steps(node: &Node, cluster: &Cluster, seen: &Reached) -> anyhow::Result<Reached> {
    node.wait_until("the next step", 3 * PATIENCE, async || {
        let new: Reached = reached(cluster)?.difference(seen).copied().collect();
        ensure!(!new.is_empty(), "nothing comes after {seen:?}");
        Ok(new)
    })
    .await
}

/// The steps that the machines show now.
fn reached(cluster: &Cluster) -> anyhow::Result<Reached> {
    let jobs = items(cluster, &["jobs", "-n", NAMESPACE])?;
    let nodes = items(cluster, &["nodes"])?;
    let mut reached = Reached::new();
    for name in NAMES {
        let node = nodes.iter().find(|node| node["metadata"]["name"] == name);
        let node = node.with_context(|| format!("no {name}"))?;
        let has_job = jobs.iter().any(|job| node_of(job) == name);
        let steps = STEPS.into_iter().zip(shown(node, has_job));
        reached.extend(steps.filter_map(|(step, is_shown)| is_shown.then_some((name, step))));
    }
    Ok(reached)
}

/// Which of the steps a machine shows, in their order.
fn shown(node: &Value, has_job: bool) -> [bool; 4] {
    let labels = &node["metadata"]["labels"];
    [
        has_job,
        node["spec"]["unschedulable"] == true,
        labels["instar.dev/version"] == "v0.2.0",
        labels[CARRIED_OUT].is_string(),
    ]
}

fn items(cluster: &Cluster, what: &[&str]) -> anyhow::Result<Vec<Value>> {
    let shown = cluster.plane.kubectl().get(what)?;
    let items = shown["items"].as_array().cloned();
    items.with_context(|| format!("no list of {what:?}"))
}

fn node_of(job: &Value) -> &str {
    let label = &job["metadata"]["labels"]["upgrade.cattle.io/node"];
    label.as_str().unwrap_or_default()
}

async fn one_was_away_at_a_time(cordons: &mut Cordons) -> Outcome {
    cordons.were_one_at_a_time(&NAMES)
}

async fn each_had_one_job(cluster: &Cluster) -> Outcome {
    let jobs = items(cluster, &["jobs", "-n", NAMESPACE])?;
    let mut nodes: Vec<&str> = jobs.iter().map(node_of).collect();
    nodes.sort_unstable();
    ensure!(nodes == NAMES, "{nodes:?}");
    Ok(())
}
