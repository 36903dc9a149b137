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
//!   So it does while an older release waits here: the other machines would go to the failed one. When the hold is over, the same machine
//!   tries that once more, with the lock that it has.
//! - A machine that has lost its record, as one without a disk over a reboot, may have the lock from before, and nobody knows what for: it gives it
//!   back once it has been ready for as long as a release has to be. Whoever has no lock gives none back.
//! - A lock at a server or in a group that the config names no more is owed there ([`Record::owed`]): it is given back beside all of this.
//! - A record alone starts nothing: a list that was read a short time ago has to offer the release.

use super::facts::{Chosen, Facts, Fetched, LockAnswer, Policy};
use super::stage::{Attempt, Record, Stage, Target};
use super::standing::{Act, Standing, Wait};
use crate::values::{Digest, Openness, Version};

/// How often a release is begun, if the machine comes up with the previous version and nobody knows why.
const MOST_TRIES: u32 = 3;
/// How often a release that proves itself may restart the machine, or machined, when nobody has asked for that.
const MOST_RESTARTS: u32 = 2;
/// Time that a version has to become ready, beside the time that it has to be ready.
const GRACE: u64 = 600;
/// Pauses, in seconds: between two views of a version that proves itself or of an operation that is under way, of an image that comes, between
/// two requests for the fleet's lock, and the longest one.
const VIEW: u64 = 1;
const FETCHING: u64 = 5;
const LOCK_AGAIN: u64 = 30;
/// Between two looks at a list that cannot be read.
const LOOK_AGAIN: u64 = 60;
const LONGEST: u64 = 300;

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
    if let Some(left) = unproved_for(&record, facts, policy) {
        return done(record, Act::None, standing, left);
    }
    // The record says that the machine has it until the server has taken it back.
    done(record, Act::Unlock, standing, LOCK_AGAIN)
}

/// For how many seconds the machine has to be ready yet before it gives back a lock of which no record says where it was taken, or whether at all; none
/// if it may do so now. It may have been taken for the version that runs.
fn unproved_for(record: &Record, facts: &Facts<'_>, policy: &Policy<'_>) -> Option<u64> {
    if record.lock_at.is_some() {
        return None;
    }
    let ready_for = facts.ready_for.filter(|time| *time >= policy.healthy_for);
    let left = || {
        policy
            .healthy_for
            .saturating_sub(facts.ready_for.unwrap_or(0))
    };
    ready_for.is_none().then(left)
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
        let keeps_lock = wait == Wait::Busy
            || offers_failed(&record, &target, facts)
            || unproved_for(&record, facts, policy).is_some();
        let act = match record.has_lock && !keeps_lock {
            true => Act::Unlock,
            false => Act::None,
        };
        return waits(record, wait, act, again);
    }
    if !facts.list_is_fresh || facts.chosen == Chosen::Unknown {
        // Nobody knows for how long there is no list: the lock is for the other machines meanwhile.
        let may_have_it = record.has_lock
            && unproved_for(&record, facts, policy).is_none()
            && !matches!(facts.lock, LockAnswer::Refused(_));
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
        left_by_a_person: false,
    });
    done(record, Act::Switch, Standing::Switches, VIEW)
}

/// Whether the channel still offers a release that failed here and is newer than the target, or is the target itself, whose hold is over. Without
/// a list nobody says whether it was withdrawn, and a lock that is kept for too long costs less than a bad release on the next machine.
fn offers_failed(record: &Record, target: &Target, facts: &Facts<'_>) -> bool {
    match facts.chosen {
        Chosen::None { offers_failed } | Chosen::Release { offers_failed, .. } => offers_failed,
        Chosen::Unknown => record.has_failed_from(&target.release),
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
    if let Some(why) = attempt.why_it_ended(facts) {
        let record = record.lost(&attempt, why, policy, facts.now);
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
        let why = attempt.why_it_ended(facts);
        let why = why.unwrap_or_else(|| format!("the machine went to {} after it", facts.running));
        let record = record.lost(&attempt, why, policy, facts.now);
        return held(record, policy);
    }
    attempt.note_start(&facts.start);
    record.stage = Stage::Proving(attempt.clone());
    if attempt.left_by_a_person {
        // Proof or failure within the seconds before the machine starts again would lose that a person has decided.
        let standing = Standing::Returns("a person goes back from it".to_owned());
        return done(record, Act::None, standing, VIEW);
    }
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
        record.proven(&attempt.target);
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
