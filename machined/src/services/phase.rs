//! The phase of a service. A state machine without side effects: the service's actor (`service.rs`) reports an event, and enters the phase
//! that follows.
//!
//! ```text
//!  Initialized ─┐
//!     Finished ─┼─ waits ─► Waiting ─┐
//!       Failed ─┤ ▲            │     ├─ prepares ─► Preparing ─ starts ─► Starting ─ runs ─► Running ─ stops ─► Stopping
//!               │ └── waits ───┘     │                  │                   │                  │                   │
//!               └─ nothing to wait ──┘                  └──────── fails ────┴───── fails ──────┘               ends │
//!                  for                                                        │                                    ▼
//!                                                                             ▼                                 Finished
//!  Initialized ─ runs ─► Running     adopted from an earlier machined       Failed
//!      Running ─ runs ─► Running     taken back after a change of generations that did not come
//!  Initialized, Finished, Failed, Waiting, Preparing ─ stops ─► Finished     nothing of it runs that would have to end
//! ```
//!
//! - *waits* happens once for each dependency; a service without one goes on to prepare.
//! - *fails* leads back to the beginning after a pause; a stop ends the pause.
//! - A start cannot be stopped halfway: in Starting, a stop takes effect in Running.

use serde::{Deserialize, Serialize};

/// A phase of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Defined, but not started yet.
    Initialized,
    /// It waits for its dependencies.
    Waiting,
    /// Its image is being pulled, its filesystem made.
    Preparing,
    /// Its process is being started.
    Starting,
    /// Its process runs.
    Running,
    /// It is being stopped.
    Stopping,
    /// It ended because it was stopped.
    Finished,
    /// It could not start or it ended by itself; it is started again after a pause.
    Failed,
}

/// An event in the life of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// It waits for a dependency.
    Waits,
    /// Its workload is being prepared.
    Prepares,
    /// Its process is being started.
    Starts,
    /// Its process runs.
    Runs,
    /// It is being stopped.
    Stops,
    /// Its process has ended after the stop.
    Ends,
    /// It could not be prepared or started, or it ended by itself.
    Fails,
}

impl Phase {
    /// Returns the phase that follows; None if the event cannot happen in this phase.
    pub(super) fn after(self, event: Event) -> Option<Phase> {
        use Phase::{
            Failed, Finished, Initialized, Preparing, Running, Starting, Stopping, Waiting,
        };
        Some(match (self, event) {
            (Initialized | Finished | Failed | Waiting, Event::Waits) => Waiting,
            (Initialized | Finished | Failed | Waiting, Event::Prepares) => Preparing,
            (Preparing, Event::Starts) => Starting,
            (Starting | Initialized | Running, Event::Runs) => Running,
            (Running, Event::Stops) => Stopping,
            (Initialized | Finished | Failed | Waiting | Preparing, Event::Stops)
            | (Stopping, Event::Ends) => Finished,
            (Preparing | Starting | Running, Event::Fails) => Failed,
            _ => return None,
        })
    }

    /// Whether no part of the service runs or is about to.
    pub fn is_at_rest(self) -> bool {
        matches!(self, Phase::Initialized | Phase::Finished)
    }

    /// The state's name on the wire (`ServiceInfo.state`).
    pub fn name(self) -> &'static str {
        match self {
            Phase::Initialized => "Initialized",
            Phase::Waiting => "Waiting",
            Phase::Preparing => "Preparing",
            Phase::Starting => "Starting",
            Phase::Running => "Running",
            Phase::Stopping => "Stopping",
            Phase::Finished => "Finished",
            Phase::Failed => "Failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole machine as a table: phase → the phase after each event; none if the event cannot happen.
    #[test]
    fn every_transition() {
        use Event::{Ends, Fails, Prepares, Runs, Starts, Stops, Waits};
        use Phase::{
            Failed, Finished, Initialized, Preparing, Running, Starting, Stopping, Waiting,
        };
        const NO: Option<Phase> = None;
        fn to(phase: Phase) -> Option<Phase> {
            Some(phase)
        }
        #[rustfmt::skip]
        let table = [
            // Phase       waits        prepares       starts        runs         stops         ends          fails
            (Initialized, [to(Waiting), to(Preparing), NO,           to(Running), to(Finished), NO,           NO]),
            (Waiting,     [to(Waiting), to(Preparing), NO,           NO,          to(Finished), NO,           NO]),
            (Preparing,   [NO,          NO,            to(Starting), NO,          to(Finished), NO,           to(Failed)]),
            (Starting,    [NO,          NO,            NO,           to(Running), NO,           NO,           to(Failed)]),
            (Running,     [NO,          NO,            NO,           to(Running), to(Stopping), NO,           to(Failed)]),
            (Stopping,    [NO,          NO,            NO,           NO,          NO,           to(Finished), NO]),
            (Finished,    [to(Waiting), to(Preparing), NO,           NO,          to(Finished), NO,           NO]),
            (Failed,      [to(Waiting), to(Preparing), NO,           NO,          to(Finished), NO,           NO]),
        ];
        let events = [Waits, Prepares, Starts, Runs, Stops, Ends, Fails];
        for (phase, expected) in table {
            assert_eq!(
                events.map(|event| phase.after(event)),
                expected,
                "{phase:?}"
            );
        }
        let phases = table.map(|(phase, _)| phase);
        let all = [
            Initialized,
            Waiting,
            Preparing,
            Starting,
            Running,
            Stopping,
            Finished,
            Failed,
        ];
        assert_eq!(phases, all);
    }
}
