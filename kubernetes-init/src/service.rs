//! The life of one service: a state machine without side effects.
//!
//! ```text
//!   new ──► Waiting ──its turn──► Preparing ──all done──► Starting ──ready──► Running
//!            ▲   ▲                    │                      │                  │
//!            │   │                    └──fails, is late──────┴──ends, is late───┤
//!            │   └─its definition has changed──────┐                            ▼
//!            │                                     └─────────────────────── Ending
//!            └──pause over── Pausing ◄──Restart= says so──────────────────── │ │ │
//!                            Ended   ◄──otherwise──────────────────────────────┘ │
//!                            gone    ◄──not planned any more─────────────────────┘
//! ```
//!
//! - *ready*: at once, or when the service says so (`Type=notify`).
//! - *Ending*: the processes that `KillMode=` names are told to end, and killed when that takes too long.
//! - A command before the start is late, or a service that is to say that it is ready, after [`STARTING`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use instar_base::back_off::BackOff;
use instar_extension::{KillMode, Restart, ServiceKind, ServiceUnit};
use instar_kubernetes_plan::State as Shown;

/// Limit on the commands before a start and on getting ready, together: systemd's default.
const STARTING: Duration = Duration::from_secs(90);
/// The time between SIGTERM and SIGKILL, while the container lives on.
const ENDING: Duration = Duration::from_secs(15);

/// A service that ended sooner than this after its start does not work: its next pause is twice as long.
const STEADY: Duration = Duration::from_secs(60);
/// Such pauses. A unit's own pause is never shortened.
const PAUSES: BackOff = BackOff {
    first: Duration::from_millis(100),
    longest: Duration::from_secs(10),
};

/// A service to run. It starts anew when any of this changes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Service {
    /// `kubelet`
    pub(crate) name: String,
    /// The extension that it is of.
    pub(crate) extension: String,
    /// The path of the extension's tree.
    pub(crate) tree: String,
    /// Its unit.
    pub(crate) unit: ServiceUnit,
    /// Variables over those of its unit.
    pub(crate) environment: BTreeMap<String, String>,
    /// How often it was asked to restart.
    pub(crate) restarts: u64,
}

/// An action that a service's life asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Run this command of those before the start.
    Prepare(String, usize),
    /// Start the service itself.
    Start(String),
    /// Have this service tell kubelet that everything ends.
    AnnounceShutdown(String),
    /// Tell the process that was started to end.
    TerminateMain(String),
    /// Tell all processes of the service to end.
    TerminateAll(String),
    /// Kill the process that was started.
    KillMain(String),
    /// Kill all processes of the service.
    KillAll(String),
    /// Forget it: it is not planned any more.
    Forget(String),
    /// All services have ended: end everything else.
    Finish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Preparing { command: usize, until: Instant },
    Starting { until: Instant },
    Running,
    Ending(Ending),
    Pausing { until: Instant },
    Ended,
}

/// The end of a service that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ending {
    /// Whether the process that was started lives.
    main: bool,
    /// The time of SIGKILL; `None` after it.
    kill: Option<Instant>,
    then: Then,
}

/// The step after the end of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// It starts again after its pause.
    Pause,
    /// It starts again when it is its turn.
    StartAgain,
    /// Nothing.
    Rest,
    /// It is forgotten.
    Forget,
}

/// A service, and how far it is.
#[derive(Debug, Clone)]
pub(crate) struct Life {
    service: Service,
    state: State,
    /// Its definition after the end that is under way.
    next: Option<Service>,
    was_tried: bool,
    starts: u64,
    started: Option<Instant>,
    /// The number of starts, one after the other, that did not last.
    early_ends: u32,
}

impl Life {
    pub(crate) fn new(service: Service) -> Self {
        Life {
            service,
            state: State::Waiting,
            next: None,
            was_tried: false,
            starts: 0,
            started: None,
            early_ends: 0,
        }
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    /// The number of its starts.
    pub(crate) fn starts(&self) -> u64 {
        self.starts
    }

    /// Whether it has run, or has failed to start once: others need not wait for it.
    pub(crate) fn was_tried(&self) -> bool {
        self.was_tried
    }

    /// Whether it rests for good.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Ended
    }

    /// Whether its process has ended, and only others of its processes may be left.
    pub(crate) fn leaves_others(&self) -> bool {
        matches!(self.state, State::Ending(Ending { main: false, .. }))
    }

    /// Whether a command before its start runs.
    pub(crate) fn is_preparing(&self) -> bool {
        matches!(self.state, State::Preparing { .. })
    }

    /// Its state as machined is told.
    pub(crate) fn shown(&self) -> Shown {
        match self.state {
            State::Waiting => Shown::Waiting,
            State::Preparing { .. } | State::Starting { .. } => Shown::Starting,
            State::Running => Shown::Running,
            State::Ending(_) => Shown::Stopping,
            State::Pausing { .. } => Shown::Pausing,
            State::Ended => Shown::Ended,
        }
    }

    /// The time at which something is to happen without an event.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Preparing { until, .. }
            | State::Starting { until }
            | State::Pausing { until } => Some(until),
            State::Ending(ending) => ending.kill,
            State::Waiting | State::Running | State::Ended => None,
        }
    }

    /// Its definition is this from now on.
    pub(crate) fn define(&mut self, service: Service, now: Instant) -> Option<Action> {
        let newest = self.next.as_ref().unwrap_or(&self.service);
        let is_new = *newest != service;
        match &mut self.state {
            State::Ending(ending) if is_new || ending.then == Then::Forget => {
                ending.then = Then::StartAgain;
                self.next = Some(service);
                None
            }
            State::Ending(_) => None,
            _ if is_new => {
                self.next = Some(service);
                self.end(Then::StartAgain, now)
            }
            _ => None,
        }
    }

    /// Starts it if it waits for its turn, or if its pause is over.
    pub(crate) fn begin(&mut self, is_its_turn: bool, now: Instant) -> Option<Action> {
        let is_due = match self.state {
            State::Waiting => is_its_turn,
            State::Pausing { until } => until <= now,
            _ => false,
        };
        if !is_due {
            return None;
        }
        self.starts += 1;
        self.started = Some(now);
        Some(self.run(0, now + STARTING))
    }

    /// Runs this command before the start, or the service if there is no more of them.
    fn run(&mut self, command: usize, until: Instant) -> Action {
        let name = self.service.name.clone();
        if command < self.service.unit.start_pre.len() {
            self.state = State::Preparing { command, until };
            return Action::Prepare(name, command);
        }
        self.state = State::Starting { until };
        if self.service.unit.kind != ServiceKind::Notify {
            self.ready();
        }
        Action::Start(name)
    }

    /// It is ready.
    pub(crate) fn ready(&mut self) {
        if let State::Starting { .. } = self.state {
            self.state = State::Running;
            self.was_tried = true;
        }
    }

    /// The process that an action started has ended, or could not be started.
    pub(crate) fn process_ended(&mut self, success: bool, now: Instant) -> Option<Action> {
        match self.state {
            State::Preparing { command, until } => {
                let may_fail = self.service.unit.start_pre.get(command);
                let may_fail = may_fail.is_some_and(|command| command.may_fail);
                match success || may_fail {
                    true => Some(self.run(command + 1, until)),
                    false => self.end_others(self.after(false), now),
                }
            }
            State::Starting { .. } | State::Running => self.end_others(self.after(success), now),
            State::Ending(ending) => self.end_goes_on(ending, now),
            State::Waiting | State::Pausing { .. } | State::Ended => None,
        }
    }

    fn end_goes_on(&mut self, ending: Ending, now: Instant) -> Option<Action> {
        match self.service.unit.kill_mode {
            KillMode::Process => self.settle(ending.then, now),
            KillMode::Mixed => {
                self.state = State::Ending(Ending {
                    main: false,
                    kill: None,
                    ..ending
                });
                Some(Action::KillAll(self.service.name.clone()))
            }
            KillMode::ControlGroup => {
                self.state = State::Ending(Ending {
                    main: false,
                    ..ending
                });
                None
            }
        }
    }

    /// The step after an end by itself (`Restart=`).
    fn after(&self, success: bool) -> Then {
        match self.service.unit.restart {
            Restart::Always => Then::Pause,
            Restart::OnFailure if !success => Then::Pause,
            Restart::OnFailure | Restart::No => Then::Rest,
        }
    }

    /// Ends those of its processes that are left after the one that was started.
    fn end_others(&mut self, then: Then, now: Instant) -> Option<Action> {
        self.was_tried = true;
        let name = self.service.name.clone();
        let (kill, action) = match self.service.unit.kill_mode {
            KillMode::Process => return self.settle(then, now),
            KillMode::Mixed => (None, Action::KillAll(name)),
            KillMode::ControlGroup => (Some(now + ENDING), Action::TerminateAll(name)),
        };
        self.state = State::Ending(Ending {
            main: false,
            kill,
            then,
        });
        Some(action)
    }

    /// Ends it.
    pub(crate) fn end(&mut self, then: Then, now: Instant) -> Option<Action> {
        match &mut self.state {
            State::Waiting | State::Pausing { .. } | State::Ended => self.settle(then, now),
            State::Ending(ending) => {
                ending.then = then;
                None
            }
            State::Preparing { .. } | State::Starting { .. } | State::Running => {
                self.state = State::Ending(Ending {
                    main: true,
                    kill: Some(now + ENDING),
                    then,
                });
                let name = self.service.name.clone();
                Some(match self.service.unit.kill_mode {
                    KillMode::ControlGroup => Action::TerminateAll(name),
                    KillMode::Process | KillMode::Mixed => Action::TerminateMain(name),
                })
            }
        }
    }

    /// No process of it is left.
    pub(crate) fn is_empty(&mut self, now: Instant) -> Option<Action> {
        match self.state {
            State::Ending(ending) if !ending.main => self.settle(ending.then, now),
            _ => None,
        }
    }

    /// Time has passed.
    pub(crate) fn late(&mut self, now: Instant) -> Option<Action> {
        match &mut self.state {
            State::Preparing { until, .. } | State::Starting { until } if *until <= now => {
                self.was_tried = true;
                self.end(self.after(false), now)
            }
            State::Ending(ending) if ending.kill.is_some_and(|kill| kill <= now) => {
                ending.kill = None;
                let name = self.service.name.clone();
                Some(match self.service.unit.kill_mode {
                    KillMode::Process => Action::KillMain(name),
                    KillMode::ControlGroup | KillMode::Mixed => Action::KillAll(name),
                })
            }
            _ => None,
        }
    }

    /// The pause before the next start: the unit's, or a longer one if the service does not last.
    fn pause(&mut self, now: Instant) -> Duration {
        let lasted = self
            .started
            .map(|started| now.saturating_duration_since(started));
        self.early_ends = match lasted {
            Some(lasted) if lasted < STEADY => self.early_ends.saturating_add(1),
            _ => 0,
        };
        let longer = PAUSES.after(self.early_ends);
        self.service.unit.restart_pause.max(longer)
    }

    fn settle(&mut self, then: Then, now: Instant) -> Option<Action> {
        self.state = match then {
            Then::Pause => State::Pausing {
                until: now + self.pause(now),
            },
            Then::StartAgain => {
                self.service = self.next.take().unwrap_or_else(|| self.service.clone());
                State::Waiting
            }
            Then::Rest | Then::Forget => State::Ended,
        };
        (then == Then::Forget).then(|| Action::Forget(self.service.name.clone()))
    }
}
