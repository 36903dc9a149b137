//! The trial of a machine config (`apply-config --mode try`): the config is in force for a time, and is never kept.
//!
//! ```text
//!                 begin                       expire: the time is over
//!   Settled ────────────────────► Tried ─────────────────────────────────► Settled, with the config before the trial
//!      ▲                          │ │ ▲
//!      │ confirm: a config is     │ └─┘ begin: another config is tried, and the time counts anew; the config to
//!      │ applied to stay          │     return to is still the one before the first trial
//!      └──────────────────────────┘
//! ```
//!
//! - A config that is only kept for the next boot (staged, or applied by a reboot) does not end a trial.
//! - STATE and the hand-over hold the settled config, never one on trial. A machined that restarts, the next generation and a reboot find
//!   the settled config, and begin as Settled: each of them ends the trial as its timer would.
//! - The same holds for the images of its containers (`containers/in_force.rs`), and for the condition that the settled config is a stale one.
//! - A timer whose trial was confirmed or replaced expires without effect, even if it could not be stopped any more.

/// Identifies a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrialNumber(u64);

/// The trial of a config, if there is one. `C`: a config; `T`: the handle of a timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ConfigTrial<C, T> {
    /// Number of trials that have begun.
    begun: u64,
    tried: Option<Tried<C, T>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Tried<C, T> {
    number: TrialNumber,
    /// The config to return to.
    settled: C,
    /// The timer that expires the trial.
    timer: T,
}

impl<C, T> Default for ConfigTrial<C, T> {
    fn default() -> Self {
        ConfigTrial {
            begun: 0,
            tried: None,
        }
    }
}

impl<C: Clone, T> ConfigTrial<C, T> {
    /// Returns the config to return to while another one is on trial.
    pub(super) fn settled(&self) -> Option<C> {
        self.tried.as_ref().map(|tried| tried.settled.clone())
    }

    /// Begins a trial of the config that is applied next; `in_force` is the present one. Returns the timer of the trial that this one
    /// replaces, to be stopped.
    pub(super) fn begin(
        &mut self,
        in_force: C,
        start_timer: impl FnOnce(TrialNumber) -> T,
    ) -> Option<T> {
        let number = TrialNumber(self.begun);
        self.begun += 1;
        let settled = self.settled().unwrap_or(in_force);
        let replaced = self.tried.replace(Tried {
            number,
            settled,
            timer: start_timer(number),
        });
        replaced.map(|replaced| replaced.timer)
    }

    /// Confirms the config in force. Returns the timer of its trial, to be stopped.
    pub(super) fn confirm(&mut self) -> Option<T> {
        self.tried.take().map(|tried| tried.timer)
    }

    /// Ends the trial whose time is over. Returns the config to return to; None if the trial was confirmed or replaced meanwhile.
    pub(super) fn expire(&mut self, number: TrialNumber) -> Option<C> {
        let expired = self.tried.take_if(|tried| tried.number == number);
        expired.map(|tried| tried.settled)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, Clone, Copy)]
    enum Event {
        /// `try` with this config in force.
        Begin(&'static str),
        /// `auto` or `no-reboot`.
        Confirm,
        /// The time of the trial of this number is over.
        Expire(u64),
    }

    /// The result of an event: a timer to stop, or a config to return to.
    #[derive(Debug, PartialEq, Eq)]
    enum Given {
        Nothing,
        Stop(u64),
        Return(&'static str),
    }

    type Trial = ConfigTrial<&'static str, u64>;

    fn happens(trial: &mut Trial, event: Event) -> Given {
        let stopped = match event {
            Event::Begin(in_force) => trial.begin(in_force, |number| number.0),
            Event::Confirm => trial.confirm(),
            Event::Expire(number) => {
                let settled = trial.expire(TrialNumber(number));
                return settled.map_or(Given::Nothing, Given::Return);
            }
        };
        stopped.map_or(Given::Nothing, Given::Stop)
    }

    /// The whole machine as a table: the events so far, the next event → its result, and the config to return to from then on, which is
    /// also the one that a restart of machined, the next generation and a reboot find (none: the one in force).
    #[test]
    fn every_transition() {
        use Event::{Begin, Confirm, Expire};
        use Given::{Nothing, Return, Stop};
        const SETTLED: &[Event] = &[];
        const TRIED: &[Event] = &[Begin("a")];
        const TRIED_AGAIN: &[Event] = &[Begin("a"), Begin("b")];
        const CONFIRMED: &[Event] = &[Begin("a"), Confirm];
        const EXPIRED: &[Event] = &[Begin("a"), Expire(0)];
        #[rustfmt::skip]
        let table = [
            (SETTLED,     Begin("c"), Nothing,     Some("c")),
            (SETTLED,     Confirm,    Nothing,     None),
            (SETTLED,     Expire(0),  Nothing,     None),
            (SETTLED,     Expire(1),  Nothing,     None),
            (TRIED,       Begin("b"), Stop(0),     Some("a")),
            (TRIED,       Confirm,    Stop(0),     None),
            (TRIED,       Expire(0),  Return("a"), None),
            (TRIED,       Expire(1),  Nothing,     Some("a")),
            (TRIED_AGAIN, Begin("c"), Stop(1),     Some("a")),
            (TRIED_AGAIN, Confirm,    Stop(1),     None),
            // The timer of the first trial had fired already.
            (TRIED_AGAIN, Expire(0),  Nothing,     Some("a")),
            (TRIED_AGAIN, Expire(1),  Return("a"), None),
            // A later trial returns to the config that was confirmed, or returned to.
            (CONFIRMED,   Begin("b"), Nothing,     Some("b")),
            (CONFIRMED,   Confirm,    Nothing,     None),
            (CONFIRMED,   Expire(0),  Nothing,     None),
            (CONFIRMED,   Expire(1),  Nothing,     None),
            (EXPIRED,     Begin("a"), Nothing,     Some("a")),
            (EXPIRED,     Confirm,    Nothing,     None),
            (EXPIRED,     Expire(0),  Nothing,     None),
            (EXPIRED,     Expire(1),  Nothing,     None),
        ];
        for (before, event, given, settled) in table {
            let mut trial = Trial::default();
            for event in before {
                happens(&mut trial, *event);
            }
            let cell = format!("{before:?}, then {event:?}");
            assert_eq!(happens(&mut trial, event), given, "{cell}");
            assert_eq!(trial.settled(), settled, "{cell}");
        }
    }

    #[test]
    fn a_trial_after_another_has_a_timer_of_its_own() {
        let mut trial = Trial::default();
        happens(&mut trial, Event::Begin("a"));
        happens(&mut trial, Event::Confirm);
        happens(&mut trial, Event::Begin("b"));
        assert_eq!(happens(&mut trial, Event::Expire(0)), Given::Nothing);
        assert_eq!(happens(&mut trial, Event::Expire(1)), Given::Return("b"));
    }
}
