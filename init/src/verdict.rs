//! What happens next. A state machine without side effects: the supervisor tells it what happened and carries out
//! what it decides.
//!
//! ```text
//!   kernel ──► First ──healthy──► Settled ──next──► Trial ──healthy──► Settled
//!                │                   │                │
//!                │ fails             │ fails          │ fails
//!                ▼                   ▼                ▼
//!              Fresh ◄────────────────              Back ──healthy──► Settled
//!                │  └─healthy──► Settled              │
//!                │                                    │ fails
//!                ▼                                    ▼
//!              reboot                               Fresh
//! ```
//!
//! - *fails*: machined died and the budget of restarts is used up, or it missed its deadline, or it gave itself up.
//!   A machined that dies with restarts left is started again in the same generation, in every state.
//! - *Trial* goes back at once to the previous generation, which is held until the trial is healthy. Everybody else
//!   gets the same image in a fresh generation, and when that fails too, or too often, a reboot.
//! - A generation that cannot be started has no machined that could fail: a trial goes back, a settled one whose
//!   machined cannot be started again gets a fresh generation, everybody else reboots.
//! - What a dead generation leaves behind is cleaned by a reboot, in every state.

use std::time::Duration;

/// What the running generation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The first since the kernel started, not yet healthy.
    First,
    /// Started by `next`, not yet healthy; the previous one is held.
    Trial,
    /// The previous one again, because the trial failed; not yet healthy.
    Back,
    /// The same image again in a new generation, because it failed; not yet healthy.
    Fresh,
    /// Healthy, nothing else is held.
    Settled,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// machined says that the generation works.
    Healthy,
    /// machined asked for a next generation, and its image is verified and mounted.
    NextReady,
    /// machined ended, for whatever reason.
    Died,
    /// machined did not report healthy in time.
    Late,
    /// machined says that the generation does not work.
    GaveUp,
    /// The generation, or machined in it, cannot be started.
    Unstartable,
    /// The ended generation left something behind.
    Unclean,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Let the previous image go, if one is held, and drop the deadline.
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

/// So many times within so long.
#[derive(Clone, Debug)]
struct Budget<const N: usize> {
    within: Duration,
    spent: [Option<Duration>; N],
}

impl<const N: usize> Budget<N> {
    const fn new(within: Duration) -> Self {
        let spent = [None; N];
        Self { within, spent }
    }

    /// Takes one, if one is left at this time.
    fn take(&mut self, now: Duration) -> bool {
        let within = self.within;
        let free = |spent: &&mut Option<Duration>| {
            spent.is_none_or(|then| now.saturating_sub(then) >= within)
        };
        let slot = self.spent.iter_mut().find(free);
        slot.map(|slot| *slot = Some(now)).is_some()
    }
}

/// Three quick tries: a crash that a restart cures is cured by then, and one that it does not cure is not hidden.
const RESTARTS: Budget<3> = Budget::new(Duration::from_secs(60));

/// A machine that needs two fresh generations in ten minutes has something that only a reboot may cure.
const FRESH_STARTS: Budget<1> = Budget::new(Duration::from_secs(600));

/// The state machine.
#[derive(Clone, Debug)]
pub(crate) struct Ladder {
    standing: Standing,
    restarts: Budget<3>,
    fresh_starts: Budget<1>,
}

impl Ladder {
    /// The state when the kernel has started.
    pub(crate) const fn new() -> Self {
        Self {
            standing: Standing::First,
            restarts: RESTARTS,
            fresh_starts: FRESH_STARTS,
        }
    }

    /// Decides. `now` is the time since any fixed point.
    pub(crate) fn decide(&mut self, event: Event, now: Duration) -> Verdict {
        use Event::{Died, GaveUp, Healthy, Late, NextReady, Unclean, Unstartable};
        use Standing::{Back, First, Fresh, Settled, Trial};

        let (next, verdict) = match (self.standing, event) {
            (_, Healthy) => (Settled, Verdict::Commit),
            (Settled, NextReady) => (Trial, Verdict::Swap),
            (other, NextReady) => (other, Verdict::Refuse),
            (other, Died) if self.restarts.take(now) => (other, Verdict::Restart),
            (Trial, Died | Late | GaveUp | Unstartable) => (Back, Verdict::GoBack),
            (First | Back | Settled, Died | Late | GaveUp) | (Settled, Unstartable)
                if self.fresh_starts.take(now) =>
            {
                (Fresh, Verdict::StartFresh)
            }
            (other @ (First | Back | Fresh | Settled), Died | Late | GaveUp | Unstartable) => {
                (other, Verdict::Reboot)
            }
            (other, Unclean) => (other, Verdict::Reboot),
        };
        if matches!(
            verdict,
            Verdict::Swap | Verdict::GoBack | Verdict::StartFresh
        ) {
            self.restarts = RESTARTS;
        }
        self.standing = next;
        verdict
    }
}

#[cfg(test)]
mod tests;
