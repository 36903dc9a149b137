//! Traces: the rounds of a real run, written down by its driver and replayed here.
//!
//! A driver writes what went into each round and the actions that came out. The replay puts the same through the engine: it has to come to the
//! same actions, and to keep the promises that the model checks. So a trace of a program ties that program to the model.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::decide::Decision;
use crate::entry::{Entry, Step};
use crate::machine::{Facts, MachineName};
use crate::promises::broken;
use crate::record::Record;
use crate::seconds::Moment;

/// One round of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracedRound {
    /// When it was.
    pub now: Moment,
    /// The record before it.
    pub before: Record,
    /// The facts of the round.
    pub facts: Facts,
    /// Machines that the driver was asking already.
    pub asked: BTreeSet<MachineName>,
    /// The actions that it decided on.
    pub actions: Vec<Action>,
}

impl TracedRound {
    /// Has the record go on by one round ([`Record::go_on`]). Returns the decision, and the round as a trace has it.
    pub fn go_on(
        record: &mut Record,
        facts: &Facts,
        asked: &BTreeSet<MachineName>,
        now: Moment,
    ) -> (Decision, Self) {
        let before = record.clone();
        let decision = record.go_on(facts, asked, now);
        let round = TracedRound {
            now,
            before,
            facts: facts.clone(),
            asked: asked.clone(),
            actions: decision.actions.clone(),
        };
        (decision, round)
    }
}

/// A trace that the engine does not come to, or that breaks a promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("round {round} of the trace: {why}")]
pub struct NotReplayed {
    /// The number of the round, from 1.
    pub round: usize,
    /// The difference.
    pub why: String,
}

/// The result of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The number of rounds.
    pub rounds: usize,
    /// The number of actions.
    pub actions: usize,
}

/// Replays the rounds of one or more runs of a driver, in their order.
///
/// # Errors
/// The engine decides otherwise in a round, a round breaks a promise, or the record of a round does not follow from the one before.
pub fn replay(rounds: &[TracedRound]) -> Result<Replayed, NotReplayed> {
    let mut replayed = Replayed::default();
    let mut last: Option<Record> = None;
    for round in rounds {
        replayed.rounds += 1;
        let not = |why: String| NotReplayed {
            round: replayed.rounds,
            why,
        };
        if let Some(why) = last.and_then(|last| does_not_follow(&last, &round.before)) {
            return Err(not(why.to_owned()));
        }
        let mut after = round.before.clone();
        let decision = after.go_on(&round.facts, &round.asked, round.now);
        if decision.actions != round.actions {
            let (told, found) = (&round.actions, &decision.actions);
            return Err(not(format!(
                "it has {told:?}, and the engine decides {found:?}"
            )));
        }
        let TracedRound {
            before,
            facts,
            actions,
            now,
            ..
        } = round;
        if let Some(promise) = broken(before, &after, facts, actions, *now) {
            return Err(not(promise.to_owned()));
        }
        replayed.actions += round.actions.len();
        last = Some(after);
    }
    Ok(replayed)
}

/// Why a record cannot be a later one of the same rollout. Between two rounds there are commands of people and reports.
fn does_not_follow(before: &Record, after: &Record) -> Option<&'static str> {
    // Another rollout: this one may have ended by a command of which there is no trace.
    if before.target != after.target || after.revision == 0 {
        return None;
    }
    if after.revision < before.revision {
        return Some("the record is older than that of the round before");
    }
    let mut machines = before.machines.iter();
    let forgotten = machines.any(|(name, entry)| {
        let later = after.machines.get(name);
        // It was to begin, and was not asked.
        let was_not_asked =
            |later: &Entry| matches!(entry.step, Step::Switching { .. }) && later.step.is_before();
        later.is_some_and(|later| {
            entry.began.is_some() && later.began.is_none() && !was_not_asked(later)
        })
    });
    forgotten.then_some("the record has forgotten that a machine has begun")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::entry::Member;
    use crate::machine::{Condition, Fact, Release};
    use crate::policy::{Approval, Policy};
    use crate::progress::Report;

    fn release(version: &str) -> Release {
        Release {
            version: version.to_owned(),
            digest: None,
            image: None,
        }
    }

    fn facts(versions: [&str; 2]) -> Facts {
        let facts = versions.map(|version| Fact {
            condition: Condition::Ready,
            running: Some(release(version)),
            ..Fact::away("")
        });
        ["a", "b"]
            .map(MachineName::from)
            .into_iter()
            .zip(facts)
            .collect()
    }

    /// Two machines, of which the first one begins, has the version, and lets the second one begin.
    fn rounds() -> Vec<TracedRound> {
        let members = ["a", "b"].map(|name| (MachineName::from(name), Member::default()));
        let policy = Policy {
            at_once: Some(std::num::NonZeroU32::MIN),
            ..Policy::default()
        };
        let mut record = Record::begin(release("v2"), vec![policy], members.into()).unwrap();
        let seen = [["v1", "v1"], ["v2", "v1"], ["v2", "v2"]].into_iter();
        let rounds = (1..).zip(seen).map(|(second, versions)| {
            let (facts, nobody) = (facts(versions), BTreeSet::new());
            let (_, round) = TracedRound::go_on(&mut record, &facts, &nobody, Moment(second));
            round
        });
        rounds.collect()
    }

    #[test]
    fn a_true_trace_is_replayed_also_from_its_text() {
        let text = serde_json::to_string(&rounds()).unwrap();
        let read: Vec<TracedRound> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, rounds());
        let expected = Replayed {
            rounds: 3,
            actions: 2,
        };
        assert_eq!(replay(&read), Ok(expected));
    }

    #[test]
    fn a_trace_that_is_not_the_engines_is_refused_with_its_round() {
        // Another action than the engine's.
        let mut other = rounds();
        other[0].actions = vec![Action::Switch(MachineName::from("b"))];
        assert_eq!(replay(&other).unwrap_err().round, 1);
        // An action that is missing.
        let mut missing = rounds();
        missing[1].actions.clear();
        assert_eq!(replay(&missing).unwrap_err().round, 2);
        // A record that has lost what was done.
        let mut lost = rounds();
        lost[2].before = lost[0].before.clone();
        lost[2].before.revision = 99;
        let why = replay(&lost).unwrap_err().why;
        assert!(why.contains("forgotten"), "{why}");
        // A round that is missing.
        let mut shorter = rounds();
        shorter.swap(0, 2);
        assert!(replay(&shorter).is_err());
    }

    #[test]
    fn a_machine_that_was_not_asked_is_forgotten_by_right() {
        let mut rounds = rounds();
        let action = Action::Switch(MachineName::from("a"));
        rounds[1]
            .before
            .report(&action, Report::NotAsked, Moment(2));
        rounds[1].facts = rounds[0].facts.clone();
        // It begins again.
        rounds[1].actions = rounds[0].actions.clone();
        rounds.truncate(2);
        assert_eq!(replay(&rounds).map(|it| it.actions), Ok(2));
    }

    #[test]
    fn broken_promises_are_named() {
        let rounds = rounds();
        let (before, mut after) = (&rounds[0].before, rounds[0].before.clone());
        let both = ["a", "b"].map(|name| Action::Switch(MachineName::from(name)));
        for action in &both {
            after.intend(action, &rounds[0].facts, Moment(1));
        }
        let told = |before: &Record, after: &Record, facts: &Facts, actions: &[Action]| {
            broken(before, after, facts, actions, Moment(2)).unwrap_or_default()
        };
        let facts = &rounds[0].facts;
        assert!(told(before, &after, facts, &both).contains("than a policy allows"));
        assert!(told(before, before, facts, &both[..1]).contains("not in the record"));
        let mut held = facts.clone();
        held.get_mut(&MachineName::from("b")).unwrap().hold = Some("cordoned".to_owned());
        assert!(told(before, &after, &held, &both).contains("a person holds"));
        let asks_again = told(&after, &after, &held, &both[1..]);
        assert!(asks_again.contains("a person holds"), "{asks_again}");
        let mut stopped = after.clone();
        stopped.paused = Some("a person".to_owned());
        assert!(told(before, &stopped, facts, &both).contains("after the stop"));
        let mut failed = rounds[1].before.clone();
        let step = Step::Failed {
            at: Moment(1),
            why: "bad".to_owned(),
        };
        failed
            .machines
            .get_mut(&MachineName::from("a"))
            .unwrap()
            .step = step;
        let mut paused = rounds[1].before.clone();
        paused.paused = Some("a person".to_owned());
        assert!(told(&paused, &failed, facts, &[]).contains("nobody may ask"));
        let mut closed = after.clone();
        closed.policies[0].windows = vec!["12:00-13:00".parse().unwrap()];
        assert!(told(before, &closed, facts, &both[..1]).contains("outside of its window"));
        let mut unapproved = after.clone();
        unapproved.policies[0].approval = Approval::Waves;
        assert!(told(before, &unapproved, facts, &both[..1]).contains("nobody has approved"));
        let mut next = failed.clone();
        next.intend(&both[1], facts, Moment(2));
        assert!(told(&failed, &next, facts, &both[1..]).contains("a version that failed"));
    }
}
