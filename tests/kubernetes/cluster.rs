//! A cluster of one node: a control plane and a registry on this host, a machine that joins by its config.

use std::collections::BTreeMap;
use std::time::Duration;

use instar_qemu::{Bus, Drive, VmSpec};
use instar_tests::{
    ControlPlane, ExtensionSource, GREETER_PORT, Identity, ImageUnderTest, Node, NodePlan,
    Registry, Scratch, push_base, push_extension, push_greeter, push_pause, uefi, worker_config,
};
use serde_json::Value;

use crate::LIFETIME;

/// The node's name, as its config says.
pub(crate) const NAME: &str = "worker-1";
/// Fields of its config, and how the cluster shows them.
const NODE_CONFIG: &str = "apiVersion: v1alpha1\nkind: KubeNodeConfig\nlabels:\n  example.org/rack: r1\nannotations:\n  example.org/asset: 7 b\ntaints:\n  example.org/slow: \"emulated:PreferNoSchedule\"\n";

/// The port of the pod `beat` on its node.
pub(crate) const BEAT_PORT: u16 = 8081;

/// The extensions of a node.
const EXTENSIONS: [&str; 2] = ["containerd", "kubernetes"];

/// An extension: its name, and where the node takes it from.
pub(crate) type Extension = (&'static str, ExtensionSource);

/// The host's side of the cluster.
pub(crate) struct Cluster {
    pub(crate) plane: ControlPlane,
    pub(crate) registry: Registry,
    /// The name of the base in a guest.
    base: String,
}

impl Cluster {
    /// Starts a control plane, and a registry with all that a node needs.
    pub(crate) fn start(scratch: &Scratch) -> anyhow::Result<Self> {
        let registry = Registry::start(scratch)?;
        let base = push_base(&registry, &ImageUnderTest::first()?)?;
        for name in EXTENSIONS {
            push_extension(&registry, name)?;
        }
        push_pause(&registry)?;
        push_greeter(&registry)?;
        registry.push_installer_without_kernel(&ImageUnderTest::second()?)?;
        let plane = ControlPlane::start(scratch)?;
        Ok(Self {
            plane,
            registry,
            base,
        })
    }

    /// The config of the node with extensions from elsewhere, or with more extensions.
    pub(crate) fn config_with(&self, identity: &Identity, others: &[Extension]) -> String {
        self.config_of(identity, NAME, others)
    }

    /// The same of a node with another name.
    pub(crate) fn config_of(
        &self,
        identity: &Identity,
        name: &str,
        others: &[Extension],
    ) -> String {
        let host = self.registry.host_for_guest();
        let config = worker_config(identity, &self.plane, name)
            .document(NODE_CONFIG)
            .registry(&host)
            .mirror("registry.k8s.io", &host)
            .kubernetes(&self.base);
        let extensions = self.extensions(others).into_iter();
        extensions
            .fold(config, |config, (name, source)| {
                config.extension(name, &source)
            })
            .to_yaml()
    }

    /// The extensions: the usual ones, and these instead or besides.
    fn extensions(&self, others: &[Extension]) -> BTreeMap<&'static str, ExtensionSource> {
        let usual = EXTENSIONS.map(|name| (name, self.extension(&format!("{name}:v1"))));
        usual.into_iter().chain(others.iter().cloned()).collect()
    }

    /// The image of an extension in the registry, by its name and tag.
    pub(crate) fn extension(&self, image: &str) -> ExtensionSource {
        let image = format!("extensions/{image}");
        ExtensionSource::Image(self.registry.image_for_guest(&image))
    }

    /// Plans the machine.
    pub(crate) fn plan_node(&self, scratch: &Scratch) -> anyhow::Result<NodePlan> {
        self.plan_node_with(scratch, &[])
    }

    /// Plans the machine with extensions from elsewhere, or with more extensions.
    pub(crate) fn plan_node_with(
        &self,
        scratch: &Scratch,
        others: &[Extension],
    ) -> anyhow::Result<NodePlan> {
        let identity = Identity::administrator()?.believing_any_node();
        let config = self.config_with(&identity, others);
        Node::plan(scratch, &ImageUnderTest::first()?)
            .config(config, identity)
            .spec(|spec| spec.deadline(LIFETIME))
            .forward(GREETER_PORT)
            .forward(BEAT_PORT)
            .blank_disk()
    }

    /// Plans one of several machines, whose API shows a certificate of the identity's authority.
    pub(crate) fn plan_fleet_node(
        &self,
        scratch: &Scratch,
        identity: &Identity,
        name: &str,
    ) -> anyhow::Result<NodePlan> {
        let identity = identity.twin()?;
        let config = self.config_of(&identity, name, &[]);
        Node::plan(scratch, &ImageUnderTest::first()?)
            .name(name)
            .config(config, identity)
            .spec(|spec| spec.deadline(LIFETIME))
            .blank_disk()
    }

    /// Plans the machine with the ISO and a blank disk, on which it installs v0.1.0: an upgrade by a reboot needs a boot loader. It has this long.
    pub(crate) fn plan_installation(
        &self,
        scratch: &Scratch,
        identity: Identity,
        life: Duration,
    ) -> anyhow::Result<NodePlan> {
        self.registry.push_both_installers()?;
        let image = self.registry.installer_for_guest("v0.1.0");
        let kind = "kind: UnattendedInstallConfig\n";
        let with_image = format!("{kind}installer: {{image: '{image}'}}\n");
        let config = self.config_with(&identity, &[]);
        let config = config.replace(kind, &with_image);
        let iso = Drive::raw(ImageUnderTest::first()?.iso()).on(Bus::Cd);
        let plan = Node::plan_from(scratch, VmSpec::uefi(uefi()?)).blank_disk()?;
        let plan = plan.config(config, identity);
        Ok(plan.spec(|spec| spec.drive(iso).deadline(life)))
    }

    /// The name of the greeter's image in a guest.
    pub(crate) fn greeter(&self) -> String {
        self.registry.image_for_guest("greeter:v1")
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
