//! A machine joins a cluster by its config, runs pods, and is upgraded under them.

use anyhow::{Context as _, ensure};
use instar_tests::{
    Ending, Greeter, Node, Outcome, Scratch, Test, chapters, tests, upgrade_and_follow,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::cluster::{Cluster, NAME};
use crate::manifests;
use crate::operator::Operator;
use crate::watched_node::WatchedNode;

/// The pod that answers at the greeter's port.
const SERVER: &str = "server";

pub(crate) fn tests() -> Vec<Test> {
    tests![joins_runs_pods_and_is_upgraded_under_them]
}

async fn joins_runs_pods_and_is_upgraded_under_them(scratch: Scratch) -> Outcome {
    let cluster = Cluster::start(&scratch)?;
    let node = cluster.plan_node(&scratch)?.boot().await?;
    chapters![
        it_appears_in_the_cluster(&node, &cluster),
        its_certificate_was_approved(&cluster),
        it_has_the_labels_and_taints_of_its_config(&cluster),
        it_is_ready_once_pods_have_a_network(&node, &cluster),
        a_pod_runs_and_answers(&node, &cluster),
        kubelet_says_what_it_does(&node, &scratch),
        the_os_is_upgraded_under_the_pods(&node, &cluster),
        an_extension_that_is_not_there_hurts_nothing(&node, &cluster, &scratch),
    ]
    .await
}

async fn it_appears_in_the_cluster(node: &Node, cluster: &Cluster) -> Outcome {
    let shown = node.wait_until("the node appears", PATIENCE, async || cluster.node());
    let shown = shown.await?;
    println!("{}", shown["status"]["nodeInfo"]);
    println!("it has joined {:.1?} after power-on", node.uptime().await?);
    ensure!(os_image(&shown)?.contains("v0.1.0"), "{shown:#}");
    Ok(())
}

async fn its_certificate_was_approved(cluster: &Cluster) -> Outcome {
    let listed = cluster.plane.kubectl().get(&["csr"])?;
    let all = listed["items"].as_array().context("no list")?;
    let granted = all.iter().find(|request| {
        let spec = &request["spec"];
        spec["username"] == "system:bootstrap:abcdef"
            && spec["signerName"] == "kubernetes.io/kube-apiserver-client-kubelet"
            && request["status"]["certificate"].is_string()
    });
    ensure!(granted.is_some(), "{listed:#}");
    Ok(())
}

async fn it_has_the_labels_and_taints_of_its_config(cluster: &Cluster) -> Outcome {
    let shown = cluster.node()?;
    let rack = &shown["metadata"]["labels"]["example.org/rack"];
    ensure!(rack == "r1", "{shown:#}");
    let taints = shown["spec"]["taints"].as_array().context("no taints")?;
    let slow = taints.iter().any(|taint| {
        taint["key"] == "example.org/slow"
            && taint["value"] == "emulated"
            && taint["effect"] == "PreferNoSchedule"
    });
    ensure!(slow, "{shown:#}");
    Ok(())
}

async fn it_is_ready_once_pods_have_a_network(node: &Node, cluster: &Cluster) -> Outcome {
    ensure!(!is_ready(&cluster.node()?), "it is ready without a network");
    let image = cluster.registry.image_for_guest("greeter:v1");
    let kubectl = cluster.plane.kubectl();
    kubectl.apply("network", &manifests::network(&image))?;
    node.wait_until("the node is ready", PATIENCE, async || {
        let shown = cluster.node()?;
        ensure!(is_ready(&shown), "{}", shown["status"]["conditions"]);
        Ok(())
    })
    .await?;
    println!("it is ready {:.1?} after power-on", node.uptime().await?);
    Ok(())
}

async fn a_pod_runs_and_answers(node: &Node, cluster: &Cluster) -> Outcome {
    let image = cluster.registry.image_for_guest("greeter:v1");
    let manifest = manifests::server(&image);
    cluster.plane.kubectl().apply(SERVER, &manifest)?;
    let greeter = Greeter::of(node)?;
    node.wait_until("the pod is ready", PATIENCE, async || {
        let pod = cluster.pod(SERVER)?;
        ensure!(is_ready(&pod), "{:#}", pod["status"]);
        Ok(())
    })
    .await?;
    println!(
        "its pod is ready {:.1?} after power-on",
        node.uptime().await?
    );
    greeter.greets()
}

async fn kubelet_says_what_it_does(node: &Node, scratch: &Scratch) -> Outcome {
    let client = Operator::of(node, scratch)?;
    let said = client.run(&["logs", "kubernetes"]).await?;
    let of_kubelet = said
        .output
        .lines()
        .filter(|line| line.contains("kubelet: "));
    ensure!(of_kubelet.count() > 0, "{said:?}");
    Ok(())
}

/// The facts that an upgrade without a reboot leaves as they are.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    boot: Value,
    container: Value,
    restarts: Value,
    started: String,
}

impl Kept {
    fn of(node: &Node, cluster: &Cluster) -> anyhow::Result<Self> {
        let pod = cluster.pod(SERVER)?;
        let container = &pod["status"]["containerStatuses"][0];
        Ok(Self {
            boot: cluster.node()?["status"]["nodeInfo"]["bootID"].clone(),
            container: container["containerID"].clone(),
            restarts: container["restartCount"].clone(),
            started: Greeter::of(node)?.get("/since")?,
        })
    }
}

async fn the_os_is_upgraded_under_the_pods(node: &Node, cluster: &Cluster) -> Outcome {
    let before = Kept::of(node, cluster)?;
    let watched = WatchedNode::start(cluster.plane.kubectl(), NAME)?;
    let image = cluster.registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    wait_for_os(node, cluster, "v0.2.0").await?;
    let after = Kept::of(node, cluster)?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    let seen = watched.end()?;
    println!("{seen:#?}");
    ensure!(
        seen.iter().all(|line| line.starts_with("True ")),
        "{seen:#?}"
    );
    Ok(())
}

async fn wait_for_os(node: &Node, cluster: &Cluster, version: &str) -> Outcome {
    node.wait_until("the node shows its new OS", PATIENCE, async || {
        let shown = os_image(&cluster.node()?)?;
        ensure!(shown.contains(version), "{shown}");
        Ok(())
    })
    .await
}

/// A reference that leads nowhere is refused or reported, and the pods and their node go on.
async fn an_extension_that_is_not_there_hurts_nothing(
    node: &Node,
    cluster: &Cluster,
    scratch: &Scratch,
) -> Outcome {
    let before = Kept::of(node, cluster)?;
    let missing = cluster.registry.image_for_guest("extensions/nobody:v1");
    let broken = cluster
        .config(node.identity())
        .extension("nobody", &missing);
    let file = scratch.write("broken.yaml", broken.to_yaml())?;
    let file = file.to_str().context("a path that is no text")?;
    let client = Operator::of(node, scratch)?;
    let applied = client.run(&["apply-config", "-f", file]).await?;
    println!("{applied:?}");
    it_is_told(node, &client, "extensions/nobody").await?;
    let after = Kept::of(node, cluster)?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    ensure!(is_ready(&cluster.node()?), "the node is not ready");
    Ok(())
}

async fn it_is_told(node: &Node, client: &Operator<'_>, what: &str) -> Outcome {
    node.wait_until("the failure is told", PATIENCE, async || {
        let said = client.run(&["get", "pins", "-o", "yaml"]).await?;
        let told = said.output.contains(what) && said.output.contains("not found");
        ensure!(told, "{said:?}");
        println!("{}", said.output);
        Ok(())
    })
    .await
}

/// Whether a node or a pod has the condition `Ready`.
fn is_ready(object: &Value) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn os_image(node: &Value) -> anyhow::Result<String> {
    let shown = node["status"]["nodeInfo"]["osImage"].as_str();
    Ok(shown.context("the node shows no OS")?.to_owned())
}
