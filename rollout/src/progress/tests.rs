#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use super::*;
use crate::command::{Command, Refused};
use crate::entry::Member;
use crate::machine::{Condition, Release};
use crate::policy::{Policy, PoolOrder, Select, Wave};
use crate::record::BadRollout;
use crate::seconds::Seconds;

fn target() -> Release {
    Release {
        version: "v2".to_owned(),
        digest: None,
        image: None,
    }
}

fn begin(policy: Policy, pools: &[&str]) -> Result<Record, BadRollout> {
    let members = pools.iter().enumerate().map(|(number, pool)| {
        let member = Member {
            pool: (*pool).to_owned(),
            labels: BTreeSet::new(),
        };
        (MachineName::from(format!("m{number}")), member)
    });
    Record::begin(target(), vec![policy], members.collect())
}

fn order(pairs: &[(&str, &str)]) -> Policy {
    let orders = pairs.iter().map(|(pool, after)| PoolOrder {
        pool: (*pool).to_owned(),
        after: vec![(*after).to_owned()],
    });
    Policy {
        order: orders.collect(),
        ..Policy::default()
    }
}

#[test]
fn a_rollout_that_could_never_end_is_refused() {
    let missing = |pool: &str| Err(BadRollout::NoPool(pool.to_owned()));
    let circle = |pool: &str| Err(BadRollout::Circle(pool.to_owned()));
    for (policy, pools, expected) in [
        (order(&[]), vec![], Err(BadRollout::NoMachine)),
        (order(&[("a", "b")]), vec!["a"], missing("b")),
        (order(&[("a", "a")]), vec!["a"], circle("a")),
        (
            order(&[("a", "b"), ("b", "a")]),
            vec!["a", "b"],
            circle("a"),
        ),
        (
            order(&[("a", "b"), ("b", "c")]),
            vec!["a", "b", "c"],
            Ok(()),
        ),
    ] {
        assert_eq!(begin(policy, &pools).map(|_| ()), expected);
    }
}

#[test]
fn a_wave_without_machines_is_refused_at_the_beginning_alone() {
    let label = |label: &str| Wave {
        select: Select::Label(label.to_owned()),
        soak: Seconds(0),
    };
    let count = |count| Wave {
        select: Select::Count(std::num::NonZeroU32::new(count).unwrap()),
        soak: Seconds(0),
    };
    let empty = |wave| {
        let label = "canary=yes".to_owned();
        Err(BadRollout::EmptyWave { wave, label })
    };
    for (waves, expected) in [
        (vec![label("canary=yes")], empty(1)),
        (vec![count(1), label("canary=yes")], empty(2)),
        // Nobody is left who could begin too early.
        (vec![count(2), label("canary=yes")], Ok(())),
        (vec![count(1), count(5)], Ok(())),
    ] {
        let policy = Policy {
            waves,
            ..Policy::default()
        };
        let mut record = begin(Policy::default(), &["x", "x"]).unwrap();
        record.policies = vec![policy.clone()];
        assert_eq!(record.check(), Ok(()), "it was begun by another version");
        assert_eq!(begin(policy, &["x", "x"]).map(|_| ()), expected);
    }
}

#[test]
fn a_machine_has_the_patience_of_its_own_pool() {
    let patience = |pool: &str, seconds| Policy {
        pools: vec![pool.to_owned()],
        patience: Seconds(seconds),
        ..Policy::default()
    };
    let mut record = begin(Policy::default(), &["a", "b"]).unwrap();
    record.policies = vec![patience("a", 60), patience("b", 600)];
    let of = |name: &str| record.patience_of(&MachineName::from(name)).0;
    assert_eq!([of("m0"), of("m1"), of("nobody")], [60, 600, 1800]);
}

/// A machine with this version, whose newest failure has this number.
fn seen(condition: Condition, version: &str, failure: Option<u64>) -> Fact {
    Fact {
        condition,
        running: Some(Release {
            version: version.to_owned(),
            ..target()
        }),
        history: failure.unwrap_or(0),
        failure: failure.map(|number| crate::NotedFailure {
            number,
            why: "bad".to_owned(),
        }),
        hold: None,
    }
}

/// The step of a machine, what is seen of it, and the next step.
#[test]
fn facts_lead_to_the_next_step() {
    const NOW: Moment = Moment(1000);
    let fact = seen;
    let since = |seconds: u64| Moment(1000 - seconds);
    let switching = |seconds| Step::Switching {
        since: since(seconds),
        mark: 4,
    };
    let returning = |seconds| Step::Returning {
        since: since(seconds),
        mark: 4,
    };
    let left = || Step::Left {
        why: "sold".to_owned(),
    };
    use Condition::{Busy, Ready};
    let table: Vec<(Step, Fact, &str)> = vec![
        (Step::Waiting, fact(Ready, "v1", None), "="),
        (Step::Waiting, fact(Ready, "v2", None), "updated"),
        (Step::Prepared, fact(Ready, "v2", None), "updated"),
        (
            Step::Preparing { since: since(59) },
            fact(Ready, "v1", None),
            "=",
        ),
        (
            Step::Preparing { since: since(60) },
            fact(Ready, "v1", None),
            "failed",
        ),
        (switching(0), fact(Ready, "v2", None), "updated"),
        (switching(0), fact(Busy, "v2", None), "="),
        // A failure from before does not count.
        (switching(0), fact(Ready, "v1", Some(4)), "="),
        (switching(0), fact(Ready, "v1", Some(5)), "failed"),
        (switching(0), fact(Busy, "v1", Some(5)), "="),
        (switching(60), fact(Busy, "v1", None), "failed"),
        (switching(60), Fact::away("off"), "failed"),
        (switching(60), fact(Ready, "v2", None), "updated"),
        // Nobody waits for one that its fleet does not have any more.
        (Step::Waiting, Fact::gone("sold"), "left"),
        (switching(0), Fact::gone("sold"), "left"),
        (returning(0), Fact::gone("sold"), "left"),
        (Step::Updated { at: since(1) }, Fact::gone("sold"), "="),
        (left(), fact(Ready, "v1", None), "="),
        (left(), fact(Ready, "v2", None), "updated"),
        (Step::Updated { at: since(1) }, fact(Ready, "v2", None), "="),
        (Step::Updated { at: since(1) }, Fact::away("off"), "="),
        (
            Step::Updated { at: since(1) },
            fact(Ready, "v1", None),
            "failed",
        ),
        (returning(0), fact(Ready, "v2", None), "="),
        (returning(0), fact(Ready, "v1", None), "returned"),
        (returning(60), fact(Ready, "v2", None), "stuck"),
    ];
    for (step, fact, expected) in table {
        let entry = Entry {
            pool: String::new(),
            labels: BTreeSet::new(),
            before: None,
            began: None,
            earlier: None,
            hold: None,
            forgiven: false,
            step: step.clone(),
        };
        let next = named(observed(&entry, &fact, &target(), Seconds(60), NOW));
        assert_eq!(next, expected, "{step:?} with {fact:?}");
    }
}

/// The name of a step that a fact leads to; `=` if it leads to none.
fn named(next: Option<Step>) -> &'static str {
    match next {
        None => "=",
        Some(Step::Updated { .. }) => "updated",
        Some(Step::Failed { .. }) => "failed",
        Some(Step::Returned { .. }) => "returned",
        Some(Step::Stuck { .. }) => "stuck",
        Some(Step::Left { .. }) => "left",
        Some(other) => panic!("{other:?}"),
    }
}

/// A machine that was to do something, and was not asked: by its driver's word, or by the time alone while nobody may ask it.
#[test]
fn an_intent_is_taken_back_where_nothing_was_asked() {
    type Intent = fn(MachineName) -> Action;
    let fact = |version: &str, failure: u64| {
        let failure = (failure > 0).then_some(failure);
        seen(Condition::Ready, version, failure)
    };
    let asked = |intent: Intent| {
        let mut record = begin(Policy::default(), &["x"]).unwrap();
        record.intend(&intent("m0".into()), &Facts::new(), Moment(7));
        record
    };
    let told = |record: &Record| {
        let entry = &record.machines[&MachineName::from("m0")];
        (entry.step.word(), entry.began.is_some())
    };
    let paused = |record: &mut Record| record.paused = Some("lunch".to_owned());
    let halted = |record: &mut Record| record.phase = Phase::Halted { why: String::new() };
    let held = |record: &mut Record| {
        let entry = record.machines.get_mut(&MachineName::from("m0")).unwrap();
        entry.hold = Some("mine".to_owned());
    };
    let nothing = |_: &mut Record| {};
    let unwell = || Fact {
        condition: Condition::NotReady("kubelet sleeps".to_owned()),
        ..fact("v1", 0)
    };
    type Comes<'a> = &'a dyn Fn(&mut Record);
    let table: [(Intent, Comes<'_>, Fact, &str, &str); 13] = [
        // The action, what comes in between, the fact at the end of its time; its step by its driver's word, and by the time.
        (Action::Switch, &nothing, fact("v1", 0), "waiting", "failed"),
        (Action::Switch, &paused, fact("v1", 0), "waiting", "waiting"),
        (Action::Switch, &halted, fact("v1", 0), "waiting", "waiting"),
        (Action::Switch, &held, fact("v1", 0), "waiting", "left"),
        (Action::Switch, &paused, unwell(), "waiting", "waiting"),
        (Action::Switch, &paused, fact("v1", 1), "waiting", "failed"),
        (Action::Switch, &paused, fact("v2", 0), "waiting", "updated"),
        (
            Action::Switch,
            &paused,
            Fact::away("off"),
            "waiting",
            "failed",
        ),
        (
            Action::Prepare,
            &nothing,
            fact("v1", 0),
            "waiting",
            "failed",
        ),
        (
            Action::Prepare,
            &paused,
            fact("v1", 0),
            "waiting",
            "waiting",
        ),
        (Action::Return, &nothing, fact("v2", 0), "updated", "stuck"),
        (Action::Return, &paused, fact("v2", 0), "updated", "stuck"),
        (Action::Return, &held, fact("v2", 0), "updated", "updated"),
    ];
    for (intent, comes, fact, by_word, by_time) in table {
        let mut record = asked(intent);
        comes(&mut record);
        let mut late = record.clone();
        let (action, name) = (intent("m0".into()), MachineName::from("m0"));
        let revision = record.revision;
        record.report(&action, Report::NotAsked, Moment(8));
        assert_eq!(told(&record), (by_word, false), "{action:?}");
        assert_eq!(record.revision, revision + 1);
        record.report(&action, Report::NotAsked, Moment(9));
        assert_eq!(record.revision, revision + 1, "it comes once");
        let facts = Facts::from([(name, fact.clone())]);
        late.observe(&facts, Moment(7 + 1799));
        assert!(late.failures() == 0 || fact.failure.is_some(), "{action:?}");
        late.observe(&facts, Moment(7 + 1800));
        assert_eq!(told(&late).0, by_time, "{action:?} with {fact:?}");
    }
}

#[test]
fn a_machine_that_was_not_asked_again_has_begun_once() {
    let name = || MachineName::from("m0");
    let switch = Action::Switch(name());
    let running = |version: &str| Fact {
        condition: Condition::Ready,
        running: Some(Release {
            version: version.to_owned(),
            ..target()
        }),
        ..Fact::away("")
    };
    let facts = |version: &str| Facts::from([(name(), running(version))]);
    let mut record = begin(Policy::default(), &["x"]).unwrap();
    record.intend(&switch, &facts("v1"), Moment(7));
    record.observe(&Facts::new(), Moment(7 + 1800));
    assert_eq!(record.failures(), 1);
    record.command(Command::Retry).unwrap();
    record.intend(&switch, &facts("v0"), Moment(9000));
    assert_eq!(record.machines[&name()].began, Some(Moment(9000)));
    record.report(&switch, Report::NotAsked, Moment(9001));
    let entry = &record.machines[&name()];
    assert_eq!((entry.began, &entry.earlier), (Some(Moment(7)), &None));
    assert_eq!(entry.before, running("v1").running);
    // It comes up with the version by its first request.
    record.observe(&facts("v2"), Moment(9002));
    let entry = &record.machines[&name()];
    assert_eq!(entry.step.word(), "updated");
    assert!(record.has_to_go_back(&name(), entry, &facts("v2")));
}

/// The machines of a wave and whether a person has resumed since, and what the wave after it waits for.
#[test]
fn a_wave_is_proven_by_a_machine_that_has_the_version() {
    let at = Moment(1);
    let why = || "bad".to_owned();
    let failed = || Step::Failed { at, why: why() };
    let left = || Step::Left { why: why() };
    let canaries = Wave {
        select: Select::Count(std::num::NonZeroU32::new(2).unwrap()),
        soak: Seconds(0),
    };
    let policy = Policy {
        waves: vec![canaries],
        max_failures: std::num::NonZeroU32::new(5).unwrap(),
        ..Policy::default()
    };
    let ready = |version: &str, hold: Option<&str>| Fact {
        condition: Condition::Ready,
        running: Some(Release {
            version: version.to_owned(),
            ..target()
        }),
        hold: hold.map(str::to_owned),
        ..Fact::away("")
    };
    for (steps, has_resumed, expected) in [
        ([Step::Updated { at }, failed()], false, "begins now"),
        ([failed(), failed()], false, "waits for a person"),
        ([failed(), left()], false, "waits for a person"),
        ([left(), left()], false, "waits for a person"),
        ([failed(), Step::Waiting], false, "waits for a person"),
        ([failed(), failed()], true, "begins now"),
        ([left(), left()], true, "begins now"),
        ([failed(), Step::Waiting], true, "begins now"),
        // A person who resumes does not release.
        (
            [Step::Waiting, Step::Waiting],
            true,
            "wave 1 has no machine",
        ),
    ] {
        let mut record = begin(policy.clone(), &["x", "x", "x"]).unwrap();
        let mut facts = Facts::new();
        for (name, step) in record.machines.clone().into_keys().zip(&steps) {
            let fact = match step {
                Step::Updated { .. } => ready("v2", None),
                // Who has not begun is held.
                Step::Waiting => ready("v1", Some("mine")),
                _ => ready("v1", None),
            };
            record.machines.get_mut(&name).unwrap().step = step.clone();
            facts.insert(name, fact);
        }
        facts.insert("m2".into(), ready("v1", None));
        record.observe(&facts, Moment(2));
        let halts = expected.starts_with("waits") || has_resumed && steps[0] != Step::Waiting;
        let is_halted = matches!(record.phase, Phase::Halted { .. });
        assert_eq!(is_halted, halts, "{steps:?}: {:?}", record.phase);
        if has_resumed {
            record.command(Command::Resume).unwrap();
            record.observe(&facts, Moment(3));
        }
        // The reason that it halts with.
        record.phase = Phase::Rolling;
        let decision = decide(&record, &facts, Moment(3));
        let reason = decision.reasons[&MachineName::from("m2")].to_string();
        assert!(reason.starts_with(expected), "{steps:?}: {reason}");
    }
}

#[test]
fn commands_make_sense_or_are_refused() {
    let command = |phase: Phase, command: Command| {
        let mut record = begin(Policy::default(), &["x"]).unwrap();
        record.phase = phase;
        let result = record.command(command);
        result.map(|()| record.phase)
    };
    let why = || "no".to_owned();
    let back = || Command::Rollback(why());
    let halted = || Phase::Halted { why: why() };
    let going_back = || Phase::GoingBack { why: why() };
    let went_back = || Phase::WentBack { why: why() };
    for (phase, given, expected) in [
        (Phase::Rolling, back(), Ok(going_back())),
        (halted(), back(), Ok(going_back())),
        (Phase::Done, back(), Ok(going_back())),
        (Phase::Aborted, back(), Ok(going_back())),
        (going_back(), back(), Err(Refused::GoesBack)),
        (went_back(), back(), Err(Refused::Ended)),
        (halted(), Command::Resume, Ok(Phase::Rolling)),
        (halted(), Command::Retry, Err(Refused::NoFailure)),
        (Phase::Done, Command::Retry, Err(Refused::NoFailure)),
        (Phase::Aborted, Command::Retry, Err(Refused::Ended)),
        (went_back(), Command::Retry, Err(Refused::Ended)),
        (going_back(), Command::Retry, Err(Refused::GoesBack)),
        (Phase::Rolling, Command::Abort, Ok(Phase::Aborted)),
        (going_back(), Command::Abort, Ok(Phase::Aborted)),
        (Phase::Done, Command::Pause(why()), Err(Refused::Ended)),
        (
            Phase::Rolling,
            Command::Release("y".into()),
            Err(Refused::NoMachine("y".into())),
        ),
    ] {
        let told = command(phase.clone(), given.clone());
        assert_eq!(told, expected, "{phase:?}, {given:?}");
    }
}

#[test]
fn a_record_comes_back_from_its_file() {
    let policy = Policy {
        windows: vec!["Sat,Sun 02:00-05:00 +01:00".parse().unwrap()],
        ..Policy::default()
    };
    let mut record = begin(policy, &["x", "x"]).unwrap();
    let action = Action::Switch("m0".into());
    record.intend(&action, &Facts::new(), Moment(7));
    let text = serde_json::to_string(&record).unwrap();
    let read: Record = serde_json::from_str(&text).unwrap();
    assert_eq!(read, record);
    assert_eq!((read.revision, read.check()), (1, Ok(())));
    assert!(!text.contains("saved_at"), "as older versions wrote it");
}
