#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::*;
use crate::entry::Member;
use crate::machine::{Fact, Release};
use crate::policy::{Approval, Percent, Policy, PoolOrder, Rate, Select, Wave};
use crate::progress::Report;
use crate::seconds::Seconds;

/// Thursday, 2026-11-26 12:00 UTC.
const NOW: Moment = Moment(1_795_694_400);

fn release(version: &str) -> Release {
    Release {
        version: version.to_owned(),
        digest: None,
        image: None,
    }
}

/// A fleet in a test: machines a, b, c ... in the pools of the text, such as `"one one two"`.
struct Fleet {
    record: Record,
    facts: Facts,
    now: Moment,
}

impl Fleet {
    fn new(pools: &str, policy: Policy) -> Self {
        let names = ["a", "b", "c", "d", "e"];
        let members = pools.split(' ').zip(names).map(|(pool, name)| {
            let member = Member {
                pool: pool.to_owned(),
                labels: [format!("name={name}")].into(),
            };
            (MachineName::from(name), member)
        });
        let members: BTreeMap<_, _> = members.collect();
        let ready = Fact {
            condition: Condition::Ready,
            running: Some(release("v1")),
            history: 0,
            failure: None,
            hold: None,
        };
        let facts = members.keys().map(|name| (name.clone(), ready.clone()));
        Self {
            facts: facts.collect(),
            record: Record::begin(release("v2"), vec![policy], members).unwrap(),
            now: NOW,
        }
    }

    fn fact(&mut self, name: &str) -> &mut Fact {
        self.facts.get_mut(&MachineName::from(name)).unwrap()
    }

    /// Who begins in this round.
    fn round(&mut self) -> String {
        self.record.observe(&self.facts, self.now);
        let decision = decide(&self.record, &self.facts, self.now);
        for action in &decision.actions {
            self.record.intend(action, &self.facts, self.now);
        }
        let begins = decision.actions.iter().map(|action| match action {
            Action::Prepare(name) => format!("+{name}"),
            Action::Switch(name) => name.to_string(),
            Action::Return(name) => format!("-{name}"),
        });
        begins.collect::<Vec<_>>().join(" ")
    }

    fn reason(&self, name: &str) -> String {
        let decision = decide(&self.record, &self.facts, self.now);
        decision.reasons[&MachineName::from(name)].to_string()
    }

    fn updated(&mut self, name: &str) {
        self.fact(name).running = Some(release("v2"));
    }

    fn failed(&mut self, name: &str) {
        let action = Action::Switch(MachineName::from(name));
        let report = Report::Failed("the moon is full".to_owned());
        self.record.report(&action, report, self.now);
    }
}

fn at_once(number: u32) -> Policy {
    Policy {
        at_once: NonZeroU32::new(number),
        ..Policy::default()
    }
}

#[test]
fn one_after_the_other() {
    let mut fleet = Fleet::new("x x", at_once(1));
    assert_eq!(fleet.round(), "a");
    assert_eq!(fleet.reason("b"), "1 at once, and as many are under way");
    fleet.updated("a");
    assert_eq!(fleet.round(), "b");
    fleet.updated("b");
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.record.phase, Phase::Done);
}

#[test]
fn a_machine_that_is_away_counts() {
    let mut fleet = Fleet::new("x x x", at_once(1));
    fleet.fact("c").condition = Condition::Away("no route".to_owned());
    assert_eq!(fleet.round(), "");
    assert_eq!(
        fleet.reason("a"),
        "1 may be out of service at once, and as many are: c by itself"
    );
    fleet.now = fleet.now.after(Seconds(1800));
    fleet.round();
    let Phase::Halted { why } = &fleet.record.phase else {
        panic!("{:?}", fleet.record.phase);
    };
    assert!(why.starts_with("nothing can go on: a 1 may be"), "{why}");
}

#[test]
fn who_is_held_is_not_waited_for() {
    let mut fleet = Fleet::new("x x x", at_once(1));
    fleet.fact("c").condition = Condition::Away("switched off".to_owned());
    assert_eq!(fleet.round(), "");
    let hold = crate::Command::Hold("c".into(), "in repair".to_owned());
    fleet.record.command(hold).unwrap();
    assert_eq!(fleet.round(), "a");
    fleet.updated("a");
    assert_eq!(fleet.round(), "b");
    fleet.updated("b");
    fleet.round();
    assert_eq!(fleet.record.phase, Phase::Done);
}

#[test]
fn a_canary_that_is_taken_out_does_not_hold_up_the_next_wave() {
    let canary = Wave {
        select: Select::Label("name=a".to_owned()),
        soak: Seconds(0),
    };
    let policy = Policy {
        waves: vec![canary],
        ..at_once(1)
    };
    let mut fleet = Fleet::new("x x", policy);
    assert_eq!(fleet.round(), "a");
    fleet.updated("a");
    fleet.record.observe(&fleet.facts, fleet.now);
    fleet.fact("a").condition = Condition::Away("it is not in the cluster".to_owned());
    assert_eq!(fleet.round(), "", "it is not well");
    fleet.fact("a").hold = Some("it is not in the cluster".to_owned());
    assert_eq!(fleet.round(), "b");
}

#[test]
fn a_canary_that_fails_lets_no_other_begin_before_a_person_says_so() {
    let canary = Wave {
        select: Select::Count(NonZeroU32::MIN),
        soak: Seconds(3600),
    };
    let policy = Policy {
        waves: vec![canary],
        max_failures: NonZeroU32::new(3).unwrap(),
        ..at_once(5)
    };
    let mut fleet = Fleet::new("x x x", policy);
    assert_eq!(fleet.round(), "a");
    fleet.failed("a");
    assert_eq!(fleet.round(), "");
    let Phase::Halted { why } = &fleet.record.phase else {
        panic!("{:?}", fleet.record.phase);
    };
    assert!(why.contains("resume goes on without a proof"), "{why}");
    let mut again = Fleet {
        record: fleet.record.clone(),
        facts: fleet.facts.clone(),
        now: fleet.now,
    };
    fleet.record.command(crate::Command::Resume).unwrap();
    assert_eq!(fleet.round(), "b c");
    again.record.command(crate::Command::Retry).unwrap();
    assert_eq!(again.round(), "a");
    again.updated("a");
    assert_eq!(again.round(), "");
    assert!(again.reason("b").starts_with("the wave before has to run"));
}

#[test]
fn a_rollout_that_was_resumed_under_an_older_version_goes_on() {
    let policy = Policy {
        max_failures: NonZeroU32::new(3).unwrap(),
        ..one_wave(Select::Count(NonZeroU32::MIN), 0)
    };
    let mut fleet = Fleet::new("x x", policy);
    fleet.round();
    fleet.failed("a");
    fleet.round();
    fleet.record.command(crate::Command::Resume).unwrap();
    // As it was written then.
    let mut written = serde_json::to_value(&fleet.record).unwrap();
    let entry = written["machines"]["a"].as_object_mut().unwrap();
    assert!(entry.remove("forgiven").is_some());
    fleet.record = serde_json::from_value(written).unwrap();
    assert_eq!(fleet.round(), "b");
    assert_eq!(fleet.record.phase, Phase::Rolling);
    // A failure after that is none of those.
    fleet.failed("b");
    fleet.round();
    assert!(!fleet.record.machines[&MachineName::from("b")].forgiven);
}

#[test]
fn a_machine_that_was_not_asked_for_a_pause_begins_after_it() {
    let policy = Policy {
        on_failure: crate::OnFailure::Rollback,
        ..at_once(1)
    };
    let mut fleet = Fleet::new("x x", policy);
    assert_eq!(fleet.round(), "a");
    let pause = crate::Command::Pause("lunch".to_owned());
    fleet.record.command(pause).unwrap();
    let action = Action::Switch(MachineName::from("a"));
    fleet.record.report(&action, Report::NotAsked, fleet.now);
    assert_eq!(fleet.reason("a"), "the rollout is paused: lunch");
    fleet.now = fleet.now.after(Seconds(3 * 3600));
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.record.phase, Phase::Rolling);
    fleet.record.command(crate::Command::Resume).unwrap();
    assert_eq!(fleet.round(), "a");
}

#[test]
fn a_machine_that_is_held_is_not_asked_again() {
    let mut fleet = Fleet::new("x x", at_once(1));
    assert_eq!(fleet.round(), "a");
    fleet.fact("a").hold = Some("cordoned".to_owned());
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.reason("a"), "held: cordoned");
    let action = Action::Switch(MachineName::from("a"));
    fleet.record.report(&action, Report::NotAsked, fleet.now);
    assert_eq!(fleet.round(), "b");
    fleet.updated("b");
    fleet.round();
    assert_eq!(fleet.record.phase, Phase::Done);
    assert_eq!(fleet.record.failures(), 0);
}

#[test]
fn a_machine_that_is_gone_in_the_middle_of_its_upgrade_stops_nothing() {
    let mut fleet = Fleet::new("x x", at_once(1));
    assert_eq!(fleet.round(), "a");
    *fleet.fact("a") = Fact::gone("it is not in the cluster any more");
    assert_eq!(fleet.round(), "b");
    fleet.updated("b");
    fleet.round();
    assert_eq!(fleet.record.phase, Phase::Done);
    let left = "left as it was; it is not in the cluster any more";
    assert_eq!(fleet.reason("a"), left);
}

#[test]
fn machines_that_failed_try_again_when_a_person_says_so() {
    let mut fleet = Fleet::new("x x", at_once(1));
    assert_eq!(fleet.round(), "a");
    fleet.failed("a");
    assert_eq!(fleet.round(), "");
    fleet.record.command(crate::Command::Retry).unwrap();
    assert_eq!(fleet.round(), "a");
    fleet.failed("a");
    assert_eq!(fleet.round(), "");
    assert!(
        matches!(fleet.record.phase, Phase::Halted { .. }),
        "it counts anew"
    );
    fleet.record.command(crate::Command::Resume).unwrap();
    assert_eq!(fleet.round(), "b");
    fleet.updated("b");
    fleet.round();
    assert_eq!(fleet.record.phase, Phase::Done);
    fleet.record.command(crate::Command::Retry).unwrap();
    assert_eq!(fleet.round(), "a", "after the end, too");
}

#[test]
fn a_machine_that_was_late_and_was_to_try_again_goes_back_with_the_others() {
    let mut fleet = Fleet::new("x x", at_once(1));
    assert_eq!(fleet.round(), "a");
    fleet.fact("a").condition = Condition::Busy;
    fleet.now = fleet.now.after(Seconds(1800));
    fleet.round();
    fleet.record.command(crate::Command::Retry).unwrap();
    // It has proved itself after all.
    fleet.fact("a").condition = Condition::Ready;
    fleet.updated("a");
    assert_eq!(fleet.round(), "b");
    fleet.failed("b");
    let back = crate::Command::Rollback("no".to_owned());
    fleet.record.command(back).unwrap();
    assert_eq!(fleet.round(), "-a");
}

#[test]
fn a_share_and_a_number_both_hold() {
    let policy = Policy {
        share: Some(Percent::try_from(60).unwrap()),
        ..at_once(2)
    };
    assert_eq!(Fleet::new("x x x x x", policy.clone()).round(), "a b");
    let mut small = Fleet::new("x x x", policy);
    assert_eq!(small.round(), "a");
    small.record.policies.push(at_once(5));
    assert_eq!(small.round(), "a", "asked again, nothing new");
}

/// Five at once, after a wave of these machines.
fn one_wave(select: Select, soak: u64) -> Policy {
    let wave = Wave {
        select,
        soak: Seconds(soak),
    };
    Policy {
        waves: vec![wave],
        ..at_once(5)
    }
}

#[test]
fn canaries_go_first_and_soak() {
    let policy = one_wave(Select::Label("name=b".to_owned()), 600);
    let mut fleet = Fleet::new("x x x", policy);
    assert_eq!(fleet.round(), "b");
    assert_eq!(fleet.reason("a"), "waits for b, which is in a wave before");
    fleet.updated("b");
    assert_eq!(fleet.round(), "");
    fleet.now = fleet.now.after(Seconds(600));
    fleet.fact("b").condition = Condition::NotReady("disk".to_owned());
    assert_eq!(fleet.round(), "");
    assert_eq!(
        fleet.reason("a"),
        "waits for b, which has the version and is not ready"
    );
    fleet.fact("b").condition = Condition::Ready;
    assert_eq!(fleet.round(), "a c");
}

#[test]
fn machines_are_relied_on_shortly_before_the_next_wave_may_begin() {
    let wave = || one_wave(Select::Count(NonZeroU32::MIN), 3600);
    let windows = |text: &str| Policy {
        windows: vec![text.parse().unwrap()],
        ..wave()
    };
    let approved = || Policy {
        approval: Approval::Waves,
        ..wave()
    };
    // The policy, the number of approved waves, the seconds after the canary had the version, and whether it is relied on.
    for (policy, waves, after, expected) in [
        (wave(), 0, 3600 - 301, false),
        (wave(), 0, 3600 - 300, true),
        (wave(), 0, 7200, true),
        (approved(), 1, 7200, false),
        (approved(), 2, 7200, true),
        // It is 14:00 UTC then.
        (windows("14:06-15:00 +00:00"), 0, 7200, false),
        (windows("14:05-14:06 +00:00"), 0, 7200, true),
        (windows("13:00-15:00 +00:00"), 0, 7200, true),
    ] {
        let mut fleet = Fleet::new("x x", policy);
        let at = fleet.now;
        fleet.updated("a");
        let entry = fleet.record.machines.get_mut(&MachineName::from("a"));
        entry.unwrap().step = Step::Updated { at };
        fleet.record.approved = waves;
        let now = at.after(Seconds(after));
        let relied_on = fleet.record.relied_on(|_| false, now);
        assert_eq!(!relied_on.is_empty(), expected, "{after} s, {waves}");
        // Whose canary is held waits for no soak.
        let held = fleet.record.relied_on(|name| name.as_str() == "a", now);
        assert_eq!(!held.is_empty(), expected || after < 3600, "{after} s");
    }
}

#[test]
fn waves_are_approved_one_by_one() {
    let policy = Policy {
        approval: Approval::Waves,
        ..one_wave(Select::Count(NonZeroU32::MIN), 0)
    };
    let mut fleet = Fleet::new("x x", policy);
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.reason("a"), "wave 1 has to be approved");
    fleet.record.command(crate::Command::Approve(None)).unwrap();
    assert_eq!(fleet.round(), "a");
    fleet.updated("a");
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.reason("b"), "wave 2 has to be approved");
    fleet.record.command(crate::Command::Approve(None)).unwrap();
    assert_eq!(fleet.round(), "b");
}

#[test]
fn a_wave_is_approved_once_by_its_number() {
    let mut fleet = Fleet::new("x x", at_once(1));
    let before = |wave, next| Err(crate::Refused::WaveBefore { wave, next });
    for (wave, told, approved) in [
        (Some(2), before(2, 1), 0),
        (Some(1), Ok(()), 1),
        // Pressed twice, or said by two persons.
        (Some(1), Ok(()), 1),
        (Some(2), Ok(()), 2),
        (None, Ok(()), 3),
    ] {
        let command = crate::Command::Approve(wave);
        assert_eq!(fleet.record.command(command), told, "{wave:?}");
        assert_eq!(fleet.record.approved, approved, "{wave:?}");
    }
}

#[test]
fn a_wave_without_a_machine_that_proves_the_version_lets_no_other_begin() {
    let policy = one_wave(Select::Label("name=a".to_owned()), 0);
    let why = "wave 1 has no machine that proves the version: all are held, or there is none; release one";
    let mut held = Fleet::new("x x", policy.clone());
    held.fact("a").hold = Some("cordoned".to_owned());
    assert_eq!(
        (held.round().as_str(), held.reason("b").as_str()),
        ("", why)
    );
    held.now = held.now.after(Seconds(1800));
    held.round();
    assert_eq!(held.record.phase, Phase::Rolling, "a person ends it");
    held.fact("a").hold = None;
    assert_eq!(held.round(), "a");
    held.updated("a");
    assert_eq!(held.round(), "b");
    // A policy that was changed meanwhile.
    let mut empty = Fleet::new("x x", at_once(5));
    let other = Select::Label("name=z".to_owned());
    empty.record.policies = vec![policy];
    empty.record.policies[0].waves[0].select = other;
    assert_eq!(
        (empty.round().as_str(), empty.reason("b").as_str()),
        ("", why)
    );
}

#[test]
fn a_person_approves_a_wave_without_a_proof() {
    let policy = Policy {
        approval: Approval::Waves,
        ..one_wave(Select::Count(NonZeroU32::MIN), 0)
    };
    let mut fleet = Fleet::new("x x", policy);
    fleet.fact("a").hold = Some("cordoned".to_owned());
    fleet.record.approved = 1;
    assert_eq!(fleet.round(), "");
    fleet.record.approved = 2;
    assert_eq!(fleet.round(), "b");
}

#[test]
fn windows_open_and_close() {
    let policy = Policy {
        windows: vec!["14:00-15:00 +01:00".parse().unwrap()],
        ..at_once(1)
    };
    let mut fleet = Fleet::new("x x", policy);
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.reason("a"), "its window opens in 1h");
    fleet.now = fleet.now.after(Seconds(3600));
    assert_eq!(fleet.round(), "a");
    fleet.updated("a");
    fleet.now = fleet.now.after(Seconds(3600));
    assert_eq!(fleet.round(), "", "closed again before the second one");
}

/// The driver that was to ask it died, and another one goes on hours later.
#[test]
fn a_machine_that_was_not_asked_before_its_window_closed_waits_for_the_next_one() {
    let policy = Policy {
        windows: vec!["12:00-13:00".parse().unwrap()],
        ..at_once(1)
    };
    let mut fleet = Fleet::new("x x", policy);
    assert_eq!(fleet.round(), "a");
    // The time in which nobody watched does not count for its patience.
    fleet.now = NOW.after(Seconds(3600));
    fleet.record.skip_unwatched(NOW, fleet.now);
    assert_eq!(fleet.round(), "");
    // Nobody could ask it for all of its time: it has failed at nothing.
    fleet.now = fleet.now.after(Seconds(1800));
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.reason("a"), "its window opens in 1350m");
    assert_eq!(fleet.record.failures(), 0);
    fleet.now = NOW.after(Seconds(86_400));
    assert_eq!(fleet.round(), "a");
}

#[test]
fn a_machine_that_was_not_asked_before_its_approval_was_withdrawn_waits() {
    let policy = Policy {
        approval: Approval::Waves,
        ..one_wave(Select::Count(NonZeroU32::MIN), 0)
    };
    let mut fleet = Fleet::new("x x", policy);
    fleet.record.approved = 1;
    assert_eq!(fleet.round(), "a");
    fleet.record.approved = 0;
    assert_eq!(fleet.round(), "");
    fleet.now = fleet.now.after(Seconds(1800));
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.reason("a"), "wave 1 has to be approved");
    fleet.record.approved = 1;
    assert_eq!(fleet.round(), "a");
}

#[test]
fn a_rate_is_a_number_in_a_time() {
    let policy = Policy {
        rate: Some(Rate {
            machines: NonZeroU32::new(2).unwrap(),
            per: Seconds(3600),
        }),
        ..at_once(5)
    };
    let mut fleet = Fleet::new("x x x", policy);
    assert_eq!(fleet.round(), "a b");
    fleet.updated("a");
    fleet.updated("b");
    fleet.now = fleet.now.after(Seconds(3599));
    assert_eq!(fleet.round(), "");
    fleet.now = fleet.now.after(Seconds(1));
    assert_eq!(fleet.round(), "c");
}

#[test]
fn pools_wait_for_each_other() {
    let order = PoolOrder {
        pool: "one".to_owned(),
        after: vec!["two".to_owned()],
    };
    let policy = Policy {
        order: vec![order],
        ..at_once(5)
    };
    let mut fleet = Fleet::new("one two", policy);
    assert_eq!(fleet.round(), "b");
    assert_eq!(fleet.reason("a"), "waits for the pool two");
    fleet.updated("b");
    assert_eq!(fleet.round(), "a");
}

#[test]
fn a_pool_that_has_failed_lets_no_other_begin_before_a_person_says_so() {
    let order = PoolOrder {
        pool: "kitchen".to_owned(),
        after: vec!["lab".to_owned()],
    };
    let policy = Policy {
        order: vec![order],
        max_failures: NonZeroU32::new(3).unwrap(),
        ..at_once(5)
    };
    let mut failed = Fleet::new("lab kitchen", policy.clone());
    assert_eq!(failed.round(), "a");
    failed.failed("a");
    assert_eq!(failed.round(), "");
    let Phase::Halted { why } = failed.record.phase.clone() else {
        panic!("{:?}", failed.record.phase);
    };
    assert!(why.contains("no machine of the pool lab has"), "{why}");
    failed.record.command(crate::Command::Resume).unwrap();
    assert_eq!(failed.round(), "b");
    // One that has it is a proof, and one that a person holds has shown nothing bad.
    let mut proved = Fleet::new("lab lab kitchen", policy.clone());
    assert_eq!(proved.round(), "a b");
    proved.failed("a");
    proved.updated("b");
    assert_eq!(proved.round(), "c");
    let mut held = Fleet::new("lab kitchen", policy);
    held.fact("a").hold = Some("cordoned".to_owned());
    assert_eq!(held.round(), "b");
}

#[test]
fn all_fetch_before_one_begins() {
    let policy = Policy {
        prepare_first: true,
        ..at_once(1)
    };
    let mut fleet = Fleet::new("x x", policy);
    assert_eq!(fleet.round(), "+a +b");
    let done = |fleet: &mut Fleet, name: &str| {
        let action = Action::Prepare(MachineName::from(name));
        fleet.record.report(&action, Report::Done, NOW);
    };
    done(&mut fleet, "a");
    assert_eq!(fleet.round(), "+b");
    assert_eq!(fleet.reason("a"), "waits until b has the image");
    done(&mut fleet, "b");
    assert_eq!(fleet.round(), "a");
}

#[test]
fn a_failure_stops_the_next_one_and_a_person_goes_on() {
    let mut fleet = Fleet::new("x x", at_once(1));
    assert_eq!(fleet.round(), "a");
    fleet.failed("a");
    assert_eq!(fleet.round(), "");
    let why = "a: the moon is full".to_owned();
    assert_eq!(fleet.record.phase, Phase::Halted { why });
    assert!(fleet.record.has_ended());
    fleet.record.command(crate::Command::Resume).unwrap();
    assert_eq!(fleet.round(), "b", "the failed one is not tried again");
}

#[test]
fn a_failure_sends_the_others_back_one_by_one() {
    let policy = Policy {
        on_failure: crate::OnFailure::Rollback,
        ..at_once(1)
    };
    let mut fleet = Fleet::new("x x x", policy);
    for name in ["a", "b"] {
        assert_eq!(fleet.round(), name);
        fleet.updated(name);
    }
    assert_eq!(fleet.round(), "c");
    fleet.failed("c");
    assert_eq!(fleet.round(), "-a");
    fleet.fact("a").running = Some(release("v1"));
    assert_eq!(fleet.round(), "-b");
    fleet.fact("b").running = Some(release("v1"));
    assert_eq!(fleet.round(), "");
    assert!(matches!(fleet.record.phase, Phase::WentBack { .. }));
}

#[test]
fn who_is_held_is_left_alone_on_both_ways() {
    let mut fleet = Fleet::new("x x x", at_once(5));
    fleet.fact("b").hold = Some("cordoned".to_owned());
    let hold = crate::Command::Hold("c".into(), "mine".to_owned());
    fleet.record.command(hold).unwrap();
    assert_eq!(fleet.round(), "a");
    fleet.updated("a");
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.record.phase, Phase::Done);
    assert_eq!(fleet.reason("c"), "left as it was; held: mine");
    fleet.fact("a").hold = Some("cordoned".to_owned());
    let back = crate::Command::Rollback("no".to_owned());
    fleet.record.command(back).unwrap();
    assert_eq!(fleet.round(), "");
    assert!(matches!(fleet.record.phase, Phase::WentBack { .. }));
}

#[test]
fn a_driver_that_takes_over_asks_again_only_where_nothing_is_to_be_seen() {
    let mut fleet = Fleet::new("x x", at_once(1));
    assert_eq!(fleet.round(), "a");
    assert_eq!(fleet.round(), "a", "it shows no sign of it");
    fleet.fact("a").condition = Condition::Busy;
    assert_eq!(fleet.round(), "");
    fleet.fact("a").condition = Condition::Ready;
    fleet.fact("a").failure = Some(crate::NotedFailure {
        number: 1,
        why: "no room".to_owned(),
    });
    assert_eq!(fleet.round(), "");
    assert_eq!(fleet.reason("a"), "failed: no room");
}

#[test]
fn nothing_is_begun_after_a_stop() {
    let mut fleet = Fleet::new("x x", at_once(1));
    assert_eq!(fleet.round(), "a");
    fleet.record.command(crate::Command::Abort).unwrap();
    assert_eq!(fleet.round(), "", "a was to begin, and nobody has asked it");
    assert!(!fleet.record.has_ended());
    fleet.now = fleet.now.after(Seconds(1800));
    assert_eq!(fleet.round(), "");
    assert!(fleet.record.has_ended());
}

/// The driver keeps its lease between two rounds, so none may take long, however many machines wait: a search in all of them for each machine of
/// each machine took minutes.
#[test]
fn a_round_over_thousands_of_machines_is_short() {
    // The host may have other work: the shortest of three counts, and a ratio.
    let shortest = |machines: u32| (0..3).map(|_| time_of_a_round(machines)).min().unwrap();
    let (few, many) = (shortest(400), shortest(1600));
    assert!(many < 32 * few, "{few:?} for 400, {many:?} for 1,600");
}

/// How long it takes to decide about machines of which one may begin.
fn time_of_a_round(machines: u32) -> std::time::Duration {
    let labelled = Wave {
        select: Select::Label("first=yes".to_owned()),
        soak: Seconds(0),
    };
    let policy = Policy {
        at_once: NonZeroU32::new(1),
        waves: vec![labelled],
        ..Policy::default()
    };
    let member = Member {
        pool: String::new(),
        labels: ["first=yes".to_owned()].into(),
    };
    let names = (0..machines).map(|number| MachineName::from(format!("n{number}")));
    let members: BTreeMap<_, _> = names.map(|name| (name, member.clone())).collect();
    let ready = Fleet::new("one", Policy::default()).fact("a").clone();
    let names = members.keys();
    let facts: Facts = names.map(|name| (name.clone(), ready.clone())).collect();
    let record = Record::begin(release("v2"), vec![policy], members).unwrap();
    let began = std::time::Instant::now();
    let decision = decide(&record, &facts, NOW);
    let took = began.elapsed();
    let all = usize::try_from(machines).unwrap();
    assert_eq!((decision.actions.len(), decision.reasons.len()), (1, all));
    took
}
