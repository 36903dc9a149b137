//! The decision about the next step. A state machine without side effects: the supervisor reports events and carries out the decisions.
//!
//! ```text
//!   kernel ──► New ──healthy──► Settled ──next──► Trial ──healthy──► Settled
//!              │ ▲                │                │
//!              │ │                │ fails          │ fails
//!              │ └────────────────┼────────────────┘
//!              │ fails            ▼
//!              └──────────────► Fresh ──healthy──► Settled
//!                                 │ fails
//!                                 ▼
//!                               reboot
//! ```
//!
//! - *fails*: machined died and the budget of restarts is used up, or it missed its deadline, or it gave itself up.
//!   A machined that dies with restarts left is started again in the same generation, in every state.
//! - *Trial* goes back at once to the previous generation, which is held until the trial is healthy. Every other state
//!   gets the same image in a fresh generation, and when that fails too, or too often, a reboot.
//! - A generation that cannot be started has no machined that could fail: a trial goes back, a settled one whose
//!   machined cannot be started again gets a fresh generation, every other one reboots.
//! - The remains of a dead generation are cleaned by a reboot, in every state.

use std::time::{Duration, Instant};

/// The state of the running generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Not yet healthy: the first since the kernel started, or the previous one again after a failed trial.
    #[default]
    New,
    /// Started by `next`, not yet healthy; the previous one is held.
    Trial,
    /// The same image again in a new generation, after a failure; not yet healthy.
    Fresh,
    /// Healthy, no other image is held.
    Settled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// machined reported that the generation works.
    Healthy,
    /// machined asked for a next generation, and its image is verified and mounted.
    NextReady,
    /// machined ended, for any reason.
    Died,
    /// machined did not report healthy in time.
    Late,
    /// machined reported that the generation does not work.
    GaveUp,
    /// The generation, or machined in it, cannot be started.
    Unstartable,
    /// The ended generation left something behind.
    Unclean,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Drop the previous image, if one is held, and the deadline.
    Commit,
    /// End this generation and start the next one.
    Swap,
    /// Answer with an error; nothing changes.
    Refuse,
    /// Start machined again in this generation.
    Restart,
    /// End this generation and start the same image again.
    StartFresh,
    /// End this generation and start the previous image again.
    GoBack,
    /// Restart the machine.
    Reboot,
}

/// Limit on restarts of machined: three. A crash that a restart cures is cured by then, and one that it does not cure is not hidden.
const RESTARTS: (usize, Duration) = (3, Duration::from_secs(60));

/// Limit on fresh generations: a machine that needs two in ten minutes has a problem that only a reboot may cure.
const FRESH_STARTS: (usize, Duration) = (1, Duration::from_secs(600));

/// Spends one of `many` starts per `long`; false if none is left.
fn take(spent: &mut Vec<Instant>, (many, long): (usize, Duration), now: Instant) -> bool {
    spent.retain(|then| now.saturating_duration_since(*then) < long);
    let left = spent.len() < many;
    spent.extend(left.then_some(now));
    left
}

/// The state machine. It starts with the kernel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ladder {
    standing: Standing,
    restarts: Vec<Instant>,
    fresh_starts: Vec<Instant>,
}

impl Ladder {
    pub(crate) fn decide(&mut self, event: Event, now: Instant) -> Verdict {
        use Event::{Died, GaveUp, Healthy, Late, NextReady, Unclean, Unstartable};
        use Standing::{Fresh, New, Settled, Trial};
        let (next, verdict) = match (self.standing, event) {
            (_, Healthy) => (Settled, Verdict::Commit),
            (Settled, NextReady) => (Trial, Verdict::Swap),
            (other, NextReady) => (other, Verdict::Refuse),
            (other, Died) if take(&mut self.restarts, RESTARTS, now) => (other, Verdict::Restart),
            (Trial, Died | Late | GaveUp | Unstartable) => (New, Verdict::GoBack),
            (New | Settled, Died | Late | GaveUp) | (Settled, Unstartable)
                if take(&mut self.fresh_starts, FRESH_STARTS, now) =>
            {
                (Fresh, Verdict::StartFresh)
            }
            (other @ (New | Fresh | Settled), Died | Late | GaveUp | Unstartable)
            | (other, Unclean) => (other, Verdict::Reboot),
        };
        // A new generation has restarts of its own.
        if self.standing != next && verdict != Verdict::Commit {
            self.restarts.clear();
        }
        self.standing = next;
        verdict
    }
}

#[cfg(test)]
mod tests;
