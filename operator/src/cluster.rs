//! The cluster as all parts of the operator see it: its client, and what the watches have seen.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use instar_client::{Failure, FailureKind, Node, Target};
use k8s_openapi::api::core::v1::{Node as NodeObject, ObjectReference};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource as _};
use tokio::time::timeout;

use crate::api::{Channel, NodeUpgrade, Pool};
use crate::events::Recorder;
use crate::lease::Leadership;
use crate::node::NodeView;

/// Timeout of a new connection to a node, and of one question to it.
pub(crate) const ASK: Duration = Duration::from_secs(10);

/// The kernel's own id of its boot, which kubelet tells as well. No upgrade without a reboot changes it.
const KERNEL_BOOT_ID: &str = "/run/kernel-boot-id";

/// The cluster.
#[derive(Clone)]
pub(crate) struct Cluster {
    pub(crate) client: Client,
    /// The client for evictions: it takes the first answer for an answer.
    pub(crate) evictions: Client,
    pub(crate) nodes: Store<NodeObject>,
    pub(crate) pools: Store<Pool>,
    pub(crate) upgrades: Store<NodeUpgrade>,
    pub(crate) channels: Store<Channel>,
    pub(crate) lease: Rc<Leadership>,
    pub(crate) recorder: Recorder,
    /// The client configuration for the nodes' APIs.
    pub(crate) talosconfig: Option<PathBuf>,
    /// The client configuration by which configs are changed and machines replaced, if the administrator gives one.
    pub(crate) config_talosconfig: Option<PathBuf>,
    /// The namespace of the operator.
    pub(crate) namespace: String,
    /// The node on which this process runs.
    pub(crate) own_node: Option<String>,
    /// The folder for traces of rollouts, if they are written.
    pub(crate) traces: Option<PathBuf>,
}

impl Cluster {
    /// A node as the watch has seen it last.
    pub(crate) fn node(&self, name: &str) -> Option<NodeView> {
        let object = self.nodes.get(&ObjectRef::new(name))?;
        Some(NodeView::of(&object))
    }

    /// A node as the object of an event.
    pub(crate) fn node_reference(&self, name: &str) -> Option<ObjectReference> {
        let object = self.nodes.get(&ObjectRef::new(name))?;
        Some(object.object_ref(&()))
    }

    /// All nodes, by name.
    pub(crate) fn all_nodes(&self) -> Vec<NodeView> {
        let objects = self.nodes.state();
        let mut nodes: Vec<NodeView> = objects.iter().map(|object| NodeView::of(object)).collect();
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        nodes
    }

    /// A pool as the watch has seen it last.
    pub(crate) fn pool(&self, name: &str) -> Option<Arc<Pool>> {
        self.pools.get(&ObjectRef::new(name))
    }

    /// A channel as the watch has seen it last.
    pub(crate) fn channel(&self, name: &str) -> Option<Arc<Channel>> {
        self.channels.get(&ObjectRef::new(name))
    }

    pub(crate) fn node_api(&self) -> Api<NodeObject> {
        Api::all(self.client.clone())
    }

    /// Whether the administrator lets this operator change configs and replace machines. The Secret may come and go while it runs.
    pub(crate) fn has_administrators_rights(&self) -> bool {
        let file = self.config_talosconfig.as_ref();
        file.is_some_and(|file| file.exists())
    }

    /// Connects to the API of a node.
    pub(crate) async fn connect(&self, node: &NodeView) -> Result<Node, Failure> {
        connect(node, self.talosconfig.clone()).await
    }

    /// Connects to the API of a node with the administrator's rights, once the machine there has proved to be this node: a node says itself where
    /// its API is, and must neither get the config of another one nor have another one erased.
    pub(crate) async fn connect_as_administrator(&self, view: &NodeView) -> Result<Node, Failure> {
        let node = self.connect_to_compare_configs(view).await?;
        check_boot(&node, view).await?;
        Ok(node)
    }

    /// The same without this proof, for callers that send a config only to a machine that has the very config that this node was given. A node
    /// whose new config keeps it from its API server cannot tell the cluster of its last boot, and has to go back all the same.
    pub(crate) async fn connect_to_compare_configs(
        &self,
        view: &NodeView,
    ) -> Result<Node, Failure> {
        let Some(file) = self.config_talosconfig.clone() else {
            let why = "there is no client configuration with the role os:admin";
            return Err(unreachable(why.to_owned()));
        };
        let objects = self.nodes.state();
        let others = objects.iter().map(|object| &**object);
        view.check_that_it_is_alone(others).map_err(unreachable)?;
        connect(view, Some(file)).await
    }
}

/// Checks that the machine there is this node: both tell the same boot. The administrator's rights are needed to ask the machine for it.
pub(crate) async fn check_boot(node: &Node, view: &NodeView) -> Result<(), Failure> {
    let told = timeout(ASK, node.read_text(KERNEL_BOOT_ID)).await;
    let told = told.map_err(|_| unreachable(format!("{} does not tell its boot", view.name)))?;
    let told = told.map_err(|status| node.explain("cannot tell its boot", status))?;
    view.check_boot(told.trim()).map_err(unreachable)
}

/// The machine may show that it is this node a moment later: it is asked anew.
fn unreachable(why: String) -> Failure {
    Failure::new(FailureKind::Unreachable, why)
}

async fn connect(node: &NodeView, config_file: Option<PathBuf>) -> Result<Node, Failure> {
    let Some(address) = node.address.clone() else {
        return Err(unreachable(format!("{} has no InternalIP", node.name)));
    };
    let target = Target {
        config_file,
        endpoints: vec![address.clone()],
        ..Target::default()
    };
    match timeout(ASK, target.behind_endpoint()).await {
        Ok(connected) => connected.map(|connected| connected.called(&node.name)),
        Err(_) => Err(unreachable(format!(
            "{address} does not answer within {} s",
            ASK.as_secs()
        ))),
    }
}
