//! The record of a machine that follows a channel: its stage, the releases that it holds, and the fleet's locks that it has or owes.

use instar_channel::{Choice, Position, Release, Why};
use serde::{Deserialize, Serialize};

use super::facts::{Facts, LockPlace, Policy};
use crate::values::{Digest, Version};

/// Limit on locks that are owed; the oldest are forgotten.
const MOST_OWED: usize = 8;
/// How often a server is asked to take back a lock that is owed there: for more than a day, with the pauses of the sequence.
const MOST_FAILURES: u32 = 32;
/// Limit on held releases; the oldest are forgotten.
const MOST_HOLDS: usize = 32;
/// The pause after an upgrade that was refused, in seconds.
const REFUSED: u64 = 600;

/// The record that a machine keeps of the channel that it follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// The channel and its key: with others the position begins anew.
    pub source: String,
    /// The machine's identity for delays and for the fleet's lock; it says nothing about the machine.
    pub identity: String,
    /// The newest list that was seen.
    pub position: Option<Position>,
    /// The stage.
    pub stage: Stage,
    /// Releases that are not tried.
    pub holds: Vec<Hold>,
    /// Whether the fleet's lock may be held by this machine.
    pub has_lock: bool,
    /// Where it is held. `None` beside a lock: a version before this one has noted it, or there was no record of it, so it is taken for the
    /// one of the config.
    #[serde(default)]
    pub lock_at: Option<LockPlace>,
    /// Locks that are to be given back elsewhere than the config says.
    #[serde(default)]
    pub owed: Vec<OwedLock>,
}

/// A lock that is to be given back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwedLock {
    /// Where.
    pub at: LockPlace,
    /// How often the server has not taken it back.
    pub failures: u32,
}

/// What is left of a lock that was given back where it is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owes {
    /// Nothing: the server has taken it back, or the config names it again.
    Nothing,
    /// The lock: it is given back again later.
    Still,
    /// Nothing any more: the server has been asked often enough.
    GivenUp,
}

/// The stage of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Stage {
    /// It goes nowhere.
    Idle,
    /// It goes to a release, and waits.
    Target(Target),
    /// It switches.
    Switching(Attempt),
    /// It runs the release, which has to prove itself.
    Proving(Attempt),
    /// The release is not healthy: the machine goes back.
    Returning(Attempt, String),
}

/// The release that a machine goes to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// The release.
    pub release: Release,
    /// When the machine chose it, in seconds since 1970.
    pub seen: u64,
    /// Whether a caller has approved it.
    pub approved: bool,
    /// How often the switch was begun.
    pub tries: u32,
    /// Nothing is begun before this time, and why.
    pub not_before: Option<(u64, String)>,
}

/// A switch that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// The release.
    pub target: Target,
    /// The version that ran before, and its image if that is known.
    pub from: String,
    /// See [`Attempt::from`].
    pub from_image: Option<String>,
    /// How often the machine was asked to go back.
    pub returns: u32,
    /// The start of machined in which the release was seen last.
    #[serde(default)]
    pub start: Option<String>,
    /// Whether the start after that one was asked for.
    #[serde(default)]
    pub expects_start: bool,
    /// How often the machine or machined has started again without being asked to, while the release had to prove itself.
    #[serde(default)]
    pub restarts: u32,
    /// Whether a person goes back from the release.
    #[serde(default)]
    pub left_by_a_person: bool,
}

/// A release that is not tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// Its digest.
    pub digest: Digest,
    /// Its version.
    pub version: Version,
    /// Why.
    pub why: String,
    /// Until when, in seconds since 1970; `None`: for good.
    pub until: Option<u64>,
    /// Whether it has failed here; otherwise a person alone holds it.
    pub has_failed: bool,
    /// Whether its time is over: the release may be tried once more here. Until that has an end, what has failed is nothing for other machines.
    #[serde(default)]
    pub is_over: bool,
}

impl Record {
    /// The record of a machine that begins to follow a channel. A lock that it may have from before is given back once the machine has been ready for
    /// as long as a release has to be.
    pub fn begin(source: String, identity: String) -> Self {
        Record {
            source,
            identity,
            position: None,
            stage: Stage::Idle,
            holds: Vec::new(),
            has_lock: true,
            lock_at: None,
            owed: Vec::new(),
        }
    }

    /// Follows another channel, or this one by another key. The position is one in the previous lists, and so is a target, which nothing was begun
    /// for. All that is known of releases, which are named by their digests, stays: what has failed here, and a switch that is under way.
    pub fn turn_to(&mut self, source: String) {
        self.source = source;
        self.position = None;
        if let Stage::Target(_) = self.stage {
            self.stage = Stage::Idle;
        }
    }

    /// Owes the lock to the place where it is held, if that is known.
    pub fn leave_lock(&mut self) {
        let Some(at) = self.lock_at.take().filter(|_| self.has_lock) else {
            return;
        };
        self.has_lock = false;
        self.owed.retain(|owed| owed.at != at);
        self.owed.push(OwedLock { at, failures: 0 });
        let surplus = self.owed.len().saturating_sub(MOST_OWED);
        self.owed.drain(..surplus);
    }

    /// The locks that may be given back now: none of the group in which the machine has another one. Two addresses may lead to one server, which
    /// tells locks apart by group and machine alone, so that a switch would lose its own.
    pub fn due_back(&self) -> Vec<OwedLock> {
        let here = self.lock_at.as_ref().filter(|_| self.has_lock);
        let is_due = |owed: &&OwedLock| here.is_none_or(|here| here.group != owed.at.group);
        self.owed.iter().filter(is_due).cloned().collect()
    }

    /// Notes the server's answer to a lock that was given back where it is owed.
    pub fn gave_back(&mut self, at: &LockPlace, is_taken: bool) -> Owes {
        let Some(owed) = self.owed.iter_mut().find(|owed| owed.at == *at) else {
            return Owes::Nothing;
        };
        owed.failures += 1;
        let owes = match is_taken {
            true => Owes::Nothing,
            false if owed.failures >= MOST_FAILURES => Owes::GivenUp,
            false => return Owes::Still,
        };
        self.owed.retain(|owed| owed.at != *at);
        owes
    }

    /// Has the lock be that of the config, or none, once no switch needs the one that there is.
    pub(super) fn settle_lock(&mut self, policy: &Policy<'_>) {
        if self.lock_at.is_some() && self.lock_at.as_ref() != policy.lock {
            self.leave_lock();
        }
        // Nobody knows where a lock is that has no place.
        self.has_lock &= policy.lock.is_some();
        self.keep_owed(policy);
    }

    /// Owes the config's lock no more: the config has come back to it before it was given back.
    pub(super) fn keep_owed(&mut self, policy: &Policy<'_>) {
        let Some(here) = policy.lock.filter(|_| self.lock_at.is_none()) else {
            return;
        };
        let before = self.owed.len();
        self.owed.retain(|owed| owed.at != *here);
        if self.owed.len() < before {
            self.has_lock = true;
            self.lock_at = Some(here.clone());
        }
    }

    /// Notes that the machine was asked to start again: that is nothing that the release has caused.
    pub fn expect_start(&mut self) {
        if let Stage::Proving(attempt) = &mut self.stage {
            attempt.expects_start = true;
        }
    }

    /// The release that the machine goes to, switches to or proves.
    pub fn target(&self) -> Option<&Target> {
        match &self.stage {
            Stage::Idle => None,
            Stage::Target(target) => Some(target),
            Stage::Switching(attempt) | Stage::Proving(attempt) | Stage::Returning(attempt, _) => {
                Some(&attempt.target)
            }
        }
    }

    /// Why a release is not tried, if it is held.
    pub fn hold(&self, digest: Digest) -> Option<&Hold> {
        let mut holds = self.holds.iter();
        holds.find(|hold| hold.digest == digest && !hold.is_over)
    }

    /// Whether this release, or one that is newer, has failed here.
    pub(super) fn has_failed_from(&self, release: &Release) -> bool {
        let is_from = |hold: &Hold| hold.version > release.version || hold.digest == release.digest;
        let mut holds = self.holds.iter();
        holds.any(|hold| hold.has_failed && is_from(hold))
    }

    /// Whether the channel offers a release that failed here and is not older than the one that it has for this machine: the other machines
    /// would go to it.
    pub fn offers_failed(&self, choice: &Choice<'_>) -> bool {
        let has_failed = |digest| {
            let mut holds = self.holds.iter();
            holds.any(|hold| hold.has_failed && hold.digest == digest)
        };
        let goes_to = choice.release.map(|release| &release.version);
        let mut reasons = choice.reasons.iter();
        reasons.any(|(release, why)| {
            // It is chosen, too, if the time of its hold is over.
            matches!(why, Why::Held(_) | Why::Chosen)
                && has_failed(release.digest)
                && goes_to.is_none_or(|version| release.version >= *version)
        })
    }

    /// Forgets failures whose holds are over, of releases that the list offers no more.
    pub fn forget_withdrawn(&mut self, choice: &Choice<'_>) {
        let is_offered = |digest| {
            let mut reasons = choice.reasons.iter();
            reasons.any(|(release, why)| {
                let is_on_offer = matches!(why, Why::Held(_) | Why::Chosen | Why::Passed(_));
                is_on_offer && release.digest == digest
            })
        };
        self.holds
            .retain(|hold| !hold.is_over || is_offered(hold.digest));
    }

    /// Notes that a release has proved itself: what it did before is history.
    pub(super) fn proven(&mut self, target: &Target) {
        let digest = target.release.digest;
        self.holds
            .retain(|hold| !hold.is_over || hold.digest != digest);
        self.stage = Stage::Idle;
    }

    /// Holds the running release, from which a person goes back: the machine would go to it again at once. If it is still to prove itself, it is
    /// held when the machine is back. Does nothing if the machine goes back by itself.
    pub fn leave(&mut self, digest: Digest, version: Version, to: &str) {
        let is_it = |attempt: &Attempt| attempt.target.release.digest == digest;
        match &mut self.stage {
            Stage::Switching(attempt) | Stage::Proving(attempt) if is_it(attempt) => {
                attempt.left_by_a_person = true;
                return;
            }
            Stage::Returning(attempt, _) if is_it(attempt) => return,
            _ => {}
        }
        self.hold_release(Hold {
            digest,
            version,
            why: format!("a person went back from it to {to}"),
            until: None,
            has_failed: false,
            is_over: false,
        });
    }

    /// Holds a release, in place of an older hold of it.
    pub fn hold_release(&mut self, hold: Hold) {
        let is_same = |old: &Hold| old.digest == hold.digest;
        let old = self.holds.iter().position(is_same);
        let hold = match old.map(|at| self.holds.remove(at)) {
            Some(old) => hold.after(old),
            None => hold,
        };
        self.holds.push(hold);
        let surplus = self.holds.len().saturating_sub(MOST_HOLDS);
        self.holds.drain(..surplus);
    }

    /// Notes that the upgrade was refused before it changed anything: it is tried again after a pause.
    #[must_use]
    pub fn refused(mut self, why: String, now: u64) -> Self {
        if let Stage::Switching(attempt) = self.stage {
            self.stage = Stage::Target(Target {
                not_before: Some((now.saturating_add(REFUSED), why)),
                tries: attempt.target.tries.saturating_sub(1),
                ..attempt.target
            });
        }
        self
    }

    /// Notes that a switch has ended with another version, for a reason. A release that a person left is held without an end.
    pub(super) fn lost(
        self,
        attempt: &Attempt,
        why: String,
        policy: &Policy<'_>,
        now: u64,
    ) -> Self {
        let hold_for = policy.hold_for.filter(|_| !attempt.left_by_a_person);
        let policy = Policy {
            hold_for,
            ..policy.clone()
        };
        self.failed(&attempt.target, why, &policy, now)
    }

    pub(super) fn failed(
        mut self,
        target: &Target,
        why: String,
        policy: &Policy<'_>,
        now: u64,
    ) -> Self {
        self.hold_release(Hold {
            digest: target.release.digest,
            version: target.release.version.clone(),
            why,
            until: policy.hold_for.map(|time| now.saturating_add(time)),
            has_failed: true,
            is_over: false,
        });
        self.stage = Stage::Idle;
        self
    }

    /// Ends holds whose time is over; returns the digests of those that had failed. That they have failed stays in the record: the fleet's lock
    /// is kept until the next try has an end, or all machines would try the release one after the other.
    pub(super) fn forgive(&mut self, facts: &Facts<'_>) -> Vec<Digest> {
        if !facts.knows_time {
            return Vec::new();
        }
        let ends = |hold: &Hold| {
            let is_past = hold.until.is_some_and(|until| until <= facts.now);
            is_past && !hold.is_over
        };
        self.holds.retain(|hold| hold.has_failed || !ends(hold));
        let mut forgiven = Vec::new();
        for hold in self.holds.iter_mut().filter(|hold| ends(hold)) {
            hold.is_over = true;
            forgiven.push(hold.digest);
        }
        forgiven
    }
}

impl Hold {
    /// Keeps what the older hold of the same release says: what has failed here has failed also when a person holds it besides, and a person's
    /// hold has no end.
    fn after(mut self, old: Hold) -> Self {
        match (old.has_failed, self.has_failed) {
            (true, false) => {
                self.has_failed = true;
                self.why = match old.why.ends_with(&self.why) {
                    true => old.why,
                    false => format!("{}; {}", old.why, self.why),
                };
            }
            (false, true) if old.until.is_none() => self.until = None,
            _ => {}
        }
        self
    }
}

impl Target {
    /// Cuts times that were noted by a clock that was ahead, once the clock is right.
    pub(super) fn by_this_clock(mut self, facts: &Facts<'_>) -> Self {
        if facts.knows_time {
            self.seen = self.seen.min(facts.now);
            if let Some((until, _)) = &mut self.not_before {
                *until = (*until).min(facts.now.saturating_add(REFUSED));
            }
        }
        self
    }
}

impl Attempt {
    /// Why the release does not run any more, if that is known.
    pub(super) fn why_it_ended(&self, facts: &Facts<'_>) -> Option<String> {
        match self.left_by_a_person {
            true => Some(format!("a person went back from it to {}", facts.running)),
            false => facts.failure.clone(),
        }
    }

    /// Counts a start of machined after the first one, unless it was asked for.
    pub(super) fn note_start(&mut self, start: &str) {
        if self.start.as_deref() == Some(start) {
            return;
        }
        let is_unasked = self.start.is_some() && !self.expects_start;
        // The release runs again, so the person's way back has led nowhere.
        self.left_by_a_person &= self.start.is_none();
        self.restarts += u32::from(is_unasked);
        self.start = Some(start.to_owned());
        self.expects_start = false;
    }
}
