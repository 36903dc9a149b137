//! One machine is a whole cluster: it begins by a call, runs pods, and the OS and Kubernetes are replaced under them.

use anyhow::{Context as _, ensure};
use instar_tests::{
    Ending, ExtensionSource, GREETER_PORT, Greeter, HeldConnection, Identity, ImageUnderTest,
    Instarctl, Kubectl, MachineConfig, Node, Outcome, Registry, Scratch, Test, chapters,
    cluster_section, guest_program, kubernetes_version, push_base, push_control_plane,
    push_extension, push_extension_with, push_greeter, push_pause, tests, upgrade_and_follow,
};
use serde_json::Value;

use crate::PATIENCE;
use crate::cluster::BEAT_PORT;
use crate::kept::containers;
use crate::manifests;
use crate::shown::{is_ready, os_image, tell_time};
use crate::watched_node::WatchedNode;

/// The machine's name, which is the node's.
const NAME: &str = "cp-1";
/// The port of the API server on the machine.
const API_SERVER: u16 = 6443;
/// The next version, which is the same programs under another name.
const NEXT: &str = "v1.36.99";

pub(crate) fn tests() -> Vec<Test> {
    tests![a_machine_is_a_cluster]
}

async fn a_machine_is_a_cluster(scratch: Scratch) -> Outcome {
    let host = Host::start(&scratch)?;
    let identity = Identity::administrator()?;
    let config = host.config(&identity, &scratch, "kubernetes:v1").await?;
    let plan = Node::plan(&scratch, &ImageUnderTest::first()?).config(config, identity);
    let ports = [GREETER_PORT, BEAT_PORT, API_SERVER];
    let plan = ports.iter().fold(plan, |plan, port| plan.forward(*port));
    let node = plan.blank_disk()?.boot().await?;
    let own = Own::of(&node, &scratch)?;
    chapters![
        it_begins_by_a_call(&own, &node),
        its_kubeconfig_opens_its_api(&own, &node),
        it_has_the_role_of_a_control_plane(&own, &node),
        it_is_ready_once_pods_have_a_network(&own, &node, &host),
        a_deployment_answers(&own, &node, &host),
        etcd_is_looked_after(&own, &scratch),
        the_os_is_upgraded_under_the_cluster(&own, &node, &host),
        kubernetes_is_upgraded(&own, &node, &host, &scratch),
        a_broken_kubelet_is_gone_back_from(&own, &node, &host, &scratch),
        it_is_the_same_cluster_after_a_power_cut(node, &own, &scratch),
    ]
    .await
}

/// The host's side: a registry.
struct Host {
    registry: Registry,
    base: String,
}

impl Host {
    fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        let base = push_base(&registry, &ImageUnderTest::first()?)?;
        for name in ["containerd", "kubernetes"] {
            push_extension(&registry, name)?;
        }
        push_control_plane(&registry, &[&kubernetes_version()?, NEXT])?;
        push_pause(&registry)?;
        push_greeter(&registry)?;
        registry.push_installer_without_kernel(&ImageUnderTest::second()?)?;
        Ok(Self { registry, base })
    }

    fn greeter(&self) -> String {
        self.registry.image_for_guest("greeter:v1")
    }

    /// The machine's config, with this image of the extension with kubelet.
    async fn config(
        &self,
        identity: &Identity,
        scratch: &Scratch,
        kubernetes: &str,
    ) -> anyhow::Result<String> {
        let cluster = cluster_section(&secrets(scratch).await?, "https://127.0.0.1:6443")?;
        let host = self.registry.host_for_guest();
        let extension = |image: &str| {
            let image = format!("extensions/{image}");
            ExtensionSource::Image(self.registry.image_for_guest(&image))
        };
        let main = format!("{}{cluster}", MachineConfig::new(identity).to_yaml());
        let config = MachineConfig::from_yaml(&main)
            .hostname(NAME)
            .install_disk("/dev/vda")
            .registry(&host)
            .mirror("registry.k8s.io", &host)
            .kubernetes(&self.base)
            .extension("containerd", &extension("containerd:v1"))
            .extension("kubernetes", &extension(kubernetes));
        Ok(config.to_yaml())
    }
}

/// Returns the secrets of the cluster, which `instarctl` makes once.
async fn secrets(scratch: &Scratch) -> anyhow::Result<String> {
    let file = scratch.join("secrets.yaml");
    if !file.exists() {
        let path = file.to_str().context("a path that is no text")?;
        let arguments = ["gen", "secrets", "--output-file", path];
        let said = Instarctl::alone(scratch)?.run(&arguments).await?;
        ensure!(said.code == Some(0), "{said:?}");
    }
    Ok(std::fs::read_to_string(file)?)
}

/// The machine's operator.
struct Own {
    client: Instarctl,
    kubeconfig: std::path::PathBuf,
    kubectl: std::cell::OnceCell<Kubectl>,
    scratch: Scratch,
    server: String,
}

impl Own {
    fn of(node: &Node, scratch: &Scratch) -> anyhow::Result<Self> {
        Ok(Self {
            client: Instarctl::of(node, scratch)?,
            kubeconfig: scratch.join("kubeconfig"),
            kubectl: std::cell::OnceCell::new(),
            scratch: scratch.clone(),
            server: format!("https://{}", node.guest_port(API_SERVER)?),
        })
    }

    /// Runs a command that has to succeed; returns its output.
    async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let said = self.client.run(arguments).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(said.output)
    }

    /// kubectl by the machine's kubeconfig, at the port that leads to it.
    fn kubectl(&self) -> anyhow::Result<&Kubectl> {
        if let Some(kubectl) = self.kubectl.get() {
            return Ok(kubectl);
        }
        let kubectl = Kubectl::of(&self.kubeconfig, self.scratch.clone())?;
        let _ = self.kubectl.set(kubectl.at(&self.server));
        self.kubectl.get().context("no kubectl")
    }

    fn node(&self) -> anyhow::Result<Value> {
        self.kubectl()?.get(&["node", NAME])
    }

    /// All containers: their pods, addresses, ids and restarts.
    fn containers(&self) -> anyhow::Result<Vec<[Value; 4]>> {
        let pods = self.kubectl()?.get(&["pods", "-A"])?;
        let pods = pods["items"].as_array().context("no list of pods")?;
        let mut all: Vec<_> = pods.iter().flat_map(containers).collect();
        all.sort_by_key(|container| container[0].to_string());
        Ok(all)
    }

    async fn wait_until_ready(&self, node: &Node) -> Outcome {
        node.wait_until("the node is ready", PATIENCE, async || {
            let shown = self.node()?;
            ensure!(is_ready(&shown), "{}", shown["status"]["conditions"]);
            Ok(())
        })
        .await
    }

    async fn told(&self, node: &Node, words: &str) -> Outcome {
        node.wait_until("the node tells it", PATIENCE, async || {
            let said = self.run(&["get", "kubernetes", "-o", "yaml"]).await?;
            ensure!(said.contains(words), "{said}");
            Ok(())
        })
        .await
    }
}

async fn it_begins_by_a_call(own: &Own, node: &Node) -> Outcome {
    own.told(node, "the cluster has not begun").await?;
    own.run(&["bootstrap"]).await?;
    let again = own.client.run(&["bootstrap"]).await?;
    ensure!(again.complaint.contains("begun already"), "{again:?}");
    Ok(())
}

async fn its_kubeconfig_opens_its_api(own: &Own, node: &Node) -> Outcome {
    let file = own.kubeconfig.to_str().context("a path that is no text")?;
    own.run(&["kubeconfig", file]).await?;
    let appears = node.wait_until("the node appears", 2 * PATIENCE, async || own.node());
    ensure!(os_image(&appears.await?)?.contains("v0.1.0"));
    tell_time(node, "its API answers").await
}

async fn it_has_the_role_of_a_control_plane(own: &Own, node: &Node) -> Outcome {
    node.wait_until("the node has its role", PATIENCE, async || {
        let shown = own.node()?;
        let labels = &shown["metadata"]["labels"];
        ensure!(
            labels["node-role.kubernetes.io/control-plane"] == "",
            "{labels}"
        );
        Ok(())
    })
    .await
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
    node.wait_until("the Deployment answers", PATIENCE, greets)
        .await?;
    node.wait_until("all containers run", PATIENCE, async || {
        let all = own.containers()?;
        ensure!(
            all.len() == 7 && all.iter().all(|it| it[2] != ""),
            "{all:?}"
        );
        Ok(())
    })
    .await?;
    tell_time(node, "its Deployment answers").await
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
    let held = HeldConnection::open(node.guest_port(BEAT_PORT)?)?;
    let image = host.registry.installer_for_guest("v0.2.0");
    let followed = upgrade_and_follow(node, &image, PATIENCE).await?;
    ensure!(followed.ending == Ending::Done, "{followed:#?}");
    node.wait_until("the node shows its new OS", PATIENCE, async || {
        ensure!(os_image(&own.node()?)?.contains("v0.2.0"));
        Ok(())
    })
    .await?;
    let held = held.close()?;
    println!("{held:?}");
    ensure!(held.lost == 0 && held.answers > 0, "{held:?}");
    let states = states.end()?;
    ensure!(
        states.iter().all(|it| it.starts_with("True ")),
        "{states:#?}"
    );
    let after = own.containers()?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    Ok(())
}

/// An extension of another version brings the manifests of that version, after a snapshot of etcd.
async fn kubernetes_is_upgraded(own: &Own, node: &Node, host: &Host, scratch: &Scratch) -> Outcome {
    let version = format!("{NEXT}\n");
    let files = [("usr/local/share/kubernetes-version", version.as_bytes())];
    push_extension_with(&host.registry, "kubernetes", "v2", &files)?;
    let mark = node.vm().console_mark()?;
    apply(own, node, host, scratch, "kubernetes:v2").await?;
    let known = "etcd's data of before are in";
    node.vm().wait_for_line_after(mark, known, PATIENCE)?;
    node.wait_until("the API server has the new version", PATIENCE, async || {
        let pod = format!("kube-apiserver-{NAME}");
        let shown = own.kubectl()?.get(&["pod", "-n", "kube-system", &pod])?;
        let image = shown["status"]["containerStatuses"][0]["image"].to_string();
        ensure!(image.contains(NEXT) && is_ready(&shown), "{image}");
        Ok(())
    })
    .await?;
    let kept = "extensions, which are kept";
    node.vm().wait_for_line_after(mark, kept, 2 * PATIENCE)?;
    Greeter::of(node)?.greets()
}

/// A kubelet that ends at once is on trial, and the one before comes back.
async fn a_broken_kubelet_is_gone_back_from(
    own: &Own,
    node: &Node,
    host: &Host,
    scratch: &Scratch,
) -> Outcome {
    let before = own.containers()?;
    // It takes kubelet's first option for a port.
    let program = guest_program("greeter")?;
    let version = format!("{NEXT}\n");
    let files = [
        ("usr/bin/kubelet", program.as_slice()),
        ("usr/local/share/kubernetes-version", version.as_bytes()),
    ];
    push_extension_with(&host.registry, "kubernetes", "broken", &files)?;
    apply(own, node, host, scratch, "kubernetes:broken").await?;
    own.told(node, "is back with the one before").await?;
    own.wait_until_ready(node).await?;
    let after = own.containers()?;
    ensure!(before == after, "{before:#?} became {after:#?}");
    Ok(())
}

/// Applies the config with another image of the extension with kubelet.
async fn apply(
    own: &Own,
    node: &Node,
    host: &Host,
    scratch: &Scratch,
    kubernetes: &str,
) -> Outcome {
    let config = host.config(node.identity(), scratch, kubernetes).await?;
    let file = scratch.write("config.yaml", config)?;
    let file = file.to_str().context("a path that is no text")?;
    println!("{}", own.run(&["apply-config", "-f", file]).await?);
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
    node.wait_until("its Deployment answers again", 2 * PATIENCE, async || {
        Greeter::of(&node)?.greets()
    })
    .await?;
    own.wait_until_ready(&node).await?;
    ensure!(own.node()?["metadata"]["uid"] == uid);
    tell_time(&node, "it is ready again").await
}
