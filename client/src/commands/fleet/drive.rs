//! Drives the rollout in a folder to its end.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use indicatif::MultiProgress;
use instar_client::{Failure, FailureKind};
use instar_rollout::{Action, Facts, MachineName, Phase, Record, Step};
use instar_rollout_driver::{
    ConfigOrder, Driver, Machines, Round, Task, TraceFile, now, time_left,
};
use instar_rollout_page::Seen;
use tokio::task::LocalSet;
use tokio::time::sleep;

use super::look::{Brings, Nodes};
use super::note::note;
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
        .run_until(drive(driver, Beside::new(folder, trace), changes))
        .await;
    drop(lock);
    ended
}

async fn drive(
    mut driver: Driver<Folder, Asked<'_>>,
    mut beside: Beside<'_>,
    mut changes: Changes,
) -> Result<(), Failure> {
    loop {
        let round = driver.round().await?;
        if let Some(warning) = beside.keep(&round) {
            note(&warning);
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

/// What is written beside the record: a trace, and what the page shows. Neither is worth nodes that are left in the middle of their change, as by a
/// disk that is full.
struct Beside<'a> {
    folder: &'a Folder,
    trace: Option<TraceFile>,
    shown: Seen,
    /// Whether it was said that the page shows no news.
    has_warned: bool,
}

impl<'a> Beside<'a> {
    fn new(folder: &'a Folder, trace: Option<TraceFile>) -> Self {
        Self {
            folder,
            trace,
            shown: Seen::default(),
            has_warned: false,
        }
    }

    /// Keeps a round; returns a warning if something of it is lost for the first time.
    fn keep(&mut self, round: &Round) -> Option<String> {
        let traced = self.trace.as_mut().map(|trace| trace.note(round));
        let untraced = traced.and_then(Result::err).map(|failure| {
            self.trace = None;
            let why = failure.chain();
            format!("{why}: the rollout goes on without a trace")
        });
        let seen = Seen::of(&round.decision, &round.facts);
        if seen == self.shown {
            return untraced;
        }
        let unseen = match self.folder.keep_seen(&seen) {
            Ok(()) => {
                self.shown = seen;
                None
            }
            Err(failure) => {
                let is_new = !std::mem::replace(&mut self.has_warned, true);
                let why = failure.chain();
                is_new.then(|| format!("{why}: the rollout goes on, and its page shows no news"))
            }
        };
        let warnings: Vec<String> = untraced.into_iter().chain(unseen).collect();
        (!warnings.is_empty()).then(|| warnings.join("\n"))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Fact, Member, Moment, Policy, Release, TracedRound};

    use super::*;

    /// A round that a node is away in, for this reason.
    fn round(why: &str) -> Round {
        let target = Release {
            version: "v0.2.0".to_owned(),
            digest: None,
            image: None,
        };
        let name = MachineName::from("lamp-1");
        let members = [(name.clone(), Member::default())];
        let mut record = Record::begin(target, vec![Policy::default()], members.into()).unwrap();
        let facts = Facts::from([(name, Fact::away(why))]);
        let asked = BTreeSet::new();
        let (decision, mut traced) = TracedRound::go_on(&mut record, &facts, &asked, Moment(7));
        // A round in which nothing changes is not traced.
        traced.before.phase = Phase::Aborted;
        Round {
            decision,
            record,
            facts,
            traced,
        }
    }

    #[test]
    fn a_rollout_goes_on_without_its_trace_and_its_page() {
        let directory = tempfile::tempdir().unwrap();
        // No folder: a file has its name.
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let folder = Folder::at(&file);
        let trace = TraceFile::open(Path::new("/dev/full")).unwrap();
        let mut beside = Beside::new(&folder, Some(trace));
        let warning = beside.keep(&round("off")).unwrap();
        assert!(warning.contains("goes on without a trace"), "{warning}");
        assert!(warning.contains("page shows no news"), "{warning}");
        assert_eq!(beside.keep(&round("lost")), None);
        // There is room again.
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert_eq!(beside.keep(&round("off")), None);
        assert_ne!(folder.seen(), Seen::default());
    }
}
