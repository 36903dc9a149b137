//! The nodes of one rollout, as the driver sees and asks them.
//!
//! A node is asked when its object has changed since the last answer, and again while its last answer was not that it is ready; not otherwise. So
//! nothing is asked while nothing changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use instar_client::{Failure, Standing};
use instar_rollout::{Action, Condition, Fact, Facts, MachineName, Moment, Record, Step};
use instar_rollout_driver::{ConfigChange, Machines, Task, busy, config_fact, fact, now};
use kube::core::{Selector, SelectorExt as _};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::api::Strategy;
use crate::cluster::{ASK, Cluster};
use crate::config_secrets::ConfigSecrets;
use crate::drain::Drain;
use crate::making_way::MakingWay;
use crate::node::NodeView;
use crate::{configure, upgrade};

/// The pause before a node that was not ready is asked again; it doubles up to the last one.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LAST_PAUSE: Duration = Duration::from_secs(60);
/// Nodes that are asked at once.
const AT_ONCE: usize = 16;

/// The version or the change of configs that a rollout brings to its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Brings {
    /// A version.
    #[default]
    Version,
    /// A change of configs.
    Config(ConfigChange),
}

/// The nodes of a pool.
pub(crate) struct PoolNodes {
    cluster: Cluster,
    pool: String,
    /// Which nodes belong to the pool.
    pub(crate) selector: Selector,
    /// How their pods leave.
    pub(crate) drain: Drain,
    /// The fate of their data.
    pub(crate) strategy: Strategy,
    /// Where their configs of before are.
    pub(crate) configs: ConfigSecrets,
    brings: Brings,
    answers: BTreeMap<MachineName, Answer>,
}

/// A node's last answer.
struct Answer {
    /// The state of its object then.
    state: [Option<String>; 4],
    fact: Fact,
    at: Instant,
    pause: Duration,
}

impl PoolNodes {
    pub(crate) fn new(cluster: Cluster, pool: &str, configs: ConfigSecrets) -> Self {
        Self {
            cluster,
            configs,
            brings: Brings::default(),
            pool: pool.to_owned(),
            selector: Selector::default(),
            drain: Drain::default(),
            strategy: Strategy::default(),
            answers: BTreeMap::new(),
        }
    }

    /// Takes up another rollout. What nodes have answered for one of another version or change is no answer for it.
    pub(crate) fn take_up(&mut self, brings: Brings) {
        if self.brings != brings {
            self.brings = brings;
            self.answers.clear();
        }
    }

    /// Whether a node has to be asked.
    fn is_old(&self, name: &MachineName, view: &NodeView) -> bool {
        let Some(answer) = self.answers.get(name) else {
            return true;
        };
        let is_ready = answer.fact.condition == Condition::Ready;
        answer.state != view.state() || !is_ready && answer.at.elapsed() >= answer.pause
    }

    async fn ask_all(&mut self, record: &Record, due: Vec<(MachineName, NodeView)>) {
        let mut due = due.into_iter();
        let mut asks = JoinSet::new();
        loop {
            while asks.len() < AT_ONCE
                && let Some((name, view)) = due.next()
            {
                let entry = record.machines.get(&name);
                let question = Question {
                    cluster: self.cluster.clone(),
                    brings: self.brings.clone(),
                    configs: self.configs.clone(),
                    goes_back: entry.is_some_and(|it| matches!(it.step, Step::Returning { .. })),
                };
                asks.spawn_local(async move {
                    let fact = question.ask(&name, &view).await;
                    (name, view.state(), fact)
                });
            }
            let Some(asked) = asks.join_next().await else {
                return;
            };
            let Ok((name, state, fact)) = asked else {
                continue;
            };
            let last = self.answers.get(&name);
            let pause = last.map_or(FIRST_PAUSE, |last| (last.pause * 2).min(LAST_PAUSE));
            let pause = match fact.condition {
                Condition::Ready => FIRST_PAUSE,
                _ => pause,
            };
            let at = Instant::now();
            let answer = Answer {
                state,
                fact,
                at,
                pause,
            };
            self.answers.insert(name, answer);
        }
    }

    fn fact_of(&self, name: &MachineName, view: Option<&NodeView>) -> Fact {
        let gone = |why: &str| Fact {
            hold: Some(why.to_owned()),
            ..Fact::away(why)
        };
        let Some(view) = view else {
            return gone("it is not in the cluster any more");
        };
        let answered = self.answers.get(name).map(|answer| answer.fact.clone());
        let answered = answered.unwrap_or_else(|| Fact::away("it was not asked"));
        let mut fact = seen(&self.brings, view, answered);
        if !self.selector.matches(&view.labels) {
            let why = "it does not belong to the pool any more";
            fact.hold.get_or_insert_with(|| why.to_owned());
        }
        fact
    }
}

/// The fact from the node's answer and from the cluster's view of it: the node is ready when both say so, and its object shows the version that it
/// runs. Of its config the object shows nothing.
fn seen(brings: &Brings, view: &NodeView, answered: Fact) -> Fact {
    let mut fact = Fact {
        hold: view.hold.clone(),
        ..answered
    };
    if fact.condition != Condition::Ready {
        return fact;
    }
    let running = fact.running.as_ref().map(|running| running.version.clone());
    if let Some(why) = &view.unready {
        fact.condition = Condition::NotReady(why.clone());
    } else if *brings == Brings::Version && view.version != running {
        let shown = view.version.as_deref().unwrap_or("none");
        let why = format!("its object shows another version yet: {shown}");
        fact.condition = Condition::NotReady(why);
    }
    fact
}

/// The time that is left for a machine's action. The record counts from when it was asked first, however often it is asked: an order that goes on
/// after that would change a node whose rollout has counted it as failed.
fn time_left(record: &Record, name: &MachineName, now: Moment) -> Duration {
    let patience = record.patience_of(name);
    let entry = record.machines.get(name);
    let since = entry.and_then(|entry| entry.step.since());
    let left = since.map_or(patience, |since| since.after(patience).since(now));
    // A clock that was set back meanwhile gives no more time.
    Duration::from_secs(left.min(patience).0)
}

/// A question to one node.
struct Question {
    cluster: Cluster,
    brings: Brings,
    configs: ConfigSecrets,
    /// Whether it was asked to go back.
    goes_back: bool,
}

impl Question {
    /// Asks for its standing, and for what the rollout brings.
    async fn ask(&self, name: &MachineName, view: &NodeView) -> Fact {
        let ask = async {
            match &self.brings {
                Brings::Version => {
                    let node = self.cluster.connect(view).await?;
                    Ok::<_, Failure>(fact(&Standing::of(&node).await?))
                }
                Brings::Config(change) => {
                    // Only the fact leaves here, and a node that has to go back may not have told its last boot.
                    let node = self.cluster.connect_to_compare_configs(view).await?;
                    config_fact(&node, name, self.goes_back, change, &self.configs).await
                }
            }
        };
        match timeout(ASK, ask).await {
            Ok(Ok(fact)) => fact,
            Ok(Err(failure)) => Fact::away(failure.chain()),
            Err(_) => Fact::away(format!("no answer within {} s", ASK.as_secs())),
        }
    }
}

impl Machines for PoolNodes {
    async fn look(&mut self, record: &Record, asked: &BTreeSet<MachineName>) -> Facts {
        let names = record.machines.keys().cloned();
        let views: BTreeMap<MachineName, Option<NodeView>> = names
            .map(|name| {
                let view = self.cluster.node(name.as_str());
                (name, view)
            })
            .collect();
        let due = views.iter().filter_map(|(name, view)| {
            let view = view.as_ref()?;
            let is_due = !asked.contains(name) && self.is_old(name, view);
            is_due.then(|| (name.clone(), view.clone()))
        });
        let due = due.collect();
        self.ask_all(record, due).await;
        for name in asked {
            // It changes: what it said before is no answer any more.
            self.answers.remove(name);
        }
        let facts = views.iter().map(|(name, view)| {
            let fact = match asked.contains(name) {
                true => busy(),
                false => self.fact_of(name, view.as_ref()),
            };
            (name.clone(), fact)
        });
        facts.collect()
    }

    fn ask(&mut self, action: &Action, record: &Record) -> Option<Task> {
        let name = action.machine();
        let entry = record.machines.get(name)?;
        let to = match action {
            Action::Return(_) => entry.before.clone(),
            Action::Prepare(_) | Action::Switch(_) => Some(record.target.clone()),
        };
        let limit = time_left(record, name, now());
        let way = MakingWay {
            cluster: self.cluster.clone(),
            pool: self.pool.clone(),
            node: name.as_str().to_owned(),
            action: action.clone(),
            to,
            drain: self.drain,
        };
        self.answers.remove(name);
        Some(match &self.brings {
            Brings::Version => {
                let strategy = self.strategy;
                let order = upgrade::Order {
                    way,
                    strategy,
                    limit,
                };
                Box::pin(order.carry_out())
            }
            Brings::Config(change) => {
                let order = configure::Order {
                    way,
                    change: change.clone(),
                    configs: self.configs.clone(),
                    limit,
                };
                Box::pin(order.carry_out())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Member, Policy, Release};
    use serde_json::json;

    use super::*;

    fn view(version: &str, ready: &str, unschedulable: bool) -> NodeView {
        let node = json!({
            "metadata": {"name": "n1", "labels": {crate::api::VERSION_LABEL: version}},
            "spec": {"unschedulable": unschedulable},
            "status": {"conditions": [{"type": "Ready", "status": ready, "message": "kubelet sleeps"}]},
        });
        NodeView::of(&serde_json::from_value(node).unwrap())
    }

    #[test]
    fn a_node_is_ready_when_it_and_the_cluster_say_so_of_the_same_version() {
        let answered = |condition| Fact {
            condition,
            running: Some(Release {
                version: "v2".to_owned(),
                digest: None,
                image: None,
            }),
            ..Fact::away("")
        };
        let ready = || answered(Condition::Ready);
        for (view, answered, expected) in [
            (view("v2", "True", false), ready(), "Ready"),
            (
                view("v1", "True", false),
                ready(),
                "another version yet: v1",
            ),
            (view("v2", "False", false), ready(), "kubelet sleeps"),
            (view("v2", "True", false), answered(Condition::Busy), "Busy"),
            (
                view("v2", "False", false),
                Fact::away("dead"),
                "Away(\"dead\")",
            ),
        ] {
            let fact = seen(&Brings::Version, &view, answered);
            let condition = format!("{:?}", fact.condition);
            assert!(condition.contains(expected), "{condition}, not {expected}");
        }
        let held = seen(&Brings::Version, &view("v2", "True", true), ready());
        assert!(held.hold.is_some());
        // In a rollout of configs it runs a config, and its object tells its version.
        let config = Brings::Config(ConfigChange::Patches(vec!["{}".to_owned()]));
        for (ready_by, expected) in [("True", "Ready"), ("False", "kubelet sleeps")] {
            let fact = seen(&config, &view("v1", ready_by, false), ready());
            let condition = format!("{:?}", fact.condition);
            assert!(condition.contains(expected), "{condition}");
        }
    }

    #[test]
    fn an_order_that_is_given_again_has_what_is_left_of_the_first_ones_time() {
        let target = Release {
            version: "v2".to_owned(),
            digest: None,
            image: None,
        };
        let name = MachineName::from("n1");
        let members = [(name.clone(), Member::default())];
        let mut record = Record::begin(target, vec![Policy::default()], members.into()).unwrap();
        let patience = record.patience_of(&name).0;
        let (began, action) = (Moment(1_000_000), Action::Switch(name.clone()));
        record.intend(&action, &Facts::new(), began);
        for (after, left) in [
            (0, patience),
            (600, patience - 600),
            (patience, 0),
            (patience + 1, 0),
        ] {
            let now = Moment(began.0 + after);
            // The driver notes each order that it gives.
            record.intend(&action, &Facts::new(), now);
            assert_eq!(time_left(&record, &name, now).as_secs(), left, "{after}");
        }
        let earlier = Moment(began.0 - 60);
        assert_eq!(time_left(&record, &name, earlier).as_secs(), patience);
    }
}
