//! The driver: looks, has the engine decide, saves, and acts, until the rollout has ended.
//!
//! Each round changes the record in one step that is saved before anything is sent. So the driver may be killed at any moment; the next one
//! finds what was intended.

use std::collections::BTreeSet;
use std::fs::File;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use indicatif::MultiProgress;
use instar_client::{Failure, FailureKind};
use instar_rollout::{Action, Decision, MachineName, Moment, Phase, Record, Report, decide};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use super::act::Task;
use super::look::Nodes;
use super::show::Changes;
use super::store::{Folder, Rollout};
use crate::cli::Global;
use crate::progress::ProgressDisplay;

/// The pause between two rounds.
const INTERVAL: Duration = Duration::from_secs(1);

/// This moment by the driver's clock.
pub(super) fn now() -> Moment {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Moment(since.unwrap_or_default().as_secs())
}

/// Drives the rollout in the folder to its end. The lock is held meanwhile.
pub(super) async fn run(global: &Global, folder: &Folder, lock: File) -> Result<(), Failure> {
    let ways = folder.existing()?.ways;
    let driver = Driver {
        folder,
        nodes: Nodes::new(global, ways),
        tasks: JoinSet::new(),
        asked: BTreeSet::new(),
        bars: MultiProgress::new(),
        changes: Changes::new(global.output),
    };
    let ended = LocalSet::new().run_until(driver.run()).await;
    drop(lock);
    ended
}

struct Driver<'a> {
    folder: &'a Folder,
    nodes: Nodes<'a>,
    tasks: JoinSet<(Action, Option<Report>)>,
    /// Nodes that a task of this driver is about.
    asked: BTreeSet<MachineName>,
    bars: MultiProgress,
    changes: Changes,
}

impl Driver<'_> {
    async fn run(mut self) -> Result<(), Failure> {
        loop {
            let (decision, rollout) = self.round().await?;
            self.changes.show(&rollout.record, &decision)?;
            if rollout.record.has_ended() && self.tasks.is_empty() {
                return result(&rollout.record);
            }
            for action in decision.actions {
                self.begin(action, &rollout);
            }
            tokio::select! {
                Some(done) = self.tasks.join_next() => {
                    if let Ok((action, report)) = done {
                        self.end(&action, report)?;
                    }
                }
                () = sleep(INTERVAL) => {}
            }
        }
    }

    /// One round: facts in, intents out, saved.
    async fn round(&mut self) -> Result<(Decision, Rollout), Failure> {
        let record = self.folder.existing()?.record;
        let changes = |name: &&MachineName| {
            let entry = record.machines.get(*name);
            entry.is_some_and(|entry| entry.step.is_under_way())
        };
        let busy = self.asked.iter().filter(changes).cloned().collect();
        let facts = self.nodes.look(&busy).await;
        let asked = &self.asked;
        let now = now();
        self.folder.change(|rollout| {
            let record = &mut rollout.record;
            record.observe(&facts, now);
            let decision = decide(record, &facts, now).without(asked);
            for action in &decision.actions {
                record.intend(action, &facts, now);
            }
            decision
        })
    }

    fn begin(&mut self, action: Action, rollout: &Rollout) {
        let name = action.machine().clone();
        // Without a connection the node is asked in the next round.
        let Some(node) = self.nodes.connected(&name) else {
            return;
        };
        let record = &rollout.record;
        let before = record
            .machines
            .get(&name)
            .and_then(|entry| entry.before.clone());
        let to = match action {
            Action::Return(_) => before,
            Action::Prepare(_) | Action::Switch(_) => Some(record.target.clone()),
        };
        let patience = record.policies.iter().map(|policy| policy.patience.0).min();
        let task = Task {
            display: ProgressDisplay::beside(&self.bars, name.as_str()),
            limit: Duration::from_secs(patience.unwrap_or(1800)),
            action,
            node,
            to,
        };
        self.asked.insert(name);
        self.tasks.spawn_local(task.run());
    }

    fn end(&mut self, action: &Action, report: Option<Report>) -> Result<(), Failure> {
        self.asked.remove(action.machine());
        if let Some(report) = report {
            self.folder
                .change(|rollout| rollout.record.report(action, report, now()))?;
        }
        Ok(())
    }
}

/// The result of a rollout that has ended.
fn result(record: &Record) -> Result<(), Failure> {
    let failed = |kind, text: String| Err(Failure::new(kind, text));
    match &record.phase {
        Phase::Done | Phase::Rolling | Phase::GoingBack { .. } => Ok(()),
        Phase::Aborted => failed(FailureKind::Failed, "the rollout was aborted".to_owned()),
        Phase::WentBack { why } => failed(
            FailureKind::RolledBack,
            format!("the fleet went back: {why}"),
        ),
        Phase::Halted { why } => Err(Failure::new(
            FailureKind::Failed,
            format!("the rollout stopped: {why}"),
        )
        .advise("`instarctl fleet resume` goes on with the other nodes, `instarctl fleet rollback` has the fleet go back")),
    }
}
