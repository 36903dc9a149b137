//! Looks at the nodes: connections, and the facts that the engine decides by.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use instar_client::{Failure, Node, Standing, Target};
use instar_rollout::{Fact, Facts, MachineName};
use instar_rollout_driver::{busy as busy_fact, fact};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::members::Way;
use crate::cli::Global;
use crate::target;

/// Timeout of one look at a node, a new connection included.
const LOOK: Duration = Duration::from_secs(10);

/// Connects to a node.
pub(super) async fn connect(target: &Target, way: &Way) -> Result<Node, Failure> {
    match way.node {
        Some(_) => target.node().await,
        None => target.behind_endpoint().await,
    }
}

/// Connects to all nodes side by side. A node that does not answer has the reason instead.
pub(super) async fn connect_all(
    global: &Global,
    ways: BTreeMap<MachineName, Way>,
) -> BTreeMap<MachineName, Result<Node, String>> {
    let mut connecting = JoinSet::new();
    for (name, way) in ways {
        let target = target::by_way(global, &way.endpoints, way.node.as_deref());
        connecting.spawn_local(async move {
            let connected = match timeout(LOOK, connect(&target, &way)).await {
                Ok(connected) => connected.map_err(|failure| failure.chain()),
                Err(_) => Err(no_answer()),
            };
            (name, connected)
        });
    }
    let mut all = BTreeMap::new();
    while let Some(connected) = connecting.join_next().await {
        all.extend(connected);
    }
    all
}

fn no_answer() -> String {
    format!("no answer within {} s", LOOK.as_secs())
}

/// Connections to the nodes, made when they are needed.
pub(super) struct Nodes<'a> {
    global: &'a Global,
    ways: BTreeMap<MachineName, Way>,
    connected: BTreeMap<MachineName, Node>,
}

impl<'a> Nodes<'a> {
    pub(super) fn new(global: &'a Global, ways: BTreeMap<MachineName, Way>) -> Self {
        Self {
            global,
            ways,
            connected: BTreeMap::new(),
        }
    }

    /// The connection to a node, if there is one.
    pub(super) fn connected(&self, name: &MachineName) -> Option<Node> {
        self.connected.get(name).cloned()
    }

    /// Looks at all nodes side by side, but not at those that this driver has just asked to change: they are busy.
    pub(super) async fn look(&mut self, busy: &BTreeSet<MachineName>) -> Facts {
        let mut looks = JoinSet::new();
        let mut facts = Facts::new();
        for (name, way) in &self.ways {
            if busy.contains(name) {
                facts.insert(name.clone(), busy_fact());
                continue;
            }
            let (name, way, known) = (name.clone(), way.clone(), self.connected(name));
            let target = target::by_way(self.global, &way.endpoints, way.node.as_deref());
            looks.spawn_local(async move {
                let look = async {
                    let node = match known {
                        Some(node) => node,
                        None => connect(&target, &way).await?,
                    };
                    let standing = Standing::of(&node).await?;
                    Ok::<_, Failure>((node, standing))
                };
                (name, timeout(LOOK, look).await)
            });
        }
        while let Some(looked) = looks.join_next().await {
            let Ok((name, looked)) = looked else {
                continue;
            };
            let fact = match looked {
                Ok(Ok((node, standing))) => {
                    self.connected.insert(name.clone(), node);
                    fact(&standing)
                }
                Ok(Err(failure)) => Fact::away(failure.chain()),
                Err(_) => Fact::away(no_answer()),
            };
            facts.insert(name, fact);
        }
        facts
    }
}
