//! A machine that is a cluster gives to its cluster what its config has for it: manifests, and DNS for pods.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_tests::{Node, Outcome, Scratch, Test, chapters, push_core_dns, tests};
use serde_json::Value;

use crate::PATIENCE;
use crate::dns_question::address_of;
use crate::manifests::{inline, network, note, widgets};
use crate::own_cluster::{Host, Own};
use crate::shown::tell_time;

/// Timeout for a control plane to start, which takes minutes under emulation on a host that runs others too.
const START: Duration = Duration::from_secs(900);
/// An object that no API server takes: names are in small letters.
const REFUSED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NOTE}\n";
/// How the machine tells it.
const COMPLAINT: &str = "ConfigMap NOTE of the manifest refused";
/// CoreDNS in the commands of kubectl.
const CORE_DNS: [&str; 3] = ["-n", "kube-system", "deployment/coredns"];
/// The API server for pods, as no kube-proxy makes its service reachable here.
const API_SERVER: [&str; 2] = [
    "KUBERNETES_SERVICE_HOST=10.0.2.15",
    "KUBERNETES_SERVICE_PORT=6443",
];

pub(crate) fn tests() -> Vec<Test> {
    tests![a_cluster_has_what_its_config_has_for_it]
}

async fn a_cluster_has_what_its_config_has_for_it(scratch: Scratch) -> Outcome {
    let host = Host::start(&scratch).await?;
    let network = inline("network", &network(&host.greeter()));
    let first = [
        network.clone(),
        note_document("before"),
        inline("widgets", &widgets()),
    ];
    let node = host.plan_with(&scratch, &first)?.boot().await?;
    let own = Own::of(&node, &scratch)?;
    chapters![
        it_begins(&own, &node),
        it_has_the_objects_of_manifests(&own, &node),
        an_object_that_is_refused_keeps_no_other_back(&own, &node, &host, &network),
        a_mended_config_ends_the_complaint(&own, &node, &host, &network),
        objects_of_a_manifest_that_is_gone_stay(&own),
        core_dns_is_available(&own, &node),
        core_dns_answers(&own, &node),
    ]
    .await
}

fn note_document(at: &str) -> String {
    inline("note", &note(at))
}

async fn it_begins(own: &Own, node: &Node) -> Outcome {
    own.told(node, "the cluster has not begun").await?;
    own.run(&["bootstrap"]).await?;
    let file = own.kubeconfig.to_str().context("a path that is no text")?;
    own.run(&["kubeconfig", file]).await.map(drop)
}

/// The network of pods is one of them: without it the node would not be ready.
async fn it_has_the_objects_of_manifests(own: &Own, node: &Node) -> Outcome {
    node.wait_until("an object of a new kind", START, async || {
        let wheel = own.kubectl()?.get(&["widget", "wheel"])?;
        ensure!(wheel["spec"]["spokes"] == 8, "{wheel}");
        Ok(())
    })
    .await?;
    ensure!(noted(own)? == "before");
    tell_time(node, "it has the objects of its manifests").await?;
    own.wait_until_ready(node).await?;
    tell_time(node, "it is ready").await
}

fn noted(own: &Own) -> anyhow::Result<Value> {
    let note = own.kubectl()?.get(&["configmap", "-n", "notes", "note"])?;
    Ok(note["data"]["at"].clone())
}

/// The config of the machine with these documents, and with CoreDNS.
async fn apply(own: &Own, node: &Node, host: &Host, documents: &[String]) -> Outcome {
    let image = push_core_dns(&host.registry)?;
    let core_dns = format!("apiVersion: v1alpha1\nkind: KubeCoreDNSConfig\nimage: {image}\n");
    let documents = [documents, &[core_dns]].concat();
    let config = host.config(node.identity(), "kubernetes:v1", &documents)?;
    own.apply_config(config).await
}

async fn an_object_that_is_refused_keeps_no_other_back(
    own: &Own,
    node: &Node,
    host: &Host,
    network: &str,
) -> Outcome {
    let refused = inline("refused", REFUSED);
    let documents = [refused, network.to_owned(), note_document("after")];
    apply(own, node, host, &documents).await?;
    own.told(node, COMPLAINT).await?;
    ensure!(noted(own)? == "after");
    // Without a place of its own in the config, this is a field of somebody else.
    own.kubectl()?
        .run(&[&["set", "env"][..], &CORE_DNS, &API_SERVER].concat())
        .map(drop)
}

async fn a_mended_config_ends_the_complaint(
    own: &Own,
    node: &Node,
    host: &Host,
    network: &str,
) -> Outcome {
    let documents = [network.to_owned(), note_document("mended")];
    apply(own, node, host, &documents).await?;
    node.wait_until("the complaint is gone", PATIENCE, async || {
        let said = own.run(&["get", "kubernetes", "-o", "yaml"]).await?;
        ensure!(!said.contains(COMPLAINT), "{said}");
        Ok(())
    })
    .await?;
    ensure!(noted(own)? == "mended");
    Ok(())
}

async fn objects_of_a_manifest_that_is_gone_stay(own: &Own) -> Outcome {
    own.kubectl()?.get(&["widget", "wheel"]).map(drop)
}

async fn core_dns_is_available(own: &Own, node: &Node) -> Outcome {
    node.wait_until("CoreDNS is available", START, async || {
        let shown = own.kubectl()?.get(&CORE_DNS)?;
        let status = &shown["status"];
        let is_new = status["observedGeneration"] == shown["metadata"]["generation"];
        let is_whole = status["availableReplicas"] == 1 && status["updatedReplicas"] == 1;
        ensure!(is_new && is_whole, "{status}");
        Ok(())
    })
    .await?;
    let service = own
        .kubectl()?
        .get(&["-n", "kube-system", "service/kube-dns"])?;
    ensure!(service["spec"]["clusterIP"] == "10.96.0.10", "{service}");
    tell_time(node, "CoreDNS is available").await
}

async fn core_dns_answers(own: &Own, node: &Node) -> Outcome {
    let forward = [&["port-forward"][..], &CORE_DNS, &[":53"]].concat();
    let mut forward = own.kubectl()?.follow(&forward)?;
    let begins = "Forwarding from 127.0.0.1:";
    let line = forward.wait_for("a port", PATIENCE, |line| line.starts_with(begins))?;
    let port = line.trim_start_matches(begins).split(' ').next();
    let port = port.context("no port")?.parse()?;
    let name = "kubernetes.default.svc.cluster.local";
    node.wait_until("CoreDNS answers", PATIENCE, async || {
        let address = address_of(name, port)?;
        ensure!(address == Ipv4Addr::new(10, 96, 0, 1), "{address}");
        Ok(())
    })
    .await
}
