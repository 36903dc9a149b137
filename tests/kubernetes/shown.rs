//! The state of a node as its cluster shows it, and of the node's pods.

use anyhow::{Context as _, ensure};
use instar_tests::{Node, Outcome};
use serde_json::Value;

use crate::PATIENCE;
use crate::cluster::Cluster;
use crate::manifests;

pub(crate) async fn wait_until_ready(node: &Node, cluster: &Cluster) -> Outcome {
    node.wait_until("the node is ready", PATIENCE, async || {
        let shown = cluster.node()?;
        ensure!(is_ready(&shown), "{}", shown["status"]["conditions"]);
        Ok(())
    })
    .await
}

pub(crate) async fn wait_for_os(node: &Node, cluster: &Cluster, version: &str) -> Outcome {
    node.wait_until("the node shows its new OS", PATIENCE, async || {
        let shown = os_image(&cluster.node()?)?;
        ensure!(shown.contains(version), "{shown}");
        Ok(())
    })
    .await
}

/// Waits until the node's label has this version: the node sets it itself.
pub(crate) async fn wait_for_version_label(
    node: &Node,
    cluster: &Cluster,
    version: &str,
) -> Outcome {
    node.wait_until("the node's label of its version", PATIENCE, async || {
        let shown = cluster.node()?;
        let metadata = &shown["metadata"];
        ensure!(
            metadata["labels"]["instar.dev/version"] == version,
            "{metadata:#}"
        );
        Ok(())
    })
    .await
}

/// Makes a new node ready: gives its pods a network.
pub(crate) async fn give_it_a_network(node: &Node, cluster: &Cluster) -> Outcome {
    let kubectl = cluster.plane.kubectl();
    kubectl.apply("network", &manifests::network(&cluster.greeter()))?;
    wait_until_ready(node, cluster).await?;
    tell_time(node, "it is ready").await
}

/// Waits until pods of these names are ready.
pub(crate) async fn wait_for_pods(node: &Node, cluster: &Cluster, names: &[&str]) -> Outcome {
    for name in names {
        node.wait_until("the pod is ready", PATIENCE, async || {
            let pod = cluster.pod(name)?;
            ensure!(is_ready(&pod), "{:#}", pod["status"]);
            Ok(())
        })
        .await?;
    }
    tell_time(node, "its pods are ready").await
}

pub(crate) async fn tell_time(node: &Node, what: &str) -> Outcome {
    println!("{what} {:.1?} after power-on", node.uptime().await?);
    Ok(())
}

/// Whether a node or a pod has the condition `Ready`.
pub(crate) fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    let mut all = conditions.into_iter().flatten();
    all.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Whether kubelet has ended a pod for a shutdown of its node.
pub(crate) fn is_ended_by_kubelet(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut all = conditions.into_iter().flatten();
    all.any(|condition| condition["reason"] == "TerminationByKubelet")
}

pub(crate) fn os_image(node: &Value) -> anyhow::Result<String> {
    let shown = node["status"]["nodeInfo"]["osImage"].as_str();
    Ok(shown.context("the node shows no OS")?.to_owned())
}

/// Waits until a new node has joined, and runs the pods `server` and `beat` on it.
pub(crate) async fn it_joins_and_runs_pods(node: &Node, cluster: &Cluster) -> Outcome {
    node.wait_until("the node appears", PATIENCE, async || cluster.node())
        .await?;
    give_it_a_network(node, cluster).await?;
    run_pods(node, cluster).await
}

/// Runs the pods `server` and `beat`.
pub(crate) async fn run_pods(node: &Node, cluster: &Cluster) -> Outcome {
    let kubectl = cluster.plane.kubectl();
    kubectl.apply("server", &manifests::server(&cluster.greeter()))?;
    wait_for_pods(node, cluster, &["server", "beat"]).await
}
