//! Looks at the nodes: connections, and the facts that the engine decides by.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use instar_client::{Failure, FailureKind, Node, Standing, Target};
use instar_rollout::{Fact, Facts, MachineName, Record, Step};
use instar_rollout_driver::{ConfigChange, busy as busy_fact, config_fact, fact};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::members::Way;
use super::note::note;
use super::store::Folder;
use crate::cli::Global;
use crate::target;

/// Timeout of one look at a node, a new connection included.
const LOOK: Duration = Duration::from_secs(10);
/// Timeout of a node's answer about a change: it may look an image up at a registry that says nothing.
const ANSWER: Duration = Duration::from_secs(120);
/// Limit on the number of nodes that are asked about a change at once: their questions may reach one registry.
const ASKED_AT_ONCE: usize = 256;

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
    let late = format!("no answer within {} s", limit.as_secs());
    let asking = ways.iter().map(|(name, way)| {
        let target = target::by_way(global, &way.endpoints, way.node.as_deref());
        let asking = ask(name, target, way.clone());
        (name.clone(), within(limit, asking, late.clone()))
    });
    let told = side_by_side(asking, usize::MAX).await.into_iter();
    told.map(|(name, told)| (name, told.map_err(|failure| failure.chain())))
        .collect()
}

/// Asks nodes side by side, at most so many at once.
async fn side_by_side<T: 'static>(
    mut asking: impl Iterator<Item = (MachineName, impl Future<Output = T> + 'static)>,
    at_once: usize,
) -> BTreeMap<MachineName, T> {
    let mut asked = JoinSet::new();
    let mut told = BTreeMap::new();
    loop {
        for (name, asking) in asking.by_ref().take(at_once - asked.len()) {
            asked.spawn_local(async move { (name, asking.await) });
        }
        match asked.join_next().await {
            Some(answer) => told.extend(answer),
            None => return told,
        }
    }
}

/// The answer of a node within this time; else a failure with these words.
async fn within<T>(
    limit: Duration,
    asking: impl Future<Output = Result<T, Failure>>,
    late: String,
) -> Result<T, Failure> {
    let told = timeout(limit, asking).await;
    told.unwrap_or_else(|_| Err(Failure::new(FailureKind::TimedOut, late)))
}

/// The answer of a node by its name, within this time: one that says nothing keeps no other one from its turn. What was asked for may be done even so.
pub(super) async fn answered<T>(
    node: &str,
    limit: Duration,
    asking: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let late = format!("{node}: no answer within {} s", limit.as_secs());
    within(limit, asking, late).await
}

/// Why a node does not say that it takes a change, for people.
pub(super) fn obstacle(failure: &Failure) -> String {
    match failure.kind() {
        FailureKind::TimedOut => failure.chain(),
        _ => format!("would refuse: {}", failure.chain()),
    }
}

/// Whether a node has answered that it does not take a change.
pub(super) fn refused<T>(answer: Option<&Result<T, Failure>>) -> bool {
    matches!(answer, Some(Err(failure)) if failure.kind() != FailureKind::TimedOut)
}

/// Connects to all nodes side by side. A node that does not answer has the failure instead.
pub(super) async fn connect_all(
    global: &Global,
    ways: BTreeMap<MachineName, Way>,
) -> BTreeMap<MachineName, Result<Node, Failure>> {
    let connected = ask_all(global, &ways, LOOK, |_, target, way| async move {
        connect(&target, &way).await
    });
    let connected = connected.await.into_iter().map(|(name, node)| {
        let node =
            node.map_err(|why| Failure::new(FailureKind::Unreachable, format!("{name}: {why}")));
        (name, node)
    });
    connected.collect()
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

    /// Asks the nodes that are connected whether they take this change, side by side and each for a limited time; says so, since the answers may take
    /// that long.
    pub(super) async fn survey<T: 'static, Asking>(
        &self,
        change: &str,
        ask: impl Fn(MachineName, Node) -> Asking,
    ) -> BTreeMap<MachineName, Result<T, Failure>>
    where
        Asking: Future<Output = Result<T, Failure>> + 'static,
    {
        let limit = ANSWER.as_secs();
        note(&format!(
            "{} of {} nodes answer: each is asked whether it takes {change}, for {limit} s at most",
            self.connected.len(),
            self.ways.len()
        ));
        let asking = self.connected.iter().map(|(name, node)| {
            let late = format!(
                "{name}: no answer within {limit} s whether it takes {change}; its log may say what it waits for"
            );
            let asking = ask(name.clone(), node.clone());
            (name.clone(), within(ANSWER, asking, late))
        });
        side_by_side(asking, ASKED_AT_ONCE).await
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::sync::Barrier;
    use tokio::task::{LocalSet, yield_now};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(1);

    fn name(number: usize) -> MachineName {
        MachineName::from(format!("lamp-{number}"))
    }

    #[tokio::test]
    async fn nodes_are_asked_side_by_side_and_a_silent_one_costs_its_time_alone() {
        // Each of the others answers when all of them have been asked.
        let others = Rc::new(Barrier::new(9));
        let asking = (0..10).map(|number| {
            let others = others.clone();
            let asking = async move {
                match number {
                    4 => std::future::pending().await,
                    _ => others.wait().await,
                };
                Ok(number)
            };
            (name(number), within(LIMIT, asking, "silent".to_owned()))
        });
        let told = LocalSet::new().run_until(side_by_side(asking, 10)).await;
        assert_eq!(told.len(), 10);
        for (number, told) in (0..10).map(|number| (number, &told[&name(number)])) {
            match told {
                Ok(told) => assert_eq!(*told, number),
                Err(late) => {
                    assert_eq!((number, late.kind()), (4, FailureKind::TimedOut));
                    assert_eq!(obstacle(late), "silent");
                    // It has not answered, and so has refused nothing.
                    assert!(!refused(Some(told)));
                }
            }
        }
    }

    #[tokio::test]
    async fn a_node_that_says_nothing_is_named() {
        let silent = std::future::pending::<Result<(), Failure>>();
        let told = answered("lamp-1", Duration::ZERO, silent).await;
        let words = "lamp-1: no answer within 0 s";
        assert!(matches!(told, Err(late) if late.chain() == words));
        let told = answered("lamp-1", LIMIT, async { Ok(7) }).await;
        assert!(matches!(told, Ok(7)));
    }

    #[test]
    fn only_an_answer_is_a_refusal() {
        let refusal: Result<(), Failure> =
            Err(Failure::new(FailureKind::Refused, "below its floor"));
        assert!(refused(Some(&refusal)));
        assert!(!refused(Some(&Ok(()))) && !refused::<()>(None));
    }

    #[tokio::test]
    async fn so_many_are_asked_at_once_and_no_more() {
        let (now, most) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
        let asking = (0..50).map(|number| {
            let (now, most) = (now.clone(), most.clone());
            let asking = async move {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                yield_now().await;
                now.set(now.get() - 1);
            };
            (name(number), asking)
        });
        let told = LocalSet::new().run_until(side_by_side(asking, 8)).await;
        assert_eq!((told.len(), most.get()), (50, 8));
    }
}
