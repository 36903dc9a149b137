//! Properties over random histories.

use std::collections::BTreeSet;

use super::*;
use crate::values::Version;

/// Random facts against a random history: a release that failed is never begun again while it is held, nothing is switched to twice at
/// once, and the lock is given back neither between the request and the proof nor while the list offers what has failed, also after the time of
/// its hold. A release that restarts the machine comes to an end, and a lock that was taken is known until it is given back.
#[test]
fn random_histories_keep_the_promises() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..2000 {
        History::begin(&mut random).live(&mut random);
    }
}

/// A machine of a random history.
struct History {
    record: Record,
    running: String,
    lock: LockAnswer,
    policy: Policy<'static>,
    /// The groups at whose locks this machine has a slot.
    slots: BTreeSet<String>,
    /// Releases that have failed here, have not proved themselves since, and were not withdrawn.
    failed: BTreeSet<Digest>,
    start: u32,
    /// Restarts that nobody has asked for, since the release began to prove itself.
    restarts: u32,
}

static ELSEWHERE: LazyLock<LockPlace> = LazyLock::new(|| place("kitchen"));

/// The good release, and the bad one, which is older.
static BOTH: LazyLock<[Release; 2]> = LazyLock::new(|| [release("v0.3.0"), release("v0.2.0")]);

impl History {
    fn begin(random: &mut fastrand::Rng) -> Self {
        let policy = Policy {
            lock: random.bool().then_some(&*HERE),
            healthy_for: 2,
            hold_for: random.bool().then(|| random.u64(1..20)),
            ..POLICY
        };
        let mut record = record(Stage::Idle);
        if random.u8(0..4) == 0 {
            // The newest one has failed before, and the machine has kept the lock.
            record.has_lock = policy.lock.is_some();
            record.hold_release(Hold {
                until: policy.hold_for.map(|time| NOW + time),
                ..hold_of("v0.3.0", true)
            });
        }
        History {
            record,
            running: "v0.1.0".to_owned(),
            lock: LockAnswer::Unasked,
            policy,
            slots: BTreeSet::new(),
            failed: BTreeSet::new(),
            start: 0,
            restarts: 0,
        }
    }

    fn live(mut self, random: &mut fastrand::Rng) {
        for tick in 0..60 {
            self.happen(random);
            self.go_on(tick, random);
            self.keeps_its_promises();
        }
    }

    /// The machine starts again, its config changes, a person holds a release or goes back from it, or a lock is given back where it is owed.
    fn happen(&mut self, random: &mut fastrand::Rng) {
        match random.u8(0..26) {
            0..4 => {
                let is_asked = random.bool();
                if is_asked {
                    self.record.expect_start();
                }
                let proves = matches!(self.record.stage, Stage::Proving(_));
                self.restarts += u32::from(proves && !is_asked);
                self.start += 1;
                self.lock = LockAnswer::Unasked;
            }
            4 => {
                self.policy.lock = [None, Some(&*HERE), Some(&*ELSEWHERE)][random.usize(0..3)];
                self.lock = LockAnswer::Unasked;
            }
            5 => self.record.turn_to(format!("stable by {}", self.start)),
            6..8 => {
                if let Some(owed) = self.record.owed.first().cloned() {
                    self.record.gave_back(&owed.at, true);
                    self.slots.remove(&owed.at.group);
                }
            }
            8 => {
                let version = ["v0.2.0", "v0.3.0"][random.usize(0..2)];
                self.record.hold_release(hold_of(version, false));
            }
            9 => {
                if let Stage::Proving(attempt) = self.record.stage.clone() {
                    let Release {
                        digest, version, ..
                    } = attempt.target.release;
                    self.record.leave(digest, version, &attempt.from);
                    self.running = attempt.from;
                }
            }
            _ => {}
        }
    }

    /// What a list says to the machine, in which releases are withdrawn and come back at random. `None`: there is no list.
    fn choice(&self, random: &mut fastrand::Rng) -> Option<Choice<'static>> {
        let mut choice = Choice {
            release: None,
            reasons: Vec::new(),
        };
        let running: Version = self.running.parse().unwrap();
        for release in BOTH.iter() {
            let why = match choice.release {
                _ if release.version == running => Why::Runs,
                _ if random.u8(0..3) == 0 => Why::Withdrawn("hangs".into()),
                _ if release.version < running => Why::NotNewer,
                _ if self.record.hold(release.digest).is_some() => Why::Held("hangs".into()),
                Some(newer) => Why::Passed(Version::clone(&newer.version)),
                None => {
                    choice.release = Some(release);
                    Why::Chosen
                }
            };
            choice.reasons.push((release, why));
        }
        (random.u8(0..4) > 0).then_some(choice)
    }

    fn go_on(&mut self, tick: u64, random: &mut fastrand::Rng) {
        let choice = self.choice(random);
        let has_expired = random.u8(0..8) == 0;
        let chosen = choice.as_ref().map_or(Chosen::Unknown, |choice| {
            let offers_failed = self.record.offers_failed(choice);
            match choice.release.filter(|_| !has_expired) {
                Some(release) => Chosen::Release {
                    release,
                    offers_failed,
                },
                None => Chosen::None { offers_failed },
            }
        });
        let running = self.running.clone();
        let facts = Facts {
            now: NOW + tick,
            lock: self.lock.clone(),
            is_busy: random.u8(0..4) == 0,
            fetched: match random.u8(0..4) {
                0 => Fetched::No("it comes".into()),
                _ => Fetched::Yes,
            },
            failure: (random.u8(0..8) == 0).then(|| "hangs".into()),
            ready_for: random.bool().then(|| random.u64(0..4)),
            start: self.start.to_string(),
            ..facts(&running, chosen)
        };
        if let Some(choice) = &choice {
            self.record.forget_withdrawn(choice);
        }
        let had_lock = self.record.has_lock;
        let next = step(self.record.clone(), &facts, &self.policy);
        self.note_failures(&next.record, choice.as_ref());
        self.record = next.record;
        match next.act {
            Act::Switch => self.switch(random),
            Act::Lock => {
                self.lock = match random.bool() {
                    true => LockAnswer::Granted,
                    false => LockAnswer::Refused("taken".into()),
                };
                if self.lock == LockAnswer::Granted {
                    self.slots.insert(self.policy.lock.unwrap().group.clone());
                }
            }
            Act::Unlock => {
                assert!(had_lock || self.record.has_lock);
                self.unlock(choice.as_ref());
            }
            Act::GoBack => {
                if let (Stage::Returning(attempt, _), true) = (&self.record.stage, random.bool()) {
                    self.running.clone_from(&attempt.from);
                }
            }
            Act::Look | Act::None => {}
        }
    }

    /// Keeps beside the record which releases have failed.
    fn note_failures(&mut self, next: &Record, choice: Option<&Choice<'_>>) {
        let (before, after) = (&self.record.stage, &next.stage);
        // If it has failed, its hold says so below.
        if let (Stage::Switching(attempt) | Stage::Proving(attempt), Stage::Idle) = (before, after)
        {
            self.failed.remove(&attempt.target.release.digest);
        }
        let reasons = choice.iter().flat_map(|choice| &choice.reasons);
        for (release, why) in reasons {
            if !matches!(why, Why::Held(_) | Why::Chosen | Why::Passed(_)) {
                self.failed.remove(&release.digest);
            }
        }
        let holds = next.holds.iter();
        let failed = holds.filter(|hold| hold.has_failed && !hold.is_over);
        self.failed.extend(failed.map(|hold| hold.digest));
    }

    fn unlock(&mut self, choice: Option<&Choice<'_>>) {
        let is_under_way = !matches!(self.record.stage, Stage::Idle | Stage::Target(_));
        assert!(!is_under_way, "given back before the proof");
        let goes_to = match choice {
            Some(choice) => choice.release,
            None => self.record.target().map(|target| &target.release),
        };
        for release in BOTH.iter().filter(|it| self.failed.contains(&it.digest)) {
            let is_offered = choice.is_none_or(|choice| {
                let mut reasons = choice.reasons.iter();
                reasons.any(|(it, why)| {
                    *it == release && matches!(why, Why::Held(_) | Why::Chosen | Why::Passed(_))
                })
            });
            let is_replaced = goes_to.is_some_and(|it| it.version > release.version);
            assert!(!is_offered || is_replaced, "given back after a failure");
        }
        (self.record.has_lock, self.record.lock_at) = (false, None);
        self.slots.remove(&self.policy.lock.unwrap().group);
        self.lock = LockAnswer::Unasked;
    }

    fn switch(&mut self, random: &mut fastrand::Rng) {
        let is_locked = self.record.has_lock && self.lock == LockAnswer::Granted;
        assert!(self.policy.lock.is_none() || is_locked);
        let to = self.record.target().unwrap().release.clone();
        assert!(self.record.hold(to.digest).is_none(), "{to:?}");
        // The machine is killed before, or the version comes up.
        if random.bool() {
            self.running = to.version.to_string();
        }
        self.lock = LockAnswer::Unasked;
        self.restarts = 0;
    }

    fn keeps_its_promises(&self) {
        let record = &self.record;
        if let Stage::Proving(_) = record.stage {
            assert!(self.restarts <= 2, "it proves itself for ever");
        }
        let has = record.lock_at.iter().filter(|_| record.has_lock);
        let known: Vec<&str> = has
            .map(|at| at.group.as_str())
            .chain(owed(record))
            .collect();
        for group in &self.slots {
            assert!(known.contains(&group.as_str()), "{group} leaks: {record:?}");
        }
    }
}
