//! One machine is a whole cluster: it begins by a call, runs pods, and the OS and Kubernetes are replaced under them.

use anyhow::{Context as _, ensure};
use instar_tests::{
    Ending, Greeter, HeldConnection, Node, Outcome, Scratch, Test, chapters, gives_up_soon,
    guest_program, push_extension_with, tests, upgrade_and_follow,
};
use serde_json::json;

use crate::START;
use crate::asked_api_server::AskedApiServer;
use crate::cluster::BEAT_PORT;
use crate::manifests;
use crate::own_cluster::{Host, LATER, NAME, NEXT, Own};
use crate::shown::{is_ready, os_image, tell_time};
use crate::watched_node::WatchedNode;

/// The file of an extension that says its version of Kubernetes.
const VERSION: &str = "usr/local/share/kubernetes-version";

/// The label of nodes that run Instar, and the name of one that is an object alone.
const VERSION_LABEL: &str = "instar.dev/version";
const OTHER: &str = "worker-9";

/// The machine's line about the snapshot before another version.
const SNAPSHOT: &str = "etcd's data of before are in";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_machine_is_a_cluster]
}

async fn a_machine_is_a_cluster(scratch: Scratch) -> Outcome {
    let host = Host::start(&scratch).await?;
    let node = host.plan(&scratch)?.boot().await?;
    let own = Own::of(&node, &scratch)?;
    chapters![
        a_cluster_begins_by_a_call(&own, &node),
        its_kubeconfig_opens_its_api(&own, &node),
        it_is_ready_once_pods_have_a_network(&own, &node, &host),
        a_deployment_answers(&own, &node, &host),
        its_programs_are_looked_after(&own, &node, &scratch),
        the_os_is_upgraded_under_the_cluster(&own, &node, &host),
        kubernetes_is_upgraded(&own, &node, &host),
        a_broken_kubelet_is_gone_back_from(&own, &node, &host),
        it_is_the_same_cluster_after_a_power_cut(node, &own, &scratch),
    ]
    .await
}

async fn its_programs_are_looked_after(own: &Own, node: &Node, scratch: &Scratch) -> Outcome {
    its_static_pods_are_resources(own, node).await?;
    it_lists_the_nodes_that_run_instar(own, node).await?;
    etcd_is_looked_after(own, scratch).await
}

/// Under the names that talosctl has for them.
async fn its_static_pods_are_resources(own: &Own, node: &Node) -> Outcome {
    let pods = own.run(&["get", "staticpods", "-o", "yaml"]).await?;
    ensure!(pods.contains("name: kube-apiserver"), "{pods}");
    let are_ready = async || {
        let statuses = own.run(&["get", "podstatus", "-o", "yaml"]).await?;
        let api_server = format!("kube-system/kube-apiserver-{NAME}");
        let is_running = statuses.contains("phase: Running");
        ensure!(is_running && statuses.contains(&api_server), "{statuses}");
        Ok(())
    };
    let doing = "the statuses of static pods are resources";
    node.wait_until(doing, START, are_ready).await
}

async fn a_cluster_begins_by_a_call(own: &Own, node: &Node) -> Outcome {
    own.told(node, "the cluster has not begun").await?;
    own.run(&["bootstrap"]).await?;
    let again = own.client.run(&["bootstrap"]).await?;
    ensure!(again.complaint.contains("begun already"), "{again:?}");
    Ok(())
}

async fn its_kubeconfig_opens_its_api(own: &Own, node: &Node) -> Outcome {
    let file = own.kubeconfig.to_str().context("a path that is no text")?;
    own.run(&["kubeconfig", file]).await?;
    let role = "node-role.kubernetes.io/control-plane";
    node.wait_until("the node has its role", START, async || {
        let shown = own.node()?;
        ensure!(shown["metadata"]["labels"][role] == "", "{shown}");
        Ok(())
    })
    .await?;
    tell_time(node, "its API answers").await
}

/// The other one is an object with the label that this machine has given its own.
async fn it_lists_the_nodes_that_run_instar(own: &Own, node: &Node) -> Outcome {
    has_its_version(own, node).await?;
    let metadata = json!({"name": OTHER, "labels": {VERSION_LABEL: "v0.1.0"}});
    let other = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
    own.kubectl()?.create("other", &other.to_string())?;
    let both = async || {
        let members = own.run(&["get", "members"]).await?;
        let has = |name| members.contains(name);
        ensure!(has(NAME) && has(OTHER), "{members}");
        Ok(())
    };
    node.wait_until("both are members", START, both).await?;
    own.kubectl()?.run(&["delete", "node", OTHER]).map(drop)
}

async fn has_its_version(own: &Own, node: &Node) -> Outcome {
    let labelled = async || {
        let label = own.node()?["metadata"]["labels"][VERSION_LABEL].clone();
        ensure!(label == "v0.1.0", "{label}");
        Ok(())
    };
    let doing = "its label of the version";
    node.wait_until(doing, START, labelled).await
}

async fn it_is_ready_once_pods_have_a_network(own: &Own, node: &Node, host: &Host) -> Outcome {
    let network = manifests::network(&host.greeter());
    own.kubectl()?.apply("network", &network)?;
    own.wait_until_ready(node).await?;
    tell_time(node, "it is ready").await
}

async fn a_deployment_answers(own: &Own, node: &Node, host: &Host) -> Outcome {
    let pods = manifests::own_cluster(&host.greeter());
    own.kubectl()?.apply("pods", &pods)?;
    let greets = async || Greeter::of(node)?.greets();
    let answers = node.wait_until("the Deployment answers", START, greets);
    answers.await?;
    all_containers_run(own, node).await?;
    tell_time(node, "its Deployment answers").await
}

async fn all_containers_run(own: &Own, node: &Node) -> Outcome {
    node.wait_until("all containers run", START, async || {
        let all = own.containers()?;
        ensure!(all.len() == 7, "{all:?}");
        Ok(())
    })
    .await
}

async fn etcd_is_looked_after(own: &Own, scratch: &Scratch) -> Outcome {
    let members = own.run(&["etcd", "members"]).await?;
    ensure!(members.contains(NAME), "{members}");
    let file = scratch.join("snapshot.db");
    let path = file.to_str().context("a path that is no text")?;
    println!("{}", own.run(&["etcd", "snapshot", path]).await?);
    let bytes = std::fs::metadata(&file)?.len();
    // Pages of a database, and its SHA-256.
    ensure!(bytes % 4096 == 32, "{bytes}");
    Ok(())
}

/// No container restarts, a connection to a pod and a watch at the API server live, and the node is ready all the time.
async fn the_os_is_upgraded_under_the_cluster(own: &Own, node: &Node, host: &Host) -> Outcome {
    let before = own.containers()?;
    let states = WatchedNode::start(own.kubectl()?, NAME)?;
    let asked = AskedApiServer::start(own.kubectl()?);
    let held = hold(node).await?;
    upgrade_the_os(own, node, host).await?;
    let held = held.close()?;
    println!("{held:?}");
    ensure!(held.lost == 0 && held.answers > 0, "{held:?}");
    asked.has_answered_all_the_time()?;
    its_api_server_is_ready(own, node).await?;
    let states = states.end()?;
    let was_ready = states.iter().all(|state| state.starts_with("True "));
    ensure!(was_ready, "{states:#?}");
    ensure!(before == own.containers()?, "it was {before:#?}");
    Ok(())
}

async fn its_api_server_is_ready(own: &Own, node: &Node) -> Outcome {
    node.wait_until("the API server is ready", START, async || {
        own.kubectl()?.run(&["get", "--raw", "/readyz"])?;
        Ok(())
    })
    .await
}

async fn upgrade_the_os(own: &Own, node: &Node, host: &Host) -> Outcome {
    let image = host.registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(node, &image, START).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    it_shows_its_new_os(own, node).await
}

/// Holds a connection to the beat. A container runs before its program listens.
async fn hold(node: &Node) -> anyhow::Result<HeldConnection> {
    let open = async || HeldConnection::open(node.guest_port(BEAT_PORT)?);
    node.wait_until("the beat answers", START, open).await
}

async fn it_shows_its_new_os(own: &Own, node: &Node) -> Outcome {
    node.wait_until("the node shows its new OS", START, async || {
        ensure!(os_image(&own.node()?)?.contains("v0.2.0"));
        Ok(())
    })
    .await
}

/// An extension of another version brings the manifests of that version, after a snapshot of etcd.
async fn kubernetes_is_upgraded(own: &Own, node: &Node, host: &Host) -> Outcome {
    let version = format!("{NEXT}\n");
    let files = [(VERSION, version.as_bytes())];
    push_extension_with(&host.registry, "kubernetes", "v2", &files)?;
    let mark = node.vm().console_mark()?;
    own.apply(node, host, "kubernetes:v2").await?;
    node.vm().wait_for_line_after(mark, SNAPSHOT, START)?;
    the_api_server_has_the_new_version(own, node).await?;
    let kept = "extensions, which are kept";
    node.vm().wait_for_line_after(mark, kept, START)?;
    // Those of the control plane come one after the other.
    all_containers_run(own, node).await?;
    Greeter::of(node)?.greets()
}

async fn the_api_server_has_the_new_version(own: &Own, node: &Node) -> Outcome {
    let pod = format!("kube-apiserver-{NAME}");
    node.wait_until("the new API server", START, async || {
        let shown = own.kubectl()?.get(&["pod", "-n", "kube-system", &pod])?;
        // Not that of the status, which is any of the image's names: both versions are one image here.
        let image = shown["spec"]["containers"][0]["image"].to_string();
        ensure!(image.contains(NEXT) && is_ready(&shown), "{image}");
        Ok(())
    })
    .await
}

/// A kubelet of a later version, which ends at once, is on trial; the one before comes back, with the static pods of its version.
async fn a_broken_kubelet_is_gone_back_from(own: &Own, node: &Node, host: &Host) -> Outcome {
    let before = own.containers()?;
    // It takes kubelet's first option for a port.
    let program = guest_program("greeter")?;
    let version = format!("{LATER}\n");
    let kubelet = ("usr/bin/kubelet", program.as_slice());
    let files = [kubelet, (VERSION, version.as_bytes())];
    push_extension_with(&host.registry, "kubernetes", "broken", &files)?;
    let mark = node.vm().console_mark()?;
    let config = host.config(node.identity(), "kubernetes:broken", &[])?;
    own.apply_config(gives_up_soon(&config)).await?;
    // The static pods of the later version were written.
    node.vm().wait_for_line_after(mark, SNAPSHOT, START)?;
    own.told(node, "is back with the one before").await?;
    own.wait_until_ready(node).await?;
    the_api_server_has_the_new_version(own, node).await?;
    ensure!(before == own.containers()?, "it was {before:#?}");
    Ok(())
}

async fn it_is_the_same_cluster_after_a_power_cut(
    node: Node,
    own: &Own,
    scratch: &Scratch,
) -> Outcome {
    let uid = own.node()?["metadata"]["uid"].clone();
    let node = node.power_cycle().await?;
    let own = Own::of(&node, scratch)?;
    let greets = async || Greeter::of(&node)?.greets();
    let answers = node.wait_until("its Deployment answers again", START, greets);
    answers.await?;
    own.wait_until_ready(&node).await?;
    ensure!(own.node()?["metadata"]["uid"] == uid);
    tell_time(&node, "it is ready again").await
}
