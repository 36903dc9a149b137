//! A Plan by a channel, with all that a cautious site sets: fetched ahead, the node emptied, a taint tolerated, a secret in the job.

use anyhow::{Context as _, ensure};
use instar_tests::{Channels, Greeter, HOST_FOR_GUEST, Node, Outcome, Scratch, chapters};
use serde_json::Value;

use super::{NAMESPACE, Site, the_controller_runs};
use crate::PATIENCE;
use crate::cluster::{Cluster, NAME};
use crate::manifests;
use crate::shown::wait_for_os;

/// The label of the node by which the controller knows that it has carried out the plan.
const CARRIED_OUT: &str = "plan.upgrade.cattle.io/channel";

pub(super) async fn a_plan_follows_a_channel(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let site = Site::prepare(&cluster, &scratch)?;
    let channels = channel(&cluster, &scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    chapters![
        the_controller_runs(&node, &cluster, &site),
        a_tainted_node_is_emptied_and_upgraded(&node, &cluster, &site, &channels),
        another_secret_has_the_job_run_again(&node, &cluster, &site),
    ]
    .await
}

/// A channel with the second version.
fn channel(cluster: &Cluster, scratch: &Scratch) -> anyhow::Result<Channels> {
    let channels = Channels::serve(scratch, &cluster.registry)?;
    channels.publish(&["create", "stable"])?;
    channels.add(
        "stable",
        &cluster.registry.installer_for_guest("v0.2.0"),
        &[],
    )?;
    Ok(channels)
}

async fn a_tainted_node_is_emptied_and_upgraded(
    node: &Node,
    cluster: &Cluster,
    site: &Site,
    channels: &Channels,
) -> Outcome {
    let before = run_the_answerer(node, cluster).await?;
    taint(cluster, "maintenance=yes:NoSchedule")?;
    begin(cluster, site, channels)?;
    wait_for_os(node, cluster, "v0.2.0").await?;
    is_carried_out(node, cluster, None).await?;
    the_job_had_all_of_it(cluster)?;
    taint(cluster, "maintenance-")?;
    another_pod_answers(node, &before).await
}

fn taint(cluster: &Cluster, taint: &str) -> Outcome {
    let kubectl = cluster.plane.kubectl();
    kubectl.run(&["taint", "node", NAME, taint]).map(drop)
}

/// The previous one had to go.
async fn another_pod_answers(node: &Node, before: &str) -> Outcome {
    node.wait_until("the pod that had to go is back", PATIENCE, async || {
        let now = Greeter::of(node)?.get("/since")?;
        ensure!(now != before, "it is the previous one");
        Ok(())
    })
    .await
}

/// A pod that a drain moves away. Returns when it began.
async fn run_the_answerer(node: &Node, cluster: &Cluster) -> anyhow::Result<String> {
    let kubectl = cluster.plane.kubectl();
    // The node's port is one pod's alone.
    kubectl.run(&[
        "delete",
        "pod",
        "--all",
        "--grace-period=1",
        "--timeout=60s",
    ])?;
    kubectl.apply("answerer", &manifests::answerer(&cluster.greeter()))?;
    node.wait_until("the pod answers", PATIENCE, async || {
        Greeter::of(node)?.get("/since")
    })
    .await
}

fn begin(cluster: &Cluster, site: &Site, channels: &Channels) -> Outcome {
    let kubectl = cluster.plane.kubectl();
    keep_secret(cluster, "one")?;
    let port = channels.address();
    let port = port.rsplit(':').next().context("no port")?;
    let channel = format!("channel: http://{HOST_FOR_GUEST}:{port}/stable");
    let plan = manifests::cautious_plan(&channel, &site.upgrade, &site.installer);
    kubectl.apply("channel", &plan)
}

fn keep_secret(cluster: &Cluster, word: &str) -> Outcome {
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: site, namespace: {NAMESPACE}}}\nstringData: {{word: {word}}}\n"
    );
    cluster.plane.kubectl().apply("secret", &secret)
}

/// Waits until the node has the hash of the plan, another one than before. Returns it.
async fn is_carried_out(
    node: &Node,
    cluster: &Cluster,
    before: Option<&str>,
) -> anyhow::Result<String> {
    node.wait_until("the plan is carried out", 2 * PATIENCE, async || {
        let shown = cluster.node()?;
        let hash = shown["metadata"]["labels"][CARRIED_OUT].as_str();
        let hash = hash.with_context(|| format!("{:#}", shown["metadata"]["labels"]))?;
        ensure!(Some(hash) != before, "the hash is that of before");
        ensure!(shown["spec"]["unschedulable"].is_null(), "it is cordoned");
        Ok(hash.to_owned())
    })
    .await
}

fn jobs(cluster: &Cluster) -> anyhow::Result<Vec<Value>> {
    let which = [
        "jobs",
        "-n",
        NAMESPACE,
        "-l",
        "upgrade.cattle.io/plan=channel",
    ];
    let shown = cluster.plane.kubectl().get(&which)?;
    Ok(shown["items"]
        .as_array()
        .context("no list of jobs")?
        .clone())
}

/// The version is the channel's; the image was fetched and the node emptied before.
fn the_job_had_all_of_it(cluster: &Cluster) -> Outcome {
    let jobs = jobs(cluster)?;
    let pod = &jobs.first().context("no job")?["spec"]["template"]["spec"];
    println!("{pod:#}");
    let first = ["/initContainers/0/name", "/initContainers/1/name"];
    let first = first.map(|name| pod.pointer(name).and_then(Value::as_str));
    ensure!(first == [Some("prepare"), Some("drain")], "{first:?}");
    let text = pod.to_string();
    for part in ["upgrade:v0.2.0", "/run/site", "maintenance"] {
        ensure!(text.contains(part), "{part} is missing");
    }
    Ok(())
}

/// The plan's hash has the secret in it. The node runs the version already, and nothing else happens. The controller looks at a Plan by a
/// channel at its interval alone, so the Plan gets the version first, which changes no hash.
async fn another_secret_has_the_job_run_again(
    node: &Node,
    cluster: &Cluster,
    site: &Site,
) -> Outcome {
    let (boot, before) = (
        node.boot_id().await?,
        is_carried_out(node, cluster, None).await?,
    );
    let plan = manifests::cautious_plan("version: v0.2.0", &site.upgrade, &site.installer);
    cluster.plane.kubectl().apply("channel", &plan)?;
    keep_secret(cluster, "two")?;
    is_carried_out(node, cluster, Some(&before)).await?;
    ensure!(boot == node.boot_id().await?, "it was upgraded again");
    Ok(())
}
