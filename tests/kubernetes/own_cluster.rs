//! A machine that is a cluster itself: the host's side, and the machine's operator.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context as _, ensure};
use instar_tests::{
    ExtensionSource, GREETER_PORT, Identity, ImageUnderTest, Instarctl, Kubectl, MachineConfig,
    Node, NodePlan, Outcome, Registry, Scratch, cluster_section, kubernetes_version, push_base,
    push_control_plane, push_extension, push_greeter, push_pause,
};
use serde_json::Value;

use crate::cluster::BEAT_PORT;
use crate::kept::containers;
use crate::shown::is_ready;
use crate::{LIFETIME, START};

/// The machine's name, which is the node's.
pub(crate) const NAME: &str = "cp-1";
/// The port of the API server on the machine.
const API_SERVER: u16 = 6443;
/// The next version, which is the same programs under another name.
pub(crate) const NEXT: &str = "v1.36.99";
/// The version after it, likewise.
pub(crate) const LATER: &str = "v1.36.100";

/// The host's side: a registry, and the secrets of the cluster.
pub(crate) struct Host {
    pub(crate) registry: Registry,
    base: String,
    secrets: String,
}

impl Host {
    pub(crate) async fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        let base = push_base(&registry, &ImageUnderTest::first()?)?;
        for name in ["containerd", "kubernetes"] {
            push_extension(&registry, name)?;
        }
        push_control_plane(&registry, &[&kubernetes_version()?, NEXT, LATER])?;
        push_pause(&registry)?;
        push_greeter(&registry)?;
        registry.push_installer_without_kernel(&ImageUnderTest::second()?)?;
        let secrets = secrets(scratch).await?;
        Ok(Self {
            registry,
            base,
            secrets,
        })
    }

    /// Plans the machine.
    pub(crate) fn plan(&self, scratch: &Scratch) -> anyhow::Result<NodePlan> {
        self.plan_with(scratch, &[])
    }

    /// Plans the machine with more documents in its config.
    pub(crate) fn plan_with(
        &self,
        scratch: &Scratch,
        documents: &[String],
    ) -> anyhow::Result<NodePlan> {
        let identity = Identity::administrator()?;
        let config = self.config(&identity, "kubernetes:v1", documents)?;
        let plan = Node::plan(scratch, &ImageUnderTest::first()?).config(config, identity);
        let plan = plan.spec(|spec| spec.deadline(LIFETIME));
        let ports = [GREETER_PORT, BEAT_PORT, API_SERVER];
        let plan = ports.iter().fold(plan, |plan, port| plan.forward(*port));
        plan.blank_disk()
    }

    /// The machine's config, with this image of the extension with kubelet and with more documents.
    pub(crate) fn config(
        &self,
        identity: &Identity,
        kubernetes: &str,
        documents: &[String],
    ) -> anyhow::Result<String> {
        let cluster = cluster_section(&self.secrets, "https://127.0.0.1:6443")?;
        let host = self.registry.host_for_guest();
        let main = format!("{}{cluster}", MachineConfig::new(identity).to_yaml());
        let config = MachineConfig::from_yaml(&main)
            .hostname(NAME)
            .install_disk("/dev/vda")
            .registry(&host)
            .mirror("registry.k8s.io", &host)
            .kubernetes(&self.base)
            .extension("containerd", &self.extension("containerd:v1"))
            .extension("kubernetes", &self.extension(kubernetes));
        let documents = documents.iter();
        let config = documents.fold(config, |config, document| config.document(document));
        Ok(config.to_yaml())
    }

    fn extension(&self, image: &str) -> ExtensionSource {
        let image = format!("extensions/{image}");
        ExtensionSource::Image(self.registry.image_for_guest(&image))
    }

    /// The name of the greeter's image in the machine.
    pub(crate) fn greeter(&self) -> String {
        self.registry.image_for_guest("greeter:v1")
    }
}

/// Has `instarctl` make the secrets of a cluster.
async fn secrets(scratch: &Scratch) -> anyhow::Result<String> {
    let file = scratch.join("secrets.yaml");
    let path = file.to_str().context("a path that is no text")?;
    let arguments = ["gen", "secrets", "--output-file", path];
    let said = Instarctl::alone(scratch)?.run(&arguments).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(std::fs::read_to_string(file)?)
}

/// The machine's operator.
pub(crate) struct Own {
    pub(crate) client: Instarctl,
    pub(crate) kubeconfig: PathBuf,
    kubectl: OnceLock<Kubectl>,
    scratch: Scratch,
    server: String,
}

impl Own {
    pub(crate) fn of(node: &Node, scratch: &Scratch) -> anyhow::Result<Self> {
        Ok(Self {
            client: Instarctl::of(node, scratch)?,
            kubeconfig: scratch.join("kubeconfig"),
            kubectl: OnceLock::new(),
            scratch: scratch.clone(),
            server: format!("https://{}", node.guest_port(API_SERVER)?),
        })
    }

    /// Runs a command that has to succeed; returns its output.
    pub(crate) async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let said = self.client.run(arguments).await?;
        ensure!(said.code == Some(0), "{said:?}");
        Ok(said.output)
    }

    /// kubectl by the machine's kubeconfig, at the port that leads to it.
    pub(crate) fn kubectl(&self) -> anyhow::Result<&Kubectl> {
        if let Some(kubectl) = self.kubectl.get() {
            return Ok(kubectl);
        }
        let kubectl = Kubectl::of(&self.kubeconfig, self.scratch.clone())?;
        // None is there, as the lines above say.
        let _ = self.kubectl.set(kubectl.at(&self.server));
        self.kubectl.get().context("no kubectl")
    }

    pub(crate) fn node(&self) -> anyhow::Result<Value> {
        self.kubectl()?.get(&["node", NAME])
    }

    /// All containers: their pods, addresses, ids and restarts.
    pub(crate) fn containers(&self) -> anyhow::Result<Vec<[Value; 4]>> {
        let pods = self.kubectl()?.get(&["pods", "-A"])?;
        let pods = pods["items"].as_array().context("no list of pods")?;
        let mut all: Vec<_> = pods.iter().flat_map(containers).collect();
        all.sort_by_key(|container| container[0].to_string());
        Ok(all)
    }

    pub(crate) async fn wait_until_ready(&self, node: &Node) -> Outcome {
        node.wait_until("the node is ready", START, async || {
            let shown = self.node()?;
            ensure!(is_ready(&shown), "{}", shown["status"]["conditions"]);
            Ok(())
        })
        .await
    }

    pub(crate) async fn told(&self, node: &Node, words: &str) -> Outcome {
        node.wait_until("the node tells it", START, async || {
            let said = self.run(&["get", "kubernetes", "-o", "yaml"]).await?;
            ensure!(said.contains(words), "{said}");
            Ok(())
        })
        .await
    }

    /// Applies the config with another image of the extension with kubelet.
    pub(crate) async fn apply(&self, node: &Node, host: &Host, kubernetes: &str) -> Outcome {
        let config = host.config(node.identity(), kubernetes, &[])?;
        self.apply_config(config).await
    }

    /// Applies a config.
    pub(crate) async fn apply_config(&self, config: String) -> Outcome {
        let file = self.scratch.write("config.yaml", config)?;
        let file = file.to_str().context("a path that is no text")?;
        println!("{}", self.run(&["apply-config", "-f", file]).await?);
        Ok(())
    }
}
