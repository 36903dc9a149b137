//! All that a page shows of a rollout.

use std::collections::BTreeMap;

use instar_rollout::{Decision, Facts, MachineName, Phase, Record, Release};
use serde::{Deserialize, Serialize};

/// The machines as a driver saw them the last time, each with the reason for its state.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// By the machine's name.
    pub machines: BTreeMap<MachineName, SeenMachine>,
}

/// A machine as a driver saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenMachine {
    /// The version that it ran.
    pub running: Option<String>,
    /// Why it is where it is.
    pub reason: String,
}

impl Seen {
    /// Takes what a driver's round has seen and decided.
    pub fn of(decision: &Decision, facts: &Facts) -> Self {
        let machines = decision.reasons.iter().map(|(name, reason)| {
            let fact = facts.get(name);
            let running = fact.and_then(|fact| fact.running.as_ref());
            let seen = SeenMachine {
                running: running.map(|release| release.version.clone()),
                reason: reason.to_string(),
            };
            (name.clone(), seen)
        });
        Self {
            machines: machines.collect(),
        }
    }
}

/// A rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct View {
    /// Its name, unique on the page.
    pub name: String,
    /// The pool whose rollout it is; empty for a rollout over a whole fleet.
    pub pool: String,
    /// The version that machines get; empty while no rollout has begun.
    pub version: String,
    /// The image.
    pub image: String,
    /// The phase in a word: `rolling`, `stopped`, `going back`, `aborted`, `done`, `went back`; or what a pool without a rollout does.
    pub phase: &'static str,
    /// Why it is in this phase; empty if it says itself.
    pub why: String,
    /// Why a person paused it.
    pub paused: Option<String>,
    /// Whether it has ended for good; one that has stopped may go on.
    pub ended: bool,
    /// Whether machines can be held and released now.
    pub holds: bool,
    /// Whether a driver works on it; without one nothing begins.
    pub driven: bool,
    /// Whether waves wait for approvals, and how many were approved.
    pub approved: Option<usize>,
    /// Its machines, by name.
    pub machines: Vec<MachineView>,
}

/// A machine of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineView {
    /// Its name.
    pub name: String,
    /// Its pool; empty without pools.
    pub pool: String,
    /// The version that it was seen with.
    pub running: Option<String>,
    /// The version that it ran before.
    pub before: Option<String>,
    /// Where it is, in a word: `waiting`, `upgrading`, `updated`, …
    pub step: String,
    /// Since when, in seconds since 1970.
    pub since: Option<u64>,
    /// Why it is there.
    pub reason: String,
    /// Why a person wants it left alone.
    pub hold: Option<String>,
}

impl View {
    /// Makes it of the record, and of what a driver has seen.
    pub fn of(name: &str, image: &str, record: &Record, seen: &Seen, driven: bool) -> Self {
        let approvals = record.policies.iter();
        let approvals = approvals.filter(|it| it.approval != instar_rollout::Approval::None);
        let ended = matches!(
            record.phase,
            Phase::Aborted | Phase::Done | Phase::WentBack { .. }
        );
        Self {
            name: name.to_owned(),
            pool: String::new(),
            version: record.target.version.clone(),
            image: image.to_owned(),
            phase: record.phase.word(),
            why: record.phase.why().unwrap_or_default().to_owned(),
            // A pause of a rollout that has ended since means nothing.
            paused: record.paused.clone().filter(|_| !ended),
            ended,
            holds: !ended,
            driven,
            approved: (approvals.count() > 0).then_some(record.approved),
            machines: machines(record, seen),
        }
    }
}

fn machines(record: &Record, seen: &Seen) -> Vec<MachineView> {
    let machines = record.machines.iter().map(|(name, entry)| {
        let seen = seen.machines.get(name).cloned().unwrap_or_default();
        let version = |release: &Release| release.version.clone();
        MachineView {
            name: name.to_string(),
            pool: entry.pool.clone(),
            running: seen.running,
            before: entry.before.as_ref().map(version),
            step: entry.step.word().to_owned(),
            since: entry.step.since().map(|moment| moment.0),
            // The record's own words are newer than what was seen.
            reason: entry.step.why().map_or(seen.reason, str::to_owned),
            hold: entry.hold.clone(),
        }
    });
    machines.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use instar_rollout::{Member, Moment, Policy, Step};

    use super::*;

    #[test]
    fn a_machine_has_the_reason_of_its_record_before_that_of_a_look() {
        let target = Release {
            version: "v0.2.0".to_owned(),
            digest: None,
            image: None,
        };
        let member = || Member {
            pool: "lab".to_owned(),
            labels: BTreeSet::new(),
        };
        let names = ["one", "two"].map(MachineName::from);
        let members = names.clone().map(|name| (name, member()));
        let mut record = Record::begin(target, vec![Policy::default()], members.into()).unwrap();
        record.machines.get_mut(&names[0]).unwrap().step = Step::Failed {
            at: Moment(7),
            why: "the moon is full".to_owned(),
        };
        let seen = names.clone().map(|name| {
            let seen = SeenMachine {
                running: Some("v0.1.0".to_owned()),
                reason: "seen".to_owned(),
            };
            (name, seen)
        });
        let seen = Seen {
            machines: seen.into(),
        };
        let view = View::of("fleet", "r/i:v0.2.0", &record, &seen, true);
        let told = view
            .machines
            .iter()
            .map(|it| (&*it.step, it.since, &*it.reason));
        let expected = [
            ("failed", Some(7), "the moon is full"),
            ("waiting", None, "seen"),
        ];
        assert_eq!(told.collect::<Vec<_>>(), expected);
        assert_eq!(
            (view.phase, view.ended, view.approved),
            ("rolling", false, None)
        );
    }

    #[test]
    fn a_rollout_that_has_stopped_can_go_on() {
        let target = Release {
            version: "v0.2.0".to_owned(),
            digest: None,
            image: None,
        };
        let members = [(MachineName::from("one"), Member::default())];
        let mut record = Record::begin(target, vec![Policy::default()], members.into()).unwrap();
        record.paused = Some("lunch".to_owned());
        for (phase, ended) in [
            (Phase::Halted { why: String::new() }, false),
            (Phase::Done, true),
            (Phase::Aborted, true),
        ] {
            record.phase = phase;
            let view = View::of("fleet", "r/i:v0.2.0", &record, &Seen::default(), true);
            assert_eq!((view.ended, view.holds), (ended, !ended));
            assert_eq!(view.paused.is_none(), ended);
        }
    }
}
