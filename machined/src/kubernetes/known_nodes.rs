//! The nodes of the cluster as they were read last. They are read only while there is a reader, and not more often than every 15 seconds.

use std::future::Future;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use super::cluster_nodes::ClusterNode;
use crate::base::lock::Lock as _;

/// The time after which the nodes are read again.
const FRESH: Duration = Duration::from_secs(15);
/// Limit on one look, so that a reader does not wait long for a cluster that does not answer.
const LOOK: Duration = Duration::from_secs(3);
/// The time for which the previous nodes count while the cluster does not answer.
const OLD: Duration = Duration::from_secs(600);

/// The nodes, and when they were read.
#[derive(Debug, Default)]
pub struct KnownNodes {
    /// When the cluster was asked last, whatever came of it. The lock is held while it is asked.
    asked: tokio::sync::Mutex<Option<Instant>>,
    known: Mutex<Option<Known>>,
}

#[derive(Debug)]
struct Known {
    /// The address of the cluster.
    cluster: String,
    at: Instant,
    nodes: Vec<ClusterNode>,
}

impl KnownNodes {
    /// Returns the nodes that are known.
    pub fn get(&self) -> Vec<ClusterNode> {
        let known = self.known.locked();
        known
            .as_ref()
            .map(|known| known.nodes.clone())
            .unwrap_or_default()
    }

    /// Forgets all nodes: the machine is in no cluster.
    pub fn forget(&self) {
        *self.known.locked() = None;
    }

    /// Asks the cluster at this address for its nodes if the last time was a while ago. An answer that does not come leaves the nodes of
    /// before, for a while.
    ///
    /// # Errors
    /// No node is known: the cluster does not answer, or refuses.
    pub async fn refresh(
        &self,
        cluster: &str,
        ask: impl Future<Output = anyhow::Result<Vec<ClusterNode>>>,
    ) -> anyhow::Result<()> {
        let mut asked = self.asked.lock().await;
        // Those of another cluster say nothing about this one.
        let other = self
            .known
            .locked()
            .take_if(|known| known.cluster != cluster);
        let is_known = other.is_none() && self.known.locked().is_some();
        if is_known && asked.is_some_and(|at| at.elapsed() < FRESH) {
            return Ok(());
        }
        let answer = timeout(LOOK, ask).await;
        *asked = Some(Instant::now());
        let failed = match answer {
            Ok(Ok(nodes)) => {
                *self.known.locked() = Some(Known {
                    cluster: cluster.to_owned(),
                    at: Instant::now(),
                    nodes,
                });
                return Ok(());
            }
            Ok(Err(error)) => format!("{error:#}"),
            Err(_) => format!("no answer within {} s", LOOK.as_secs()),
        };
        let failed = format!("the nodes of the cluster at {cluster} cannot be read: {failed}");
        let mut known = self.known.locked();
        known.take_if(|known| known.at.elapsed() >= OLD);
        anyhow::ensure!(known.is_some(), "{failed}");
        tracing::warn!("Kubernetes: {failed}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HERE: &str = "https://here:6443";

    #[tokio::test(start_paused = true)]
    async fn nodes_that_nobody_can_read_are_no_empty_list() {
        let known = KnownNodes::default();
        let away = async { anyhow::bail!("connection refused") };
        let error = known.refresh(HERE, away).await.unwrap_err().to_string();
        assert!(error.ends_with("connection refused"), "{error}");
        known
            .refresh(HERE, async { Ok(vec![node("one")]) })
            .await
            .unwrap();
        // Nodes of one cluster are no members of another one.
        let away = async { anyhow::bail!("connection refused") };
        known.refresh("https://there:6443", away).await.unwrap_err();
        assert_eq!(known.get(), []);
    }

    fn node(name: &str) -> ClusterNode {
        ClusterNode {
            name: name.to_owned(),
            firmware_id: String::new(),
            addresses: Vec::new(),
            is_control_plane: false,
            version: String::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_are_asked_for_once_in_a_while() {
        let known = KnownNodes::default();
        known
            .refresh(HERE, async { Ok(vec![node("one")]) })
            .await
            .unwrap();
        known
            .refresh(HERE, async { Ok(vec![node("two")]) })
            .await
            .unwrap();
        assert_eq!(known.get(), [node("one")]);
        known.forget();
        assert_eq!(known.get(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_does_not_answer_keeps_a_reader_for_a_moment_and_takes_no_node_away() {
        let known = KnownNodes::default();
        known
            .refresh(HERE, async { Ok(vec![node("one")]) })
            .await
            .unwrap();
        *known.asked.lock().await = None;
        let begun = tokio::time::Instant::now();
        known.refresh(HERE, std::future::pending()).await.unwrap();
        assert_eq!(begun.elapsed(), LOOK);
        assert_eq!(known.get(), [node("one")]);
        // The readers after it do not wait again.
        known.refresh(HERE, std::future::pending()).await.unwrap();
        assert_eq!(begun.elapsed(), LOOK);
    }
}
