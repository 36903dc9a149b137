//! Drives the rollout in a folder to its end.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use indicatif::MultiProgress;
use instar_client::{Failure, FailureKind};
use instar_rollout::{Action, Facts, MachineName, Phase, Record, Step};
use instar_rollout_driver::{ConfigOrder, Driver, Machines, Task, TraceFile, now, time_left};
use instar_rollout_page::Seen;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::look::{Brings, Nodes};
use super::show::Changes;
use super::store::{Folder, Subject};
use super::{act, configure};
use crate::cli::Global;
use crate::progress::ProgressDisplay;

/// The pause between two rounds.
const INTERVAL: Duration = Duration::from_secs(1);
/// Limit on the number of failed nodes that the last words name.
const MOST_NAMED: usize = 10;

/// Drives the rollout in the folder to its end. The lock is held meanwhile. `trace`: a file that gets each round.
pub(super) async fn run(
    global: &Global,
    folder: &Folder,
    lock: File,
    trace: Option<&Path>,
) -> Result<(), Failure> {
    let trace = trace.map(TraceFile::open).transpose()?;
    let rollout = folder.existing()?;
    let brings = match &rollout.subject {
        Subject::Image { .. } => Brings::Version,
        Subject::Config { config, .. } => Brings::Config(config.clone(), folder.clone()),
    };
    let machines = Asked {
        nodes: Nodes::new(global, rollout.ways, brings),
        bars: MultiProgress::new(),
        subject: rollout.subject,
        folder: folder.clone(),
    };
    let driver = Driver::new(folder.clone(), machines);
    let changes = Changes::new(global.output);
    let ended = LocalSet::new()
        .run_until(drive(driver, folder, changes, trace))
        .await;
    drop(lock);
    ended
}

async fn drive(
    mut driver: Driver<Folder, Asked<'_>>,
    folder: &Folder,
    mut changes: Changes,
    mut trace: Option<TraceFile>,
) -> Result<(), Failure> {
    let mut shown = Seen::default();
    loop {
        let round = driver.round().await?;
        if let Some(trace) = &mut trace {
            trace.note(&round)?;
        }
        let seen = Seen::of(&round.decision, &round.facts);
        if seen != shown {
            folder.keep_seen(&seen)?;
            shown = seen;
        }
        changes.show(&round.record, &round.decision)?;
        if round.record.has_ended() && driver.is_idle() {
            return result(&round.record);
        }
        let ended = tokio::select! {
            ended = driver.ended() => ended,
            () = sleep(INTERVAL) => continue,
        };
        driver.note(ended).await?;
    }
}

/// The nodes, and a bar for each that is asked for something.
struct Asked<'a> {
    nodes: Nodes<'a>,
    bars: MultiProgress,
    subject: Subject,
    folder: Folder,
}

impl Machines for Asked<'_> {
    async fn look(&mut self, record: &Record, busy: &BTreeSet<MachineName>) -> Facts {
        self.nodes.look(Some(record), busy).await
    }

    fn ask(&mut self, action: &Action, record: &Record) -> Option<Task> {
        let name = action.machine();
        // Without a connection the node is asked in the next round.
        let node = self.nodes.connected(name)?;
        let before = record
            .machines
            .get(name)
            .and_then(|entry| entry.before.clone());
        let to = match action {
            Action::Return(_) => before,
            Action::Prepare(_) | Action::Switch(_) => Some(record.target.clone()),
        };
        let limit = time_left(record, name, now());
        let display = ProgressDisplay::beside(&self.bars, name.as_str());
        let action = action.clone();
        match &self.subject {
            Subject::Image { .. } => {
                let order = act::Order {
                    display,
                    limit,
                    action,
                    node,
                    to,
                };
                Some(Box::pin(order.carry_out()))
            }
            Subject::Config { config, how } => {
                let (target, way) = self.nodes.way(name)?;
                let order = ConfigOrder {
                    site: configure::Site {
                        target,
                        way,
                        display,
                    },
                    change: config.clone(),
                    trial: *how,
                    configs: self.folder.clone(),
                    limit,
                    action,
                    node,
                };
                Some(Box::pin(configure::carry_out(order)))
            }
        }
    }
}

/// The result of a rollout that has ended.
fn result(record: &Record) -> Result<(), Failure> {
    let failed = |kind, text: String| Err(Failure::new(kind, text));
    match &record.phase {
        Phase::Done => without_failures(record),
        Phase::Rolling | Phase::GoingBack { .. } => Ok(()),
        Phase::Aborted => failed(FailureKind::Failed, "the rollout was aborted".to_owned()),
        Phase::WentBack { why } => failed(
            FailureKind::RolledBack,
            format!("the fleet went back: {why}"),
        ),
        Phase::Halted { why } => Err(Failure::new(
            FailureKind::Failed,
            format!("the rollout stopped: {why}"),
        )
        .advise("`instarctl fleet resume` goes on with the other nodes, `instarctl fleet retry` has those that failed try again, `instarctl fleet rollback` has the fleet go back")),
    }
}

/// A rollout that is done has succeeded only if no node failed on the way: a person may have resumed it after failures.
fn without_failures(record: &Record) -> Result<(), Failure> {
    let machines = record.machines.iter();
    let failed = machines.filter_map(|(name, entry)| match &entry.step {
        Step::Failed { why, .. } => Some(format!("{name}: {why}")),
        _ => None,
    });
    let failed: Vec<String> = failed.collect();
    let nodes = match failed.len() {
        0 => return Ok(()),
        1 => "1 node".to_owned(),
        many => format!("{many} nodes"),
    };
    let named = failed[..failed.len().min(MOST_NAMED)].join("; ");
    let more = match failed.len().saturating_sub(MOST_NAMED) {
        0 => String::new(),
        more => format!("; and {more} more, which `instarctl fleet status` shows"),
    };
    Err(Failure::new(
        FailureKind::Failed,
        format!("the rollout is done, and {nodes} failed: {named}{more}"),
    )
    .advise("`instarctl fleet retry` has them try again"))
}
