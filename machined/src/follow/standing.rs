//! The state of a machine that follows a channel: a value without side effects. The sequence gathers facts, asks [`step`], keeps the record,
//! and then does what it says.
//!
//! ```text
//!          a release is chosen         fetched, approved, in its window, locked
//!   Idle ──────────────────────► Target ─────────────────────────────────────────► Switching
//!    ▲                           │    ▲                                              │ │ │
//!    │ none is chosen any more   │    │ the version of before runs, nothing failed,  │ │ │ the new version runs
//!    ├───────────────────────────┘    └──────────── and it was begun twice at most ──┘ │ ▼
//!    │                                                          it failed and is back, │ Proving
//!    │ ready for long enough, or held: failed                   or begun too often     │ │ │
//!    ├─────────────────────────────────────────────────────────────────────────────────┘ │ │ not ready in time
//!    ├───────────────────────────────────────────────────────────────────────────────────┘ ▼ or restarts too often
//!    └───────────────────────────────────────────────── the version of before runs ◄── Returning
//! ```
//!
//! - The record is kept before anything is done: a machine that is killed at any moment finds what it was about to do.
//! - A release that failed is held: it is not chosen again, for good or for a while.
//! - The fleet's lock is given back when a release has proved itself. **After a failure the machine keeps it**, for as long as the channel
//!   offers the release that failed: so a bad release stops at the first machine, and a withdrawal or a newer release lets the fleet go on.
//!   So it does while an older release waits here: the other machines would go to the failed one.
//! - A lock at a server or in a group that the config names no more is owed there ([`Record::owed`]): it is given back beside all of this.
//! - A record alone starts nothing: a list that was read a short time ago has to offer the release.

use std::fmt;

use instar_channel::{Choice, Position, Release, Why};
use serde::{Deserialize, Serialize};

use crate::values::{Digest, Openness, Version, Window};

/// How often a release is begun, if the machine comes up with the version of before and nobody knows why.
const MOST_TRIES: u32 = 3;
/// How often a release that proves itself may restart the machine, or machined, when nobody has asked for that.
const MOST_RESTARTS: u32 = 2;
/// Limit on locks that are owed; the oldest are forgotten.
const MOST_OWED: usize = 8;
/// How often a server is asked to take back a lock that is owed there: for more than a day, with the pauses of the sequence.
const MOST_FAILURES: u32 = 32;
/// Limit on held releases; the oldest are forgotten.
const MOST_HOLDS: usize = 32;
/// Time that a version has to become ready, beside the time that it has to be ready.
const GRACE: u64 = 600;
/// Pauses, in seconds: between two views of a version that proves itself or of an operation that is under way, of an image that comes, between
/// two requests for the fleet's lock, after an upgrade that was refused, and the longest one.
const VIEW: u64 = 1;
const FETCHING: u64 = 5;
const LOCK_AGAIN: u64 = 30;
const REFUSED: u64 = 600;
/// Between two looks at a list that cannot be read.
const LOOK_AGAIN: u64 = 60;
const LONGEST: u64 = 300;

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
    /// Where it is held. `None` beside a lock: a version before this one has noted it, so it is taken for the one of the config.
    #[serde(default)]
    pub lock_at: Option<LockPlace>,
    /// Locks that are to be given back elsewhere than the config says.
    #[serde(default)]
    pub owed: Vec<OwedLock>,
}

/// A slot of the fleet's lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LockPlace {
    /// The server's address.
    pub url: String,
    /// The group.
    pub group: String,
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
    /// Whether it has failed here; otherwise a person holds it.
    pub has_failed: bool,
}

/// The release that the channel has for the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen<'a> {
    /// No list was read yet since machined started.
    Unknown,
    /// None. `offers_failed`: the channel still offers one that failed here.
    None {
        /// See there.
        offers_failed: bool,
    },
    /// This one.
    Release {
        /// The release.
        release: &'a Release,
        /// Whether the channel still offers a newer one that failed here.
        offers_failed: bool,
    },
}

/// Whether the image of the target is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fetched {
    /// Not yet, for this reason.
    No(String),
    /// It is, and it is another one than the channel says.
    Wrong(String),
    /// It is.
    Yes,
}

/// The answer of the fleet's lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockAnswer {
    /// It was not asked, or its answer is old.
    Unasked,
    /// The machine has the lock.
    Granted,
    /// The machine does not get it now.
    Refused(String),
}

/// The facts about the machine at this moment.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The time, in seconds since 1970.
    pub now: u64,
    /// Whether that time can be trusted.
    pub knows_time: bool,
    /// The channel's release for this machine.
    pub chosen: Chosen<'a>,
    /// Whether the list was asked for a short time ago.
    pub list_is_fresh: bool,
    /// The running version.
    pub running: &'a str,
    /// The digest of the image that it came from, if that is known.
    pub running_digest: Option<Digest>,
    /// Why the image of the stage's release has failed here, if it has.
    pub failure: Option<String>,
    /// Whether the image of the target is here.
    pub fetched: Fetched,
    /// Whether the target has the signature that approves it.
    pub is_signed: bool,
    /// Whether another operation is under way, or the machine does not run yet.
    pub is_busy: bool,
    /// The answer of the fleet's lock.
    pub lock: LockAnswer,
    /// For how many seconds the machine has been ready without a break.
    pub ready_for: Option<u64>,
    /// For how many seconds this has been watched, since machined started.
    pub watched_for: u64,
    /// The start of machined, by a name that no other one has.
    pub start: String,
}

/// How the machine follows.
#[derive(Debug, Clone)]
pub struct Policy<'a> {
    /// The machine's own delay with this release, in seconds.
    pub delay: u64,
    /// When the machine may switch; `None`: at any time.
    pub window: Option<&'a Window>,
    /// Whether somebody has to approve the release.
    pub needs_approval: bool,
    /// The fleet's lock; `None`: there is none.
    pub lock: Option<&'a LockPlace>,
    /// How long a version has to be ready, in seconds.
    pub healthy_for: u64,
    /// How long a failed release is held, in seconds.
    pub hold_for: Option<u64>,
}

/// The action that follows once the record is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Nothing.
    None,
    /// Ask for the list.
    Look,
    /// Ask for the fleet's lock.
    Lock,
    /// Give the fleet's lock back.
    Unlock,
    /// Begin the upgrade.
    Switch,
    /// Go back to the version before.
    GoBack,
}

/// The event that a target waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wait {
    /// The clock is not set.
    Clock,
    /// The machine's own delay.
    Delay(u64),
    /// A pause after a refusal.
    Pause(u64, String),
    /// Its image is not here.
    Image(String),
    /// A person has to approve it.
    Approval,
    /// The window is closed.
    Window(u64),
    /// Another operation.
    Busy,
    /// The newest list.
    List,
    /// The fleet's lock.
    Lock(String),
}

/// The present work of the machine, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Nothing newer is there for it. `keeps_lock`: it keeps the fleet's lock because a release has failed here that is still offered.
    UpToDate {
        /// See there.
        keeps_lock: bool,
    },
    /// A release waits.
    Waits(Wait),
    /// It switches.
    Switches,
    /// The release has to be ready for this many seconds more.
    Proves(u64),
    /// It goes back.
    Returns(String),
}

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The record from now on.
    pub record: Record,
    /// The next action.
    pub act: Act,
    /// The present work of the machine.
    pub standing: Standing,
    /// The next step is due after this many seconds, if nothing happens before.
    pub again: u64,
    /// Images that failed and may be tried again.
    pub forgiven: Vec<Digest>,
}

impl Record {
    /// The record of a machine that begins to follow a channel. A lock that it may have from before is given back.
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

    /// Follows another channel, or this one by another key. The position is one in the lists of before, and so is a target, which nothing was begun
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
    fn settle_lock(&mut self, policy: &Policy<'_>) {
        if self.lock_at.is_some() && self.lock_at.as_ref() != policy.lock {
            self.leave_lock();
        }
        // Nobody knows where a lock is that has no place.
        self.has_lock &= policy.lock.is_some();
        self.keep_owed(policy);
    }

    /// Owes the config's lock no more: the config has come back to it before it was given back.
    fn keep_owed(&mut self, policy: &Policy<'_>) {
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

    /// Why a release is held, if it is.
    pub fn hold(&self, digest: Digest) -> Option<&Hold> {
        self.holds.iter().find(|hold| hold.digest == digest)
    }

    /// Whether a release that is newer than this version has failed here.
    fn has_failed_above(&self, version: &Version) -> bool {
        let mut holds = self.holds.iter();
        holds.any(|hold| hold.has_failed && hold.version > *version)
    }

    /// Whether the channel offers a release that failed here and is newer than the one that it has for this machine: the other machines would
    /// go to it.
    pub fn offers_failed(&self, choice: &Choice<'_>) -> bool {
        let goes_to = choice.release.map(|release| &release.version);
        let mut reasons = choice.reasons.iter();
        reasons.any(|(release, why)| {
            matches!(why, Why::Held(_))
                && self.hold(release.digest).is_some_and(|it| it.has_failed)
                && goes_to.is_none_or(|version| release.version > *version)
        })
    }

    /// Holds the running release, from which a person goes back: the machine would go to it again at once. If it is still to prove itself,
    /// what happens is noted when the machine is back.
    pub fn leave(&mut self, digest: Digest, version: Version, to: &str) {
        let goes_there = |target: &Target| target.release.digest == digest;
        if self.target().is_some_and(goes_there) {
            return;
        }
        self.hold_release(Hold {
            digest,
            version,
            why: format!("a person went back from it to {to}"),
            until: None,
            has_failed: false,
        });
    }

    /// Holds a release, in place of an older hold of it.
    pub fn hold_release(&mut self, hold: Hold) {
        self.holds.retain(|old| old.digest != hold.digest);
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

    fn failed(mut self, target: &Target, why: String, policy: &Policy<'_>, now: u64) -> Self {
        self.hold_release(Hold {
            digest: target.release.digest,
            version: target.release.version.clone(),
            why,
            until: policy.hold_for.map(|time| now.saturating_add(time)),
            has_failed: true,
        });
        self.stage = Stage::Idle;
        self
    }

    /// Drops holds whose time is over; returns the digests of those that had failed.
    fn forgive(&mut self, facts: &Facts<'_>) -> Vec<Digest> {
        if !facts.knows_time {
            return Vec::new();
        }
        let is_over = |hold: &Hold| hold.until.is_some_and(|until| until <= facts.now);
        let over = self
            .holds
            .iter()
            .filter(|hold| is_over(hold) && hold.has_failed);
        let forgiven = over.map(|hold| hold.digest).collect();
        self.holds.retain(|hold| !is_over(hold));
        forgiven
    }
}

impl Target {
    /// Cuts times that were noted by a clock that was ahead, once the clock is right.
    fn by_this_clock(mut self, facts: &Facts<'_>) -> Self {
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
    /// Counts a start of machined after the first one, unless it was asked for.
    fn note_start(&mut self, start: &str) {
        if self.start.as_deref() == Some(start) {
            return;
        }
        let is_unasked = self.start.is_some() && !self.expects_start;
        self.restarts += u32::from(is_unasked);
        self.start = Some(start.to_owned());
        self.expects_start = false;
    }
}

/// Decides the next step.
pub fn step(mut record: Record, facts: &Facts<'_>, policy: &Policy<'_>) -> Step {
    let forgiven = record.forgive(facts);
    record.keep_owed(policy);
    let step = match record.stage.clone() {
        Stage::Idle => choose(record, None, facts, policy),
        Stage::Target(target) => choose(record, Some(target), facts, policy),
        Stage::Switching(attempt) => switching(record, attempt, facts, policy),
        Stage::Proving(attempt) => proving(record, attempt, facts, policy),
        Stage::Returning(attempt, why) => returning(record, attempt, &why, facts, policy),
    };
    Step { forgiven, ..step }
}

fn done(record: Record, act: Act, standing: Standing, again: u64) -> Step {
    Step {
        record,
        act,
        standing,
        again: again.clamp(VIEW, LONGEST),
        forgiven: Vec::new(),
    }
}

/// Takes up the release that the channel has, or gives up the one that it has no more.
fn choose(
    mut record: Record,
    known: Option<Target>,
    facts: &Facts<'_>,
    policy: &Policy<'_>,
) -> Step {
    let running = facts.running.parse::<Version>().ok();
    let is_newer = |target: &Target| {
        running
            .as_ref()
            .is_some_and(|it| target.release.version > *it)
    };
    let target = match facts.chosen {
        // What the record has stays until a list says something else.
        Chosen::Unknown => known.filter(is_newer),
        Chosen::None { .. } => None,
        Chosen::Release { release, .. } => Some(match known {
            Some(known) if known.release.digest == release.digest => Target {
                release: release.clone(),
                ..known
            },
            _ => Target {
                release: release.clone(),
                seen: facts.now,
                approved: false,
                tries: 0,
                not_before: None,
            },
        }),
    };
    match target {
        Some(target) => {
            let target = target.by_this_clock(facts);
            record.stage = Stage::Target(target.clone());
            go_to(record, target, facts, policy)
        }
        None => {
            record.stage = Stage::Idle;
            idle(record, facts, policy)
        }
    }
}

/// A release was just held: what the channel has besides is for the next step, whose facts know of the hold.
fn held(record: Record, policy: &Policy<'_>) -> Step {
    let is_here = record.lock_at.is_none() || record.lock_at.as_ref() == policy.lock;
    let keeps_lock = record.has_lock && policy.lock.is_some() && is_here;
    done(record, Act::None, Standing::UpToDate { keeps_lock }, VIEW)
}

fn idle(mut record: Record, facts: &Facts<'_>, policy: &Policy<'_>) -> Step {
    record.settle_lock(policy);
    let has_failed = record.holds.iter().any(|hold| hold.has_failed);
    let keeps_lock = match facts.chosen {
        Chosen::Unknown => has_failed,
        Chosen::None { offers_failed } | Chosen::Release { offers_failed, .. } => offers_failed,
    };
    let keeps_lock = keeps_lock && record.has_lock;
    let standing = Standing::UpToDate { keeps_lock };
    if !record.has_lock || keeps_lock {
        return done(record, Act::None, standing, LONGEST);
    }
    // The record says that the machine has it until the server has taken it back.
    done(record, Act::Unlock, standing, LOCK_AGAIN)
}

/// Begins the switch to a target, or says what it waits for.
fn go_to(mut record: Record, target: Target, facts: &Facts<'_>, policy: &Policy<'_>) -> Step {
    record.settle_lock(policy);
    if let Fetched::Wrong(why) = &facts.fetched {
        let record = record.failed(&target, why.clone(), policy, facts.now);
        return held(record, policy);
    }
    let waits = |record, wait, act, again| done(record, act, Standing::Waits(wait), again);
    if let Some((wait, again)) = obstacle(&target, facts, policy) {
        // A lock that is not about to be used is for the other machines, unless they would go to what has failed here.
        let keeps_lock = wait == Wait::Busy || offers_failed(&record, &target, facts);
        let act = match record.has_lock && !keeps_lock {
            true => Act::Unlock,
            false => Act::None,
        };
        return waits(record, wait, act, again);
    }
    if !facts.list_is_fresh || facts.chosen == Chosen::Unknown {
        // Nobody knows for how long there is no list: the lock is for the other machines meanwhile.
        let may_have_it = record.has_lock && !matches!(facts.lock, LockAnswer::Refused(_));
        let (act, again) = match may_have_it && !offers_failed(&record, &target, facts) {
            true => (Act::Unlock, VIEW),
            false => (Act::Look, LOOK_AGAIN),
        };
        return waits(record, Wait::List, act, again);
    }
    if let Some(here) = policy.lock {
        // Kept before the lock is asked for: a machine that is killed now gives it back later.
        record.has_lock = true;
        record.lock_at = Some(here.clone());
        match &facts.lock {
            LockAnswer::Granted => {}
            LockAnswer::Unasked => {
                let wait = Wait::Lock("it is asked for".to_owned());
                return waits(record, wait, Act::Lock, LOCK_AGAIN);
            }
            LockAnswer::Refused(why) => {
                let wait = Wait::Lock(why.clone());
                return waits(record, wait, Act::Lock, LOCK_AGAIN);
            }
        }
    }
    record.stage = Stage::Switching(Attempt {
        target: Target {
            tries: target.tries + 1,
            not_before: None,
            ..target
        },
        from: facts.running.to_owned(),
        from_image: None,
        returns: 0,
        start: None,
        expects_start: false,
        restarts: 0,
    });
    done(record, Act::Switch, Standing::Switches, VIEW)
}

/// Whether the channel still offers a release that failed here and is newer than the target. Without a list nobody says whether it was
/// withdrawn, and a lock that is kept for too long costs less than a bad release on the next machine.
fn offers_failed(record: &Record, target: &Target, facts: &Facts<'_>) -> bool {
    match facts.chosen {
        Chosen::None { offers_failed } | Chosen::Release { offers_failed, .. } => offers_failed,
        Chosen::Unknown => record.has_failed_above(&target.release.version),
    }
}

/// Returns the first thing that a target waits for, and for how many seconds.
fn obstacle(target: &Target, facts: &Facts<'_>, policy: &Policy<'_>) -> Option<(Wait, u64)> {
    let now = facts.now;
    let needs_time = policy.delay > 0 || policy.window.is_some();
    if needs_time && !facts.knows_time {
        return Some((Wait::Clock, 10));
    }
    if let Some((until, why)) = &target.not_before
        && now < *until
    {
        return Some((Wait::Pause(*until, why.clone()), until - now));
    }
    let due = target.seen.saturating_add(policy.delay);
    if now < due {
        return Some((Wait::Delay(due), due - now));
    }
    if let Fetched::No(why) = &facts.fetched {
        return Some((Wait::Image(why.clone()), FETCHING));
    }
    if policy.needs_approval && !target.approved && !facts.is_signed {
        return Some((Wait::Approval, LONGEST));
    }
    if let Some(window) = policy.window {
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(now);
        match window.at(at) {
            Openness::Opens(after) => {
                return Some((Wait::Window(now + after.as_secs()), after.as_secs()));
            }
            Openness::Open(left) => {
                let open_since = window.length().saturating_sub(left).as_secs();
                if open_since < policy.delay {
                    let left = policy.delay - open_since;
                    return Some((Wait::Delay(now + left), left));
                }
            }
        }
    }
    facts.is_busy.then_some((Wait::Busy, 10))
}

/// Whether the machine runs a target's release.
fn runs(target: &Target, facts: &Facts<'_>) -> bool {
    target.release.version.to_string() == facts.running
        && facts
            .running_digest
            .is_none_or(|digest| digest == target.release.digest)
}

fn switching(mut record: Record, attempt: Attempt, facts: &Facts<'_>, policy: &Policy<'_>) -> Step {
    if runs(&attempt.target, facts) {
        record.stage = Stage::Proving(attempt.clone());
        return proving(record, attempt, facts, policy);
    }
    if let Some(why) = &facts.failure {
        let record = record.failed(&attempt.target, why.clone(), policy, facts.now);
        return held(record, policy);
    }
    if facts.is_busy {
        return done(record, Act::None, Standing::Switches, VIEW);
    }
    let tries = attempt.target.tries;
    if tries >= MOST_TRIES {
        let why = format!(
            "it was begun {tries} times, and each time the machine came up with {}",
            facts.running
        );
        let record = record.failed(&attempt.target, why, policy, facts.now);
        return held(record, policy);
    }
    record.stage = Stage::Target(attempt.target.clone());
    choose(record, Some(attempt.target), facts, policy)
}

fn proving(
    mut record: Record,
    mut attempt: Attempt,
    facts: &Facts<'_>,
    policy: &Policy<'_>,
) -> Step {
    if !runs(&attempt.target, facts) {
        let why = facts.failure.clone();
        let why = why.unwrap_or_else(|| format!("the machine went to {} after it", facts.running));
        let record = record.failed(&attempt.target, why, policy, facts.now);
        return held(record, policy);
    }
    attempt.note_start(&facts.start);
    record.stage = Stage::Proving(attempt.clone());
    // Both times begin anew with each start: without this count a release that restarts the machine now and then would prove itself for ever.
    if attempt.restarts > MOST_RESTARTS {
        let why = format!(
            "the machine has restarted {} times by itself while it had to be ready for {} s without a break",
            attempt.restarts, policy.healthy_for
        );
        record.stage = Stage::Returning(attempt.clone(), why.clone());
        return returning(record, attempt, &why, facts, policy);
    }
    let ready_for = facts.ready_for.unwrap_or(0);
    if facts.ready_for.is_some() && ready_for >= policy.healthy_for {
        record.stage = Stage::Idle;
        return idle(record, facts, policy);
    }
    if facts.watched_for > policy.healthy_for.saturating_add(GRACE) {
        let why = format!(
            "it was not ready for {} s without a break within {} s",
            policy.healthy_for, facts.watched_for
        );
        record.stage = Stage::Returning(attempt.clone(), why.clone());
        return returning(record, attempt, &why, facts, policy);
    }
    let left = policy.healthy_for.saturating_sub(ready_for);
    done(record, Act::None, Standing::Proves(left), VIEW)
}

fn returning(
    mut record: Record,
    attempt: Attempt,
    why: &str,
    facts: &Facts<'_>,
    policy: &Policy<'_>,
) -> Step {
    if !runs(&attempt.target, facts) {
        let record = record.failed(&attempt.target, why.to_owned(), policy, facts.now);
        return held(record, policy);
    }
    let standing = Standing::Returns(why.to_owned());
    if facts.is_busy {
        return done(record, Act::None, standing, VIEW);
    }
    if attempt.returns >= MOST_TRIES {
        let why = format!("{why}; and the machine cannot go back by itself");
        let record = record.failed(&attempt.target, why, policy, facts.now);
        return held(record, policy);
    }
    record.stage = Stage::Returning(
        Attempt {
            returns: attempt.returns + 1,
            ..attempt
        },
        why.to_owned(),
    );
    done(record, Act::GoBack, standing, LOCK_AGAIN)
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::Clock => f.write_str("the clock was never set"),
            Wait::Delay(_) => f.write_str("this machine's own delay is not over"),
            Wait::Pause(_, why) => write!(f, "it was refused, and is tried again later: {why}"),
            Wait::Image(why) => write!(f, "its image is not here: {why}"),
            Wait::Approval => f.write_str("nobody has approved it"),
            Wait::Window(_) => f.write_str("its window is closed"),
            Wait::Busy => f.write_str("another operation is under way"),
            Wait::List => f.write_str("the list is asked for once more"),
            Wait::Lock(why) => write!(f, "the fleet's lock: {why}"),
        }
    }
}

impl Standing {
    /// The state in one word, as resources and reports show it.
    pub fn word(&self) -> &'static str {
        match self {
            Standing::UpToDate { keeps_lock: false } => "current",
            Standing::UpToDate { keeps_lock: true } => "locked",
            Standing::Waits(wait) => match wait {
                Wait::Clock => "clock",
                Wait::Delay(_) => "delay",
                Wait::Pause(..) => "refused",
                Wait::Image(_) => "fetching",
                Wait::Approval => "approval",
                Wait::Window(_) => "window",
                Wait::Busy => "busy",
                Wait::List => "list",
                Wait::Lock(_) => "lock",
            },
            Standing::Switches => "switching",
            Standing::Proves(_) => "proving",
            Standing::Returns(_) => "returning",
        }
    }

    /// The reason in a sentence; empty if the word says all.
    pub fn reason(&self) -> String {
        match self {
            Standing::UpToDate { keeps_lock: false } | Standing::Switches => String::new(),
            Standing::UpToDate { keeps_lock: true } => {
                "a release has failed here, and the machine keeps the fleet's lock until the channel withdraws or replaces it".to_owned()
            }
            Standing::Waits(wait) => wait.to_string(),
            Standing::Proves(left) => format!("it has to be ready for {left} s more"),
            Standing::Returns(why) => why.clone(),
        }
    }

    /// The moment at which the wait ends, in seconds since 1970, if that is known.
    pub fn until(&self) -> Option<u64> {
        match self {
            Standing::Waits(Wait::Delay(at) | Wait::Pause(at, _) | Wait::Window(at)) => Some(*at),
            _ => None,
        }
    }
}
