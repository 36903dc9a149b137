//! All states of a node that its cluster saw, in the order in which it saw them.

use anyhow::Context as _;
use instar_tests::{FollowedProgram, Kubectl};

use crate::PATIENCE;

/// A watch of a node, from its start to its end.
pub(crate) struct WatchedNode<'a> {
    kubectl: &'a Kubectl,
    name: &'a str,
    states: FollowedProgram,
}

/// A label that ends the watch.
const MARK: &str = "example.org/watched";
/// Whether the node is ready, its OS, and the label.
const STATE: &str = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.nodeInfo.osImage} {.metadata.labels.example\.org/watched}{"\n"}"#;

impl<'a> WatchedNode<'a> {
    /// Starts to watch; the state of now is the first one.
    pub(crate) fn start(kubectl: &'a Kubectl, name: &'a str) -> anyhow::Result<Self> {
        let mut states = kubectl.follow(&["get", "node", name, "--watch", "-o", STATE])?;
        states.wait_for("the node's state", PATIENCE, |_| true)?;
        Ok(Self {
            kubectl,
            name,
            states,
        })
    }

    /// Returns all states up to now.
    pub(crate) fn end(mut self) -> anyhow::Result<Vec<String>> {
        let mark = format!("{MARK}=end");
        self.kubectl.run(&["label", "node", self.name, &mark])?;
        let last = self
            .states
            .wait_for("the end of the watch", PATIENCE, |line| {
                line.ends_with(" end")
            });
        last.context("the watch ended early")?;
        Ok(self.states.heard().to_vec())
    }
}
