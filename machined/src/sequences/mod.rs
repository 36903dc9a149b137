//! Sequences of steps in a fixed order: boot, upgrade, reboot and shutdown, each a list of phases of tasks, as data.
//!
//! The runner executes one sequence at a time: the phases one after the other, the tasks of a phase in parallel. It also emits the events
//! and writes the log lines. A task that fails ends its sequence; the code that runs the sequence decides how to go on.

mod apply_config;
mod boot;
mod bundles;
pub mod conditions;
mod config_change;
mod extension_files;
mod extension_image;
pub mod follow;
mod hang_up;
pub mod image_pins;
mod image_rules;
pub mod image_updates;
mod install;
mod keep_sockets;
pub mod kept_versions;
mod kexec;
pub mod kubernetes;
mod network;
pub mod os_extensions;
mod owners_servers;
mod pods_effect;
mod preparation;
mod reset;
mod rollback;
mod room_ahead;
mod serve_images;
mod settings;
mod shutdown;
mod signed_list;
mod soft_reboot;
mod stage;
mod steps;
mod system_services;
mod upgrade;
mod waiting_version;
mod written_version;

pub use apply_config::{ApplyError, ApplyMode, apply_config};
pub use boot::{BootArguments, Rollback, boot};
pub use bundles::{
    BundleError, CollectSupport, NotAnswered, Report, SupportPart, Taken, UPLOAD, take_bundle,
    tell_end, watch_sticks,
};
pub use config_change::ConfigChange;
pub use hang_up::{Caller, HungUp, Line};
pub use install::{InstallError, install_image, may_install};
pub use keep_sockets::keep_sockets;
pub use kexec::{KexecRefused, reboot_by_kexec};
pub use reset::{ResetError, ResetRequest, reset};
pub use rollback::{RollbackBy, RollbackError, rollback};
pub use serve_images::{ServeError, serve_images};
pub use shutdown::{Urgency, reboot, shutdown};
use soft_reboot::reboot_after;
pub use soft_reboot::{reboot_holding, reboot_quickest};
pub use stage::{Staged, prepare_upgrade, stage};
pub use steps::boot_assets::is_installed;
pub use steps::last_known_time::note_time;
pub use steps::offer::{Offer, offer};
pub use system_services::{Absence, Define, Moment, SystemService};
pub use upgrade::{Ahead, AheadPlan, plan_upgrade, prepare_ahead, upgrade};

use std::future::Future;
use std::pin::Pin;

use instar_api::common;
use instar_api::events::EventPayload;
use instar_api::machine::{
    PhaseEvent, SequenceEvent, TaskEvent, phase_event, sequence_event, task_event,
};

use crate::store::event_log::{ActorId, EventLog};

/// The work of a task, ready to run.
type Work = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// A task: the smallest named step.
pub struct Task {
    name: &'static str,
    work: Work,
}

impl Task {
    /// Makes a task with the name that clients see.
    pub fn new(
        name: &'static str,
        work: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) -> Self {
        Task {
            name,
            work: Box::pin(work),
        }
    }
}

/// Tasks that may run in parallel.
pub struct Phase {
    name: &'static str,
    tasks: Vec<Task>,
}

impl Phase {
    /// Makes a phase with the name that clients see.
    pub fn new(name: &'static str, tasks: Vec<Task>) -> Self {
        Phase { name, tasks }
    }

    /// Makes a phase of one task of the same name.
    pub fn of(
        name: &'static str,
        work: impl Future<Output = anyhow::Result<()>> + Send + 'static,
    ) -> Self {
        Phase {
            name,
            tasks: vec![Task::new(name, work)],
        }
    }
}

/// Phases in order.
pub struct Sequence {
    /// The name that clients see.
    pub name: &'static str,
    /// The phases, first to last.
    pub phases: Vec<Phase>,
}

/// Why a sequence ended early: names the task; the cause is the source.
#[derive(Debug, thiserror::Error)]
#[error("{sequence} failed in phase {phase}, task {task}")]
struct Failed {
    sequence: &'static str,
    phase: &'static str,
    task: &'static str,
    source: anyhow::Error,
}

/// Runs a sequence to its end or its first failure; the error names the task that failed.
pub async fn run(sequence: Sequence, actor: &ActorId, events: &EventLog) -> anyhow::Result<()> {
    let name = sequence.name;
    tracing::info!("{name}: start");
    emit_sequence(events, actor, name, sequence_event::Action::Start, None);
    for phase in sequence.phases {
        let of_phase = phase.name;
        if let Err(failed) = run_phase(name, phase, actor, events).await {
            let failed = anyhow::Error::from(failed);
            tracing::error!("{failed:#}");
            emit_failure(events, actor, name, format!("{failed:#}"));
            return Err(failed);
        }
        // Shows in the log how long each phase of a boot or an upgrade takes.
        tracing::info!("{name}: {of_phase}: done");
    }
    tracing::info!("{name}: done");
    emit_sequence(events, actor, name, sequence_event::Action::Stop, None);
    Ok(())
}

/// Emits the event by which waiting clients learn that a sequence failed.
pub fn emit_failure(events: &EventLog, actor: &ActorId, sequence: &str, reason: String) {
    let error = common::Error {
        code: common::Code::Fatal.into(),
        message: reason,
        details: Vec::new(),
    };
    emit_sequence(
        events,
        actor,
        sequence,
        sequence_event::Action::Noop,
        Some(error),
    );
}

fn emit_sequence(
    events: &EventLog,
    actor: &ActorId,
    sequence: &str,
    action: sequence_event::Action,
    error: Option<common::Error>,
) {
    let event = SequenceEvent {
        sequence: sequence.to_owned(),
        action: action.into(),
        error,
    };
    events.emit(actor, EventPayload::Sequence(event));
}

async fn run_phase(
    sequence: &'static str,
    phase: Phase,
    actor: &ActorId,
    events: &EventLog,
) -> Result<(), Failed> {
    let emit = |action: phase_event::Action| {
        let event = PhaseEvent {
            phase: phase.name.to_owned(),
            action: action.into(),
        };
        events.emit(actor, EventPayload::Phase(event));
    };
    emit(phase_event::Action::Start);
    let tasks = phase.tasks.into_iter().map(|task| async move {
        let emit = |action: task_event::Action| {
            let event = TaskEvent {
                task: task.name.to_owned(),
                action: action.into(),
            };
            events.emit(actor, EventPayload::Task(event));
        };
        emit(task_event::Action::Start);
        let result = task.work.await;
        emit(task_event::Action::Stop);
        result.map_err(|source| Failed {
            sequence,
            phase: phase.name,
            task: task.name,
            source,
        })
    });
    // All tasks of the phase end before its failure is reported: none is left half done.
    let results = futures_util::future::join_all(tasks).await;
    emit(phase_event::Action::Stop);
    results.into_iter().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::store::event_log::Start;

    async fn history(events: &EventLog, count: usize) -> Vec<String> {
        let mut reader = events.read(&Start::History);
        let mut names = Vec::new();
        for _ in 0..count {
            let event = reader.next().await;
            assert_eq!(event.actor.0, "caller");
            names.push(match &event.payload {
                EventPayload::Sequence(e) => format!(
                    "sequence {} {}{}",
                    e.sequence,
                    e.action,
                    if e.error.is_some() { " failed" } else { "" }
                ),
                EventPayload::Phase(e) => format!("phase {} {}", e.phase, e.action),
                EventPayload::Task(e) => format!("task {} {}", e.task, e.action),
                other => panic!("{other:?}"),
            });
        }
        names
    }

    #[tokio::test]
    async fn a_failed_task_ends_its_sequence_after_its_phase() {
        let events = EventLog::default();
        let actor = ActorId("caller".into());
        let sequence = Sequence {
            name: "test",
            phases: vec![
                Phase::new(
                    "one",
                    vec![
                        Task::new("bad", async { Err(anyhow::anyhow!("no disk")) }),
                        Task::new("good", async { Ok(()) }),
                    ],
                ),
                Phase::of("two", async { Ok(()) }),
            ],
        };
        let failed = run(sequence, &actor, &events).await.unwrap_err();
        assert_eq!(
            format!("{failed:#}"),
            "test failed in phase one, task bad: no disk"
        );
        let expected = [
            "sequence test 1",
            "phase one 0",
            "task bad 0",
            "task bad 1",
            "task good 0",
            "task good 1",
            "phase one 1",
            "sequence test 0 failed",
        ];
        assert_eq!(history(&events, expected.len()).await, expected);
    }
}
