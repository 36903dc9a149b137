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

/// Returns the connection that is known, or a new one.
pub(super) async fn reach(
    known: Option<Node>,
    target: &Target,
    way: &Way,
) -> Result<Node, Failure> {
    match known {
        Some(node) => Ok(node),
        None => connect(target, way).await,
    }
}

/// Asks all nodes side by side, each within this time, its connection included. A node that does not tell has the reason instead.
pub(super) async fn ask_all<T: 'static, Asking>(
    global: &Global,
    ways: &BTreeMap<MachineName, Way>,
    limit: Duration,
    ask: impl Fn(&MachineName, Target, Way) -> Asking,
) -> BTreeMap<MachineName, Result<T, String>>
where
    Asking: Future<Output = Result<T, Failure>> + 'static,
{
    let mut asked = JoinSet::new();
    for (name, way) in ways {
        let target = target::by_way(global, &way.endpoints, way.node.as_deref());
        let (name, asking) = (name.clone(), ask(name, target, way.clone()));
        asked.spawn_local(async move {
            let told = match timeout(limit, asking).await {
                Ok(told) => told.map_err(|failure| failure.chain()),
                Err(_) => Err(format!("no answer within {} s", limit.as_secs())),
            };
            (name, told)
        });
    }
    let mut told = BTreeMap::new();
    while let Some(answer) = asked.join_next().await {
        told.extend(answer);
    }
    told
}

/// Connects to all nodes side by side. A node that does not answer has the reason instead.
pub(super) async fn connect_all(
    global: &Global,
    ways: BTreeMap<MachineName, Way>,
) -> BTreeMap<MachineName, Result<Node, String>> {
    ask_all(global, &ways, LOOK, |_, target, way| async move {
        connect(&target, &way).await
    })
    .await
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
        let mut asked = self.ways.clone();
        asked.retain(|name, _| !busy.contains(name));
        let looked = ask_all(self.global, &asked, LOOK, |name, target, way| {
            let known = self.connected(name);
            async move {
                let node = reach(known, &target, &way).await?;
                let standing = Standing::of(&node).await?;
                Ok((node, standing))
            }
        });
        let busy = self.ways.keys().filter(|name| busy.contains(name));
        let mut facts: Facts = busy.map(|name| (name.clone(), busy_fact())).collect();
        for (name, looked) in looked.await {
            let fact = match looked {
                Ok((node, standing)) => {
                    self.connected.insert(name.clone(), node);
                    fact(&standing)
                }
                Err(why) => Fact::away(why),
            };
            facts.insert(name, fact);
        }
        facts
    }
}
