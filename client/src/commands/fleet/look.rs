//! Looks at the nodes: connections, and the facts that the engine decides by.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use instar_client::{Failure, Node, Standing, Target};
use instar_rollout::{Fact, Facts, MachineName, Record, Step};
use instar_rollout_driver::{ConfigChange, busy as busy_fact, config_fact, fact};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::members::Way;
use super::store::Folder;
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

/// The change that a rollout brings, as far as a look at a node depends on it.
#[derive(Clone)]
pub(super) enum Brings {
    /// A version.
    Version,
    /// A change of configs; the folder knows what became of them.
    Config(ConfigChange, Folder),
}

/// Connections to the nodes, made when they are needed.
pub(super) struct Nodes<'a> {
    global: &'a Global,
    brings: Brings,
    ways: BTreeMap<MachineName, Way>,
    connected: BTreeMap<MachineName, Node>,
}

impl<'a> Nodes<'a> {
    pub(super) fn new(
        global: &'a Global,
        ways: BTreeMap<MachineName, Way>,
        brings: Brings,
    ) -> Self {
        Self {
            global,
            brings,
            ways,
            connected: BTreeMap::new(),
        }
    }

    /// How a node is reached, for connections of one's own.
    pub(super) fn way(&self, name: &MachineName) -> Option<(Target, Way)> {
        let way = self.ways.get(name)?;
        let target = target::by_way(self.global, &way.endpoints, way.node.as_deref());
        Some((target, way.clone()))
    }

    /// The connection to a node, if there is one.
    pub(super) fn connected(&self, name: &MachineName) -> Option<Node> {
        self.connected.get(name).cloned()
    }

    /// Looks at all nodes side by side, but not at those that this driver has just asked to change: they are busy. `record`: that of the
    /// rollout, once it has begun.
    pub(super) async fn look(
        &mut self,
        record: Option<&Record>,
        busy: &BTreeSet<MachineName>,
    ) -> Facts {
        let mut asked = self.ways.clone();
        asked.retain(|name, _| !busy.contains(name));
        let looked = ask_all(self.global, &asked, LOOK, |name, target, way| {
            let (known, name) = (self.connected(name), name.clone());
            let brings = self.brings.clone();
            let entry = record.and_then(|record| record.machines.get(&name));
            let goes_back = entry.is_some_and(|it| matches!(it.step, Step::Returning { .. }));
            async move {
                let node = reach(known, &target, &way).await?;
                let fact = match &brings {
                    Brings::Version => fact(&Standing::of(&node).await?),
                    Brings::Config(change, folder) => {
                        config_fact(&node, &name, goes_back, change, folder).await?
                    }
                };
                Ok((node, fact))
            }
        });
        let busy = self.ways.keys().filter(|name| busy.contains(name));
        let mut facts: Facts = busy.map(|name| (name.clone(), busy_fact())).collect();
        for (name, looked) in looked.await {
            let fact = match looked {
                Ok((node, fact)) => {
                    self.connected.insert(name.clone(), node);
                    fact
                }
                Err(why) => Fact::away(why),
            };
            facts.insert(name, fact);
        }
        facts
    }
}
