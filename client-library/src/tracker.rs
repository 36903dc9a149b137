//! Derives the state of an action from the events of a node.
//!
//! ```text
//!            own sequence starts            RUNNING and ready             boot id differs
//! accepted ─────────────────────► under way ─────────────────► looks done ───────────────► done
//!                                  ▲   │ own sequence has an error      │ link down, or not ready
//!                                  │   └──────────► failed              │
//!                                  └────────────────────────────────────┘
//! ```
//!
//! Pure: [`crate::follow()`] brings the events and asks for the boot id. Only the latest status counts, not an earlier good one: a history
//! that is sent again holds statuses from before the action. It starts over at the own sequence's start. The error of the own sequence
//! always wins, also when it comes with the history, after the link was down: that is how a node reports that it went back.

use std::collections::HashSet;
use std::fmt;

use instar_api::events::{EventPayload, stage_in_words};
use instar_api::machine::machine_status_event::MachineStage;
use instar_api::machine::{Event, phase_event, sequence_event, service_state_event, task_event};

/// The task at which shutdown and reset count as done: after it no service is left to report more.
const LAST_TASK: &str = "stopAllServices";

/// The expected end of the action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Running and ready, in another boot or generation than before.
    NewBoot,
    /// All services are stopped.
    Stopped,
}

/// The state of the action as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Not done yet.
    Continue,
    /// Done if the boot id has changed too.
    LooksDone,
    /// Done.
    Done,
    /// The own sequence reported an error.
    Failed(String),
}

/// Tracks one action.
pub struct Tracker {
    goal: Goal,
    actor: String,
    verdict: Verdict,
    /// Ids of events that were shown: a history that is sent again is not shown again.
    shown: HashSet<String>,
    /// Whether the own sequence was seen to start, or the link went down: later statuses are not from before the action.
    under_way: bool,
    last: Option<String>,
}

impl Tracker {
    /// Tracks the action that the node knows by this actor id.
    pub fn new(goal: Goal, actor: String) -> Self {
        Self {
            goal,
            actor,
            verdict: Verdict::Continue,
            shown: HashSet::new(),
            under_way: false,
            last: None,
        }
    }

    /// The state as far as it is known.
    pub fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Whether a good status may be from after the action, as far as events show.
    pub fn under_way(&self) -> bool {
        self.under_way
    }

    /// The last news from the node, for the message of a timeout.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Processes one event; returns an update to show, if there is one.
    pub fn observe(&mut self, event: &Event) -> Option<Update> {
        let payload = match event.data.as_ref().map(EventPayload::unpack) {
            Some(Ok(Some(payload))) => payload,
            // A greeting, or an event type of a newer node.
            _ => return None,
        };
        let own = event.actor_id == self.actor;
        self.judge(&payload, own);
        let update = if own {
            Update::of(&payload)
        } else {
            Update::of_machine(&payload)
        }?;
        if !event.id.is_empty() && !self.shown.insert(event.id.clone()) {
            return None;
        }
        self.last = Some(update.to_string());
        Some(update)
    }

    fn judge(&mut self, payload: &EventPayload, own: bool) {
        if matches!(self.verdict, Verdict::Failed(_) | Verdict::Done) {
            return;
        }
        match payload {
            EventPayload::Sequence(sequence) if own => {
                if let Some(error) = &sequence.error {
                    self.verdict = Verdict::Failed(error.message.clone());
                } else if sequence.action() == sequence_event::Action::Start {
                    self.under_way = true;
                    self.verdict = Verdict::Continue;
                }
            }
            EventPayload::Task(task) if self.goal == Goal::Stopped && task.task == LAST_TASK => {
                self.verdict = Verdict::Done;
            }
            EventPayload::MachineStatus(status) if self.goal == Goal::NewBoot => {
                let ready = status.status.as_ref().is_some_and(|status| status.ready);
                self.verdict = if status.stage() == MachineStage::Running && ready {
                    Verdict::LooksDone
                } else {
                    Verdict::Continue
                };
            }
            _ => {}
        }
    }

    /// The link is down: the node's earlier status is no longer valid.
    pub fn link_down(&mut self) {
        match (&self.verdict, self.goal) {
            (Verdict::Failed(_) | Verdict::Done, _) => {}
            (_, Goal::NewBoot) => {
                self.under_way = true;
                self.verdict = Verdict::Continue;
            }
            // The node was shutting down and is gone.
            (_, Goal::Stopped) => {
                if self.under_way {
                    self.verdict = Verdict::Done;
                }
            }
        }
    }
}

/// News to show while waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update {
    /// A sequence began or ended.
    Sequence {
        /// For example `upgrade`.
        name: String,
        /// Whether it began.
        started: bool,
    },
    /// A sequence failed.
    Failed {
        /// For example `upgrade`.
        name: String,
        /// The node's message.
        error: String,
    },
    /// A phase of a sequence began or ended.
    Phase {
        /// For example `install`.
        name: String,
        /// Whether it began.
        started: bool,
    },
    /// A task of a phase began or ended.
    Task {
        /// For example `runInstaller`.
        name: String,
        /// Whether it began.
        started: bool,
    },
    /// The machine's stage, and the conditions that it waits for.
    Stage {
        /// In words, for example `running`.
        stage: &'static str,
        /// Whether all conditions are met.
        ready: bool,
        /// The unmet conditions, each with its reason.
        unmet: Vec<String>,
    },
    /// A service has changed its state.
    Service {
        /// The id of the service.
        name: String,
        /// In words, for example `running`.
        state: &'static str,
    },
}

impl Update {
    fn of(payload: &EventPayload) -> Option<Self> {
        match payload {
            EventPayload::Sequence(event) => Some(match &event.error {
                Some(error) => Self::Failed {
                    name: event.sequence.clone(),
                    error: error.message.clone(),
                },
                None => Self::Sequence {
                    name: event.sequence.clone(),
                    started: event.action() == sequence_event::Action::Start,
                },
            }),
            EventPayload::Phase(event) => Some(Self::Phase {
                name: event.phase.clone(),
                started: event.action() == phase_event::Action::Start,
            }),
            EventPayload::Task(event) => Some(Self::Task {
                name: event.task.clone(),
                started: event.action() == task_event::Action::Start,
            }),
            EventPayload::ServiceState(event) => Some(Self::Service {
                name: event.service.clone(),
                state: service_state(event.action()),
            }),
            other => Self::of_machine(other),
        }
    }

    /// An update to show regardless of its actor.
    fn of_machine(payload: &EventPayload) -> Option<Self> {
        let EventPayload::MachineStatus(event) = payload else {
            return None;
        };
        let status = event.status.clone().unwrap_or_default();
        let unmet = status
            .unmet_conditions
            .into_iter()
            .map(|unmet| format!("{}: {}", unmet.name, unmet.reason));
        Some(Self::Stage {
            stage: stage_in_words(event.stage()),
            ready: status.ready,
            unmet: unmet.collect(),
        })
    }
}

/// One line for people.
impl fmt::Display for Update {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = |started: &bool| if *started { "started" } else { "done" };
        match self {
            Self::Sequence { name, started } => write!(f, "sequence {name} {}", action(started)),
            Self::Failed { name, error } => write!(f, "sequence {name} failed: {error}"),
            Self::Phase { name, started } => write!(f, "phase {name} {}", action(started)),
            Self::Task { name, started } => write!(f, "task {name} {}", action(started)),
            Self::Stage {
                stage, ready: true, ..
            } => write!(f, "{stage}, ready"),
            Self::Stage { stage, unmet, .. } if unmet.is_empty() => f.write_str(stage),
            Self::Stage { stage, unmet, .. } => {
                write!(f, "{stage}, waiting for {}", unmet.join("; "))
            }
            Self::Service { name, state } => write!(f, "service {name} {state}"),
        }
    }
}

/// A service's state in words.
pub fn service_state(action: service_state_event::Action) -> &'static str {
    use service_state_event::Action;
    match action {
        Action::Initialized => "initialized",
        Action::Preparing => "preparing",
        Action::Waiting => "waiting",
        Action::Running => "running",
        Action::Stopping => "stopping",
        Action::Finished => "finished",
        Action::Failed => "failed",
        Action::Skipped => "skipped",
        Action::Starting => "starting",
    }
}

#[cfg(test)]
mod tests {
    use instar_api::common::Error;
    use instar_api::machine::machine_status_event::MachineStatus;
    use instar_api::machine::{MachineStatusEvent, PhaseEvent, SequenceEvent, TaskEvent};
    use prost_types::Any;

    use super::*;

    const ME: &str = "me";

    fn event(id: &str, actor: &str, payload: impl Into<EventPayload>) -> Event {
        Event {
            data: Some(payload.into().pack()),
            id: id.into(),
            actor_id: actor.into(),
            ..Event::default()
        }
    }

    fn status(stage: MachineStage, ready: bool) -> MachineStatusEvent {
        MachineStatusEvent {
            stage: stage.into(),
            status: Some(MachineStatus {
                ready,
                unmet_conditions: Vec::new(),
            }),
        }
    }

    fn sequence(action: sequence_event::Action, error: Option<&str>) -> SequenceEvent {
        SequenceEvent {
            sequence: "upgrade".into(),
            action: action.into(),
            error: error.map(|message| Error {
                message: message.into(),
                ..Error::default()
            }),
        }
    }

    fn upgrade() -> Tracker {
        Tracker::new(Goal::NewBoot, ME.into())
    }

    fn last_task() -> TaskEvent {
        TaskEvent {
            task: LAST_TASK.into(),
            action: task_event::Action::Start.into(),
        }
    }

    #[test]
    fn running_and_ready_looks_done_until_it_is_no_more() {
        let mut tracker = upgrade();
        tracker.observe(&event("1", "", status(MachineStage::Running, true)));
        assert_eq!(*tracker.verdict(), Verdict::LooksDone);
        tracker.observe(&event("2", "", status(MachineStage::Upgrading, true)));
        assert_eq!(*tracker.verdict(), Verdict::Continue);
        tracker.observe(&event("3", "", status(MachineStage::Running, false)));
        assert_eq!(*tracker.verdict(), Verdict::Continue);
    }

    #[test]
    fn a_replayed_status_of_before_does_not_count() {
        let mut tracker = upgrade();
        tracker.link_down();
        tracker.observe(&event("1", "", status(MachineStage::Running, true)));
        tracker.observe(&event(
            "2",
            ME,
            sequence(sequence_event::Action::Start, None),
        ));
        assert_eq!(*tracker.verdict(), Verdict::Continue);
        tracker.observe(&event("3", "", status(MachineStage::Running, true)));
        assert_eq!(*tracker.verdict(), Verdict::LooksDone);
    }

    #[test]
    fn an_own_error_is_final_before_and_after_a_good_status() {
        for order in [[0, 1], [1, 0]] {
            let events = [
                event(
                    "1",
                    ME,
                    sequence(sequence_event::Action::Noop, Some("gate")),
                ),
                event("2", "", status(MachineStage::Running, true)),
            ];
            let mut tracker = upgrade();
            for index in order {
                tracker.observe(&events[index]);
            }
            tracker.link_down();
            assert_eq!(*tracker.verdict(), Verdict::Failed("gate".into()));
        }
    }

    #[test]
    fn errors_of_others_are_not_ours() {
        let mut tracker = upgrade();
        tracker.observe(&event(
            "1",
            "someone",
            sequence(sequence_event::Action::Noop, Some("busy")),
        ));
        tracker.observe(&event(
            "2",
            "",
            sequence(sequence_event::Action::Noop, Some("boot")),
        ));
        assert_eq!(*tracker.verdict(), Verdict::Continue);
    }

    #[test]
    fn stopping_is_done_at_the_last_task_of_anyone() {
        let mut tracker = Tracker::new(Goal::Stopped, ME.into());
        tracker.observe(&event("1", "", status(MachineStage::Running, true)));
        assert_eq!(*tracker.verdict(), Verdict::Continue);
        tracker.observe(&event("2", "", last_task()));
        assert_eq!(*tracker.verdict(), Verdict::Done);
    }

    #[test]
    fn stopping_is_done_when_the_link_goes_after_the_start_only() {
        let mut tracker = Tracker::new(Goal::Stopped, ME.into());
        tracker.link_down();
        assert_eq!(*tracker.verdict(), Verdict::Continue);
        tracker.observe(&event(
            "1",
            ME,
            sequence(sequence_event::Action::Start, None),
        ));
        tracker.link_down();
        assert_eq!(*tracker.verdict(), Verdict::Done);
    }

    #[test]
    fn the_last_task_says_nothing_about_an_upgrade() {
        let mut tracker = upgrade();
        tracker.observe(&event("1", ME, last_task()));
        assert_eq!(*tracker.verdict(), Verdict::Continue);
    }

    #[test]
    fn replayed_events_are_shown_once() {
        let mut tracker = upgrade();
        let phase = PhaseEvent {
            phase: "pull".into(),
            action: phase_event::Action::Start.into(),
        };
        let phase = event("1", ME, phase);
        assert_eq!(
            tracker
                .observe(&phase)
                .map(|update| update.to_string())
                .as_deref(),
            Some("phase pull started")
        );
        assert_eq!(tracker.observe(&phase), None);
        assert_eq!(tracker.last(), Some("phase pull started"));
    }

    #[test]
    fn unknown_and_broken_events_are_passed_over() {
        let mut tracker = upgrade();
        for data in [
            None,
            Some(Any::default()),
            Some(Any {
                type_url: "talos/runtime/machine.Newer".into(),
                value: vec![1, 2, 3],
            }),
            Some(Any {
                type_url: "talos/runtime/machine.TaskEvent".into(),
                value: vec![0xff],
            }),
        ] {
            let event = Event {
                data,
                actor_id: ME.into(),
                ..Event::default()
            };
            assert_eq!(tracker.observe(&event), None);
        }
        assert_eq!(*tracker.verdict(), Verdict::Continue);
    }
}
