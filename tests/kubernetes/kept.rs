//! Facts about a node and its pods that stay as they are while the OS, or Kubernetes itself, is replaced under them.

use anyhow::Context as _;
use instar_tests::{Greeter, Held, HeldConnection, Node};
use serde_json::Value;

use crate::cluster::{BEAT_PORT, Cluster, NAME};
use crate::watched_node::WatchedNode;

/// The facts at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    boot: Value,
    /// For each container: its pod, its address, its id, and how often it was restarted.
    containers: Vec<[Value; 4]>,
    /// When the server was started, by its own word.
    server: String,
}

impl Kept {
    pub(crate) fn of(node: &Node, cluster: &Cluster) -> anyhow::Result<Self> {
        let pods = cluster.plane.kubectl().get(&["pods", "-A"])?;
        let pods = pods["items"].as_array().context("no list of pods")?;
        Ok(Self {
            boot: cluster.node()?["status"]["nodeInfo"]["bootID"].clone(),
            containers: pods.iter().filter(lasts).flat_map(containers).collect(),
            server: Greeter::of(node)?.get("/since")?,
        })
    }
}

/// Whether a pod runs until somebody ends it, unlike those of jobs.
fn lasts(pod: &&Value) -> bool {
    pod["spec"]["restartPolicy"] == "Always"
}

/// Returns the facts about a pod's containers.
pub(crate) fn containers(pod: &Value) -> impl Iterator<Item = [Value; 4]> {
    let status = &pod["status"];
    let containers = status["containerStatuses"].as_array();
    containers.into_iter().flatten().map(|container| {
        [
            pod["metadata"]["name"].clone(),
            status["podIP"].clone(),
            container["containerID"].clone(),
            container["restartCount"].clone(),
        ]
    })
}

/// A watch over the facts: as they were, all states of the node, and one connection to a pod.
pub(crate) struct Watch<'a> {
    node: &'a Node,
    cluster: &'a Cluster,
    before: Kept,
    states: WatchedNode<'a>,
    held: HeldConnection,
}

impl<'a> Watch<'a> {
    pub(crate) fn start(node: &'a Node, cluster: &'a Cluster) -> anyhow::Result<Self> {
        Ok(Self {
            node,
            cluster,
            before: Kept::of(node, cluster)?,
            states: WatchedNode::start(cluster.plane.kubectl(), NAME)?,
            held: HeldConnection::open(node.guest_port(BEAT_PORT)?)?,
        })
    }

    /// Fails unless all facts are as they were, and no connection was lost; returns all states of the node.
    pub(crate) fn end(self) -> anyhow::Result<Vec<String>> {
        let after = Kept::of(self.node, self.cluster)?;
        let before = self.before;
        anyhow::ensure!(before == after, "{before:#?} became {after:#?}");
        let held: Held = self.held.close()?;
        println!("{held:?}");
        anyhow::ensure!(held.lost == 0 && held.answers > 0, "{held:?}");
        let states = self.states.end()?;
        println!("{states:#?}");
        Ok(states)
    }
}
