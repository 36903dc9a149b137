//! A cluster of one node: a control plane and a registry on this host, a machine that joins by its config.

use instar_tests::{
    ControlPlane, GREETER_PORT, Identity, ImageUnderTest, MachineConfig, Node, NodePlan, Registry,
    Scratch, push_base, push_extension, push_greeter, push_pause, worker_config,
};
use serde_json::Value;

/// The node's name, as its config says.
pub(crate) const NAME: &str = "worker-1";
/// Fields of its config, and how the cluster shows them.
const NODE_CONFIG: &str = "apiVersion: v1alpha1\nkind: KubeNodeConfig\nlabels:\n  example.org/rack: r1\ntaints:\n  example.org/slow: \"emulated:PreferNoSchedule\"\n";

/// The extensions of a node.
const EXTENSIONS: [&str; 2] = ["containerd", "kubernetes"];

/// The host's side of the cluster.
pub(crate) struct Cluster {
    pub(crate) plane: ControlPlane,
    pub(crate) registry: Registry,
}

impl Cluster {
    /// Starts a control plane, and a registry with all that a node needs.
    pub(crate) fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        push_base(&registry, &ImageUnderTest::first()?)?;
        for name in EXTENSIONS {
            push_extension(&registry, name)?;
        }
        push_pause(&registry)?;
        push_greeter(&registry)?;
        registry.push_installer_without_kernel(&ImageUnderTest::second()?)?;
        let plane = ControlPlane::start(scratch)?;
        Ok(Self { plane, registry })
    }

    /// The config of the node.
    pub(crate) fn config(&self, identity: &Identity) -> MachineConfig {
        let host = self.registry.host_for_guest();
        let base = self.registry.image_for_guest("instar/kubernetes:v0.1.0");
        let config = worker_config(identity, &self.plane, NAME)
            .document(NODE_CONFIG)
            .registry(&host)
            .mirror("registry.k8s.io", &host)
            .kubernetes(&base);
        EXTENSIONS.iter().fold(config, |config, name| {
            let image = self
                .registry
                .image_for_guest(&format!("extensions/{name}:v1"));
            config.extension(name, &image)
        })
    }

    /// Plans the machine.
    pub(crate) fn plan_node(&self, scratch: &Scratch) -> anyhow::Result<NodePlan> {
        let identity = Identity::administrator()?.believing_any_node();
        let config = self.config(&identity).to_yaml();
        Node::plan(scratch, &ImageUnderTest::first()?)
            .config(config, identity)
            .forward(GREETER_PORT)
            .blank_disk()
    }

    /// The node as the cluster sees it.
    pub(crate) fn node(&self) -> anyhow::Result<Value> {
        self.plane.kubectl().get(&["node", NAME])
    }

    /// A pod of the namespace `default`.
    pub(crate) fn pod(&self, name: &str) -> anyhow::Result<Value> {
        self.plane.kubectl().get(&["pod", name])
    }
}
