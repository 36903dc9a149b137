//! The nodes of one rollout, as the driver sees and asks them.
//!
//! A node is asked when its object has changed since the last answer, and again while its last answer was not that it is ready; not otherwise. So
//! nothing is asked while nothing changes. One exception are the waves: a node on which the next wave relies is asked now and then while that wave
//! may begin soon, as its object does not tell whether the machine itself is well.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use instar_base::back_off::BackOff;
use instar_client::{Failure, Standing};
use instar_rollout::{Action, Condition, Fact, Facts, MachineName, Record, Release, Step};
use instar_rollout_driver::{
    ConfigChange, Machines, Task, busy, config_fact, fact, now, time_left,
};
use kube::core::{Selector, SelectorExt as _};
use tokio::time::timeout;

use crate::api::Strategy;
use crate::cluster::{ASK, Cluster, check_boot};
use crate::config_secrets::ConfigSecrets;
use crate::drain::Drain;
use crate::hindrances::Hindrances;
use crate::making_way::MakingWay;
use crate::node::NodeView;
use crate::questions::{Due, Limits, Questions};
use crate::{configure, upgrade};

/// The pauses before a node that was not ready is asked again.
const PAUSES: BackOff = BackOff {
    first: Duration::from_secs(2),
    longest: Duration::from_secs(60),
};
/// The shortest pause before a node is asked again that the cluster calls not ready, and that is not to change now: it will hardly answer.
const SILENT_PAUSE: Duration = Duration::from_secs(30);
/// How long the answer of a node holds on which the next wave relies. Many such nodes are asked ten in a second at most.
const RELIED_ON: Duration = Duration::from_secs(30);
const RELIED_ON_EACH: Duration = Duration::from_millis(100);
/// How long one look waits for its answers.
const LOOK: Limits = Limits {
    all: Duration::from_secs(5),
    likely_silent: Duration::from_secs(1),
};
/// The last part of a node's time, longer than one look: no order is given again in it, and the reason for which the last one failed is seen.
const LAST_MOMENTS: Duration = Duration::from_secs(6);
/// The last part of a node's time, in which no way is made: enough to read two objects of the cluster, and report before the time is over that the node
/// was not asked. A node whose time is over meanwhile would count as failed.
const AFTER_THE_WAY: Duration = Duration::from_secs(2 * ASK.as_secs() + 5);

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
    /// Where their previous configs are.
    pub(crate) configs: ConfigSecrets,
    brings: Brings,
    answers: BTreeMap<MachineName, Answer>,
    questions: Questions<(ObjectState, Fact)>,
    hindrances: Hindrances,
}

/// The nodes of a rollout by name; none if the cluster does not have it any more.
type Views = BTreeMap<MachineName, Option<NodeView>>;

/// The state of a node's object ([`NodeView::state`]).
type ObjectState = [Option<String>; 4];

/// A node's last answer.
struct Answer {
    /// The state of its object then.
    state: ObjectState,
    fact: Fact,
    at: Instant,
    /// Its number among the node's answers, counted from 1 at the last one that the node is ready.
    in_a_row: u32,
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
            questions: Questions::new(),
            hindrances: Hindrances::default(),
        }
    }

    /// Takes up another rollout. What nodes have answered for one of another version or change is no answer for it.
    pub(crate) fn take_up(&mut self, brings: Brings) {
        if self.brings != brings {
            self.brings = brings;
            self.answers.clear();
            self.questions = Questions::new();
            self.hindrances = Hindrances::default();
        }
    }

    /// Asks the nodes whose answers are old, those with the oldest answers first. Returns who has not answered yet.
    async fn ask_old(
        &mut self,
        record: &Record,
        asked: &BTreeSet<MachineName>,
        views: &Views,
    ) -> BTreeSet<MachineName> {
        let is_held = |name: &MachineName| {
            let view = views.get(name).and_then(Option::as_ref);
            view.is_none_or(|view| view.hold.is_some() || !self.selector.matches(&view.labels))
        };
        let relied_on = record.relied_on(is_held, now());
        let holds = relied_on_holds_for(relied_on.len());
        let mut open = BTreeSet::new();
        let mut due = Vec::new();
        for (name, view) in views {
            let (Some(view), Some(entry)) = (view, record.machines.get(name)) else {
                continue;
            };
            let is_silent = is_likely_silent(view, &entry.step);
            let holds = relied_on.contains(name).then_some(holds);
            let answer = self.answers.get(name);
            let is_old = answer.is_none_or(|answer| answer.is_old(view, is_silent, holds));
            if asked.contains(name) || !is_old {
                continue;
            }
            open.insert(name.clone());
            if !self.questions.are_put_to(name) {
                let question = self.question(record, name, view);
                due.push((answer.map(|answer| answer.at), is_silent, question));
            }
        }
        due.sort_by_key(|(at, ..)| *at);
        let due = due.into_iter().map(|(_, is_likely_silent, question)| Due {
            name: question.name.clone(),
            is_likely_silent,
            ask: question.ask(),
        });
        let answers = self.questions.put(due.collect(), LOOK).await;
        for (name, _) in &answers {
            open.remove(name);
        }
        self.take_in(answers);
        open
    }

    fn question(&self, record: &Record, name: &MachineName, view: &NodeView) -> Question {
        let step = record.machines.get(name).map(|entry| &entry.step);
        let takes_proof = step.is_some_and(|it| takes_proof(&self.brings, self.strategy, it));
        Question {
            cluster: self.cluster.clone(),
            brings: self.brings.clone(),
            configs: self.configs.clone(),
            name: name.clone(),
            view: view.clone(),
            goes_back: matches!(step, Some(Step::Returning { .. })),
            proof_before: takes_proof.then(|| record.target.clone()),
        }
    }

    fn take_in(&mut self, answers: Vec<(MachineName, (ObjectState, Fact))>) {
        for (name, (state, fact)) in answers {
            let last = self.answers.get(&name);
            let in_a_row = match fact.condition {
                Condition::Ready => 1,
                _ => last.map_or(1, |last| last.in_a_row.saturating_add(1)),
            };
            let at = Instant::now();
            let answer = Answer {
                state,
                fact,
                at,
                in_a_row,
            };
            self.answers.insert(name, answer);
        }
    }

    /// Forgets the node's answer, and the one that is to come.
    fn forget(&mut self, name: &MachineName) {
        self.answers.remove(name);
        self.questions.drop_that_to(name);
    }

    /// `is_open`: whether the node has not answered yet, and its previous answer is old.
    fn fact_of(&self, name: &MachineName, view: Option<&NodeView>, is_open: bool) -> Fact {
        let Some(view) = view else {
            return Fact::gone("it is not in the cluster any more");
        };
        // That it was ready once is no answer; that it was not stands until it says otherwise.
        let answer = self.answers.get(name).filter(|answer| {
            let is_of_now = !is_open && answer.state == view.state();
            is_of_now || answer.fact.condition != Condition::Ready
        });
        let answered = answer.map(|answer| answer.fact.clone());
        let answered = answered.unwrap_or_else(|| Fact::away("it has not answered yet"));
        let mut fact = seen(&self.brings, view, answered);
        if !self.selector.matches(&view.labels) {
            let why = "it does not belong to the pool any more";
            fact.hold.get_or_insert_with(|| why.to_owned());
        }
        fact
    }
}

impl Answer {
    /// Whether the node has to be asked again. `holds`: how long an answer that it is ready holds; none: until its object changes.
    fn is_old(&self, view: &NodeView, is_likely_silent: bool, holds: Option<Duration>) -> bool {
        let pause = PAUSES.after(self.in_a_row);
        let holds = match (&self.fact.condition, is_likely_silent) {
            (Condition::Ready, _) => holds,
            (_, true) => Some(pause.max(SILENT_PAUSE)),
            (_, false) => Some(pause),
        };
        self.state != view.state() || holds.is_some_and(|holds| self.at.elapsed() >= holds)
    }
}

/// Whether a node will hardly answer, and has no need to now.
fn is_likely_silent(view: &NodeView, step: &Step) -> bool {
    view.unready.is_some() && !step.is_to_act()
}

/// How long the answers of so many nodes hold on which the next wave relies.
fn relied_on_holds_for(nodes: usize) -> Duration {
    let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
    RELIED_ON.max(RELIED_ON_EACH.saturating_mul(nodes))
}

/// Whether an order to a node at this step takes the administrator's rights: the machine there has to prove before that it is the node.
fn takes_proof(brings: &Brings, strategy: Strategy, step: &Step) -> bool {
    let are_needed = match brings {
        Brings::Version => strategy == Strategy::Replace,
        Brings::Config(_) => true,
    };
    let is_to_change = matches!(
        step,
        Step::Waiting | Step::Preparing { .. } | Step::Prepared | Step::Switching { .. }
    );
    are_needed && is_to_change
}

/// The fact of a machine that is as it was at the end of its time because its orders could not be carried out: it tells why, as of one that is not
/// ready, so that the reason stands in the record. `left`: what is left of its time.
fn hindered(fact: Fact, record: &Record, name: &MachineName, left: Duration, why: &str) -> Fact {
    let Some(entry) = record.machines.get(name) else {
        return fact;
    };
    let step = &entry.step;
    let is_held = entry.hold.is_some() || fact.hold.is_some();
    let runs_target = runs(&fact, &record.target);
    let is_as_before = runs_target == matches!(step, Step::Returning { .. });
    let is_hindered = fact.condition == Condition::Ready && step.is_to_act() && is_as_before;
    if !is_hindered || is_held || left > LAST_MOMENTS {
        return fact;
    }
    Fact {
        condition: Condition::NotReady(format!("its last order failed: {why}")),
        ..fact
    }
}

fn runs(fact: &Fact, target: &Release) -> bool {
    let running = fact.running.as_ref();
    running.is_some_and(|running| running.is(target))
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

/// The part of a node's time that is left for its change once way has been made.
fn way_left(action: &Action, record: &Record, limit: Duration) -> Duration {
    let patience = Duration::from_secs(record.patience_of(action.machine()).0);
    limit.saturating_sub(AFTER_THE_WAY.min(patience / 4))
}

/// A question to one node.
struct Question {
    cluster: Cluster,
    brings: Brings,
    configs: ConfigSecrets,
    name: MachineName,
    view: NodeView,
    /// Whether it was asked to go back.
    goes_back: bool,
    /// The release to which its next order would bring it, if the machine there has to prove before that it is this node.
    proof_before: Option<Release>,
}

impl Question {
    /// Asks for its standing, and for what the rollout brings.
    async fn ask(self) -> (ObjectState, Fact) {
        let fact = match timeout(ASK, self.fact()).await {
            Ok(Ok(fact)) => fact,
            Ok(Err(failure)) => Fact::away(failure.chain()),
            Err(_) => Fact::away(format!("no answer within {} s", ASK.as_secs())),
        };
        (self.view.state(), fact)
    }

    async fn fact(&self) -> Result<Fact, Failure> {
        let (name, view) = (&self.name, &self.view);
        let (mut seen, administrators) = match &self.brings {
            Brings::Version => {
                let node = self.cluster.connect(view).await?;
                (fact(&Standing::of(&node).await?), None)
            }
            Brings::Config(change) => {
                // Only the fact leaves here, and a node that has to go back may not have told its last boot.
                let node = self.cluster.connect_to_compare_configs(view).await?;
                let seen = config_fact(&node, name, self.goes_back, change, &self.configs).await?;
                (seen, Some(node))
            }
        };
        let target = self.proof_before.as_ref();
        if seen.condition == Condition::Ready && target.is_some_and(|it| !runs(&seen, it)) {
            // An order would fail at it, again and again until the node's time is over.
            let proved = match administrators {
                Some(node) => check_boot(&node, view).await,
                None => self.cluster.connect_as_administrator(view).await.map(drop),
            };
            if let Err(failure) = proved {
                seen.condition = Condition::NotReady(failure.chain());
            }
        }
        Ok(seen)
    }
}

impl Machines for PoolNodes {
    async fn look(&mut self, record: &Record, asked: &BTreeSet<MachineName>) -> Facts {
        let names = record.machines.keys().cloned();
        let views: Views = names
            .map(|name| {
                let view = self.cluster.node(name.as_str());
                (name, view)
            })
            .collect();
        for name in asked {
            // It changes: what it said before is no answer any more.
            self.forget(name);
        }
        let come_in = self.questions.come_in();
        self.take_in(come_in);
        let open = self.ask_old(record, asked, &views).await;
        let facts = views.iter().map(|(name, view)| {
            let fact = match asked.contains(name) && view.is_some() {
                true => busy(),
                false => self.fact_of(name, view.as_ref(), open.contains(name)),
            };
            let fact = match self.hindrances.of(name.as_str()) {
                Some(why) => hindered(fact, record, name, time_left(record, name, now()), &why),
                None => fact,
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
        let way_left = way_left(action, record, limit);
        if way_left.is_zero() && !matches!(action, Action::Prepare(_)) {
            // Why its last order failed stays noted.
            return None;
        }
        let way = MakingWay {
            cluster: self.cluster.clone(),
            pool: self.pool.clone(),
            node: name.as_str().to_owned(),
            action: action.clone(),
            to,
            drain: self.drain,
            until: tokio::time::Instant::now() + way_left,
            hindrances: self.hindrances.clone(),
            is_making: Cell::default(),
        };
        self.forget(name);
        self.hindrances.forget(name.as_str());
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
    use instar_rollout::{Member, Moment, Policy, Seconds, Select, Wave};
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
    fn way_is_made_in_time_to_tell_that_a_node_was_not_asked() {
        let name = MachineName::from("n1");
        for (patience, limit, left) in [
            (1800, 1800, 1775),
            (1800, 26, 1),
            (1800, 25, 0),
            (1800, 0, 0),
            (60, 60, 45),
            (60, 15, 0),
        ] {
            let policy = Policy {
                patience: Seconds(patience),
                ..Policy::default()
            };
            let members = [(name.clone(), Member::default())];
            let record = Record::begin(release("v2"), vec![policy], members.into()).unwrap();
            let action = Action::Switch(name.clone());
            let way = way_left(&action, &record, Duration::from_secs(limit));
            assert_eq!(way.as_secs(), left, "{limit} s of {patience} s");
        }
    }

    fn release(version: &str) -> Release {
        Release {
            version: version.to_owned(),
            digest: None,
            image: None,
        }
    }

    fn answer(condition: Condition, seconds_ago: u64) -> Answer {
        let ago = Duration::from_secs(seconds_ago);
        Answer {
            state: view("v1", "True", false).state(),
            fact: Fact {
                condition,
                ..Fact::away("")
            },
            at: Instant::now().checked_sub(ago).unwrap(),
            in_a_row: 3,
        }
    }

    #[test]
    fn an_answer_holds_as_long_as_its_node_matters() {
        let unready = || Condition::NotReady("kubelet sleeps".to_owned());
        let relied_on = Some(relied_on_holds_for(1));
        for (condition, ago, is_silent, holds, is_old) in [
            // Nothing is asked of a rollout that has ended.
            (Condition::Ready, 300, false, None, false),
            (Condition::Ready, 29, false, relied_on, false),
            (Condition::Ready, 31, false, relied_on, true),
            (unready(), 7, false, None, false),
            (unready(), 9, false, None, true),
            (unready(), 9, true, None, false),
            (unready(), 31, true, None, true),
        ] {
            let answer = answer(condition, ago);
            let now = view("v1", "True", false);
            assert_eq!(answer.is_old(&now, is_silent, holds), is_old, "{ago} s ago");
            let changed = view("v2", "True", false);
            assert!(answer.is_old(&changed, is_silent, holds));
        }
        assert_eq!(relied_on_holds_for(5000), Duration::from_secs(500));
    }

    #[test]
    fn who_is_not_ready_for_the_cluster_is_silent_unless_its_step_needs_it() {
        let (ready, dead) = (view("v1", "True", false), view("v1", "Unknown", false));
        let since = Moment(7);
        let switching = Step::Switching { since, mark: 0 };
        for (view, step, is_silent) in [
            (&ready, Step::Waiting, false),
            (&dead, Step::Waiting, true),
            (&dead, Step::Updated { at: since }, true),
            (&dead, switching, false),
            (&dead, Step::Preparing { since }, false),
        ] {
            assert_eq!(is_likely_silent(view, &step), is_silent, "{step:?}");
        }
    }

    #[test]
    fn a_machine_proves_itself_before_an_order_with_the_administrators_rights() {
        use Strategy::{InPlace, Replace};
        let config = || Brings::Config(ConfigChange::Patches(vec!["{}".to_owned()]));
        let (since, mark) = (Moment(7), 0);
        let at = since;
        for (brings, strategy, step, expected) in [
            (Brings::Version, InPlace, Step::Waiting, false),
            (Brings::Version, Replace, Step::Waiting, true),
            (config(), InPlace, Step::Prepared, true),
            (config(), InPlace, Step::Switching { since, mark }, true),
            // On the way back it need not.
            (config(), InPlace, Step::Returning { since, mark }, false),
            (config(), InPlace, Step::Updated { at }, false),
        ] {
            assert_eq!(takes_proof(&brings, strategy, &step), expected, "{step:?}");
        }
    }

    #[test]
    fn the_next_wave_relies_on_nodes_that_have_the_version() {
        let members = ["n1", "n2", "n3"].map(|name| (MachineName::from(name), Member::default()));
        let canary = Wave {
            select: Select::Count(std::num::NonZeroU32::MIN),
            soak: Seconds(3600),
        };
        let policy = |waves: Vec<Wave>| Policy {
            waves,
            ..Policy::default()
        };
        let begin =
            |waves| Record::begin(release("v2"), vec![policy(waves)], members.clone().into());
        let updated = |record: &mut Record, name: &str| {
            let entry = record.machines.get_mut(&MachineName::from(name)).unwrap();
            entry.step = Step::Updated { at: Moment(7) };
        };
        let relied_on = |record: &Record, held: &str| {
            let names = record.relied_on(|name| name.as_str() == held, Moment(7 + 3600));
            names.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let mut record = begin(vec![canary]).unwrap();
        assert!(relied_on(&record, "").is_empty());
        updated(&mut record, "n1");
        assert_eq!(relied_on(&record, ""), ["n1"]);
        record.paused = Some("lunch".to_owned());
        assert!(relied_on(&record, "").is_empty());
        record.paused = None;
        // Of the wave that goes on, none is a proof for the others of it.
        updated(&mut record, "n2");
        assert_eq!(relied_on(&record, ""), ["n1"]);
        assert!(
            relied_on(&record, "n3").is_empty(),
            "nobody is left to begin"
        );
        record.phase = instar_rollout::Phase::Done;
        assert!(relied_on(&record, "").is_empty());
        let mut without_waves = begin(Vec::new()).unwrap();
        updated(&mut without_waves, "n1");
        assert!(relied_on(&without_waves, "").is_empty());
    }

    #[test]
    fn a_failure_names_what_the_last_order_failed_at() {
        let name = MachineName::from("n1");
        let members = [(name.clone(), Member::default())];
        let mut record =
            Record::begin(release("v2"), vec![Policy::default()], members.into()).unwrap();
        let began = Moment(1_000_000);
        record.intend(&Action::Switch(name.clone()), &Facts::new(), began);
        let patience = record.patience_of(&name);
        let runs = |version: &str| Fact {
            condition: Condition::Ready,
            running: Some(release(version)),
            ..Fact::away("")
        };
        let why = "node n1 cannot be cordoned: forbidden";
        let at = |seconds: u64, fact: Fact| {
            let now = Moment(began.0 + seconds);
            hindered(fact, &record, &name, time_left(&record, &name, now), why)
        };
        // Until then it is as it was, and the order is given again.
        assert_eq!(at(patience.0 - 60, runs("v1")), runs("v1"));
        assert_eq!(at(patience.0, runs("v2")), runs("v2"));
        // A person's hold is the reason then.
        let held = || Fact {
            hold: Some("mine".to_owned()),
            ..runs("v1")
        };
        assert_eq!(at(patience.0, held()), held());
        let late = at(patience.0, runs("v1"));
        let mut ended = record.clone();
        ended.observe(&[(name.clone(), late)].into(), began.after(patience));
        let told = ended.machines[&name].step.why().unwrap();
        assert!(told.contains(why), "{told}");
    }
}
