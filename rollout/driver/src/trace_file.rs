//! A trace as a file: one line of JSON for each round in which anything changed. It has names of machines, versions and reasons, and no secrets.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use instar_client::{Failure, FailureKind};
use instar_rollout::{Replayed, TracedRound, replay};

use super::driver::Round;

/// A trace that is written.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    file: File,
}

impl TraceFile {
    /// Opens a file, and goes on at its end if there is one: a run that goes on where another one was killed continues its trace.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let opened = File::options().create(true).append(true).open(path);
        let file = opened.map_err(|error| {
            Failure::io(format!("cannot open the trace {}", path.display()), error)
        })?;
        let path = path.to_owned();
        Ok(Self { path, file })
    }

    /// Writes a round, unless nothing changed in it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn note(&mut self, round: &Round) -> Result<(), Failure> {
        let is_idle = round.traced.actions.is_empty()
            && round.traced.before.machines == round.record.machines
            && round.traced.before.phase == round.record.phase;
        if is_idle {
            return Ok(());
        }
        let failed = || format!("cannot write the trace {}", self.path.display());
        let mut line = serde_json::to_vec(&round.traced)
            .map_err(|error| Failure::new(FailureKind::Failed, failed()).because(error))?;
        line.push(b'\n');
        let written = self.file.write_all(&line);
        written.map_err(|error| Failure::io(failed(), error))
    }
}

/// Replays the trace in a file.
///
/// # Errors
/// It cannot be read, or it is no trace that the engine comes to.
pub fn replay_file(path: &Path) -> Result<Replayed, Failure> {
    let name = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::io(format!("cannot read the trace {name}"), error))?;
    // A run that was killed may have left a part of its last line.
    let whole = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let rounds: Result<Vec<TracedRound>, _> = whole.lines().map(serde_json::from_str).collect();
    let not =
        |error| Failure::new(FailureKind::Failed, format!("{name} is no trace")).because(error);
    replay(&rounds.map_err(not)?).map_err(|error| {
        Failure::new(FailureKind::Failed, format!("{name} cannot be replayed")).because(error)
    })
}
