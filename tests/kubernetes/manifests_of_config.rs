//! A machine that is a cluster gives to its cluster what its config has for it: manifests, and DNS for pods.

use std::net::Ipv4Addr;

use anyhow::{Context as _, ensure};
use instar_tests::{Node, Outcome, Scratch, Test, chapters, push_core_dns, tests};
use serde_json::Value;

use crate::dns_question::address_of;
use crate::manifests::{inline, network, note, widgets};
use crate::own_cluster::{Host, Own};
use crate::shown::tell_time;
use crate::{PATIENCE, START};

/// An object that no API server takes: names are in small letters.
const REFUSED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NOTE}\n";
/// How the machine tells it.
const COMPLAINT: &str = "ConfigMap NOTE of the manifest refused";
/// CoreDNS in the commands of kubectl.
const CORE_DNS: [&str; 3] = ["-n", "kube-system", "deployment/coredns"];
/// The config that has kube-proxy, and the DaemonSet in the commands of kubectl.
const KUBE_PROXY: &str = "proxy: {image: \"registry.k8s.io/kube-proxy:own\"}";
const OF_OTHER_NODES: [&str; 3] = ["-n", "kube-system", "daemonset/kube-proxy"];
/// The API server for pods, as no kube-proxy makes its service reachable here.
const API_SERVER: [&str; 2] = [
    "KUBERNETES_SERVICE_HOST=10.0.2.15",
    "KUBERNETES_SERVICE_PORT=6443",
];

pub(crate) fn tests() -> Vec<Test> {
    tests![a_cluster_has_what_its_config_has_for_it]
}

async fn a_cluster_has_what_its_config_has_for_it(scratch: Scratch) -> Outcome {
    let it = It::boot(&scratch).await?;
    chapters![
        a_cluster_begins_by_a_call(&it),
        it_has_the_objects_of_manifests(&it),
        an_object_that_is_refused_keeps_no_other_back(&it),
        a_mended_config_ends_the_complaint(&it),
        objects_of_a_manifest_that_is_gone_stay(&it),
        core_dns_comes_with_its_image(&it),
        core_dns_is_available(&it),
        core_dns_answers(&it),
        kube_proxy_is_for_other_nodes(&it),
    ]
    .await
}

/// The machine, with the host's side and its operator.
struct It {
    host: Host,
    node: Node,
    own: Own,
}

impl It {
    async fn boot(scratch: &Scratch) -> anyhow::Result<Self> {
        let host = Host::start(scratch).await?;
        let widgets = inline("widgets", &widgets());
        let documents = [note_document("before"), widgets, network_document(&host)];
        let node = host.plan_with(scratch, &documents)?.boot().await?;
        let own = Own::of(&node, scratch)?;
        Ok(Self { host, node, own })
    }

    /// Applies a config with these documents, and the network of pods.
    async fn apply(&self, documents: &[String]) -> Outcome {
        let documents = [documents, &[network_document(&self.host)]].concat();
        let identity = self.node.identity();
        let config = self.host.config(identity, "kubernetes:v1", &documents)?;
        self.own.apply_config(config).await
    }

    /// The value of the object `note`.
    fn noted(&self) -> anyhow::Result<Value> {
        let note = ["configmap", "-n", "notes", "note"];
        Ok(self.own.kubectl()?.get(&note)?["data"]["at"].clone())
    }
}

fn note_document(at: &str) -> String {
    inline("note", &note(at))
}

fn network_document(host: &Host) -> String {
    inline("network", &network(&host.greeter()))
}

async fn a_cluster_begins_by_a_call(It { node, own, .. }: &It) -> Outcome {
    own.told(node, "the cluster has not begun").await?;
    own.run(&["bootstrap"]).await?;
    let file = own.kubeconfig.to_str().context("a path that is no text")?;
    own.run(&["kubeconfig", file]).await.map(drop)
}

/// The network of pods is one of them: without it the node would not be ready.
async fn it_has_the_objects_of_manifests(it: &It) -> Outcome {
    let It { node, own, .. } = it;
    node.wait_until("an object of a new kind", START, async || {
        let wheel = own.kubectl()?.get(&["widget", "wheel"])?;
        ensure!(wheel["spec"]["spokes"] == 8, "{wheel}");
        Ok(())
    })
    .await?;
    ensure!(it.noted()? == "before");
    tell_time(node, "it has the objects of its manifests").await?;
    own.wait_until_ready(node).await?;
    tell_time(node, "it is ready").await
}

async fn an_object_that_is_refused_keeps_no_other_back(it: &It) -> Outcome {
    let documents = [inline("refused", REFUSED), note_document("after")];
    it.apply(&documents).await?;
    it.own.told(&it.node, COMPLAINT).await?;
    ensure!(it.noted()? == "after");
    Ok(())
}

async fn a_mended_config_ends_the_complaint(it: &It) -> Outcome {
    it.apply(&[note_document("mended")]).await?;
    let gone = async || {
        let said = it.own.run(&["get", "kubernetes", "-o", "yaml"]).await?;
        ensure!(!said.contains(COMPLAINT), "{said}");
        ensure!(it.noted()? == "mended");
        Ok(())
    };
    let waited = it.node.wait_until("the complaint is gone", PATIENCE, gone);
    waited.await
}

async fn objects_of_a_manifest_that_is_gone_stay(It { own, .. }: &It) -> Outcome {
    own.kubectl()?.get(&["widget", "wheel"]).map(drop)
}

/// A config without an image of CoreDNS has none.
async fn core_dns_comes_with_its_image(it: &It) -> Outcome {
    let kubectl = it.own.kubectl()?;
    ensure!(kubectl.get(&CORE_DNS).is_err());
    let image = push_core_dns(&it.host.registry)?;
    let document = format!("apiVersion: v1alpha1\nkind: KubeCoreDNSConfig\nimage: {image}\n");
    it.apply(&[document]).await?;
    // A field of somebody else, which the machine leaves alone.
    let set = [&["set", "env"][..], &CORE_DNS, &API_SERVER].concat();
    let set = async || kubectl.run(&set);
    let come = it.node.wait_until("CoreDNS is there", START, set);
    come.await.map(drop)
}

async fn core_dns_is_available(It { node, own, .. }: &It) -> Outcome {
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

async fn core_dns_answers(It { node, own, .. }: &It) -> Outcome {
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

/// This node has its own, as a static pod, which no image here starts.
async fn kube_proxy_is_for_other_nodes(It { host, node, own }: &It) -> Outcome {
    let documents = [network_document(host)];
    let config = host.config(node.identity(), "kubernetes:v1", &documents)?;
    let config = config.replace("proxy: {disabled: true}", KUBE_PROXY);
    own.apply_config(config).await?;
    node.wait_until("its DaemonSet is there", PATIENCE, async || {
        let shown = own.kubectl()?.get(&OF_OTHER_NODES)?;
        let status = &shown["status"];
        ensure!(status["observedGeneration"] == 1, "{status}");
        ensure!(status["desiredNumberScheduled"] == 0, "{status}");
        Ok(())
    })
    .await
}
