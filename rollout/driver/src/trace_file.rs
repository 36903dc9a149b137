//! A trace as a file: one line of JSON for each round in which anything changed. It has names of machines, versions and reasons, and no secrets.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
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
    /// Opens a file, and goes on after its last whole line if there is one: a run that goes on where another one was killed continues its trace.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let open = || {
            let file = File::options().create(true).append(true).open(path)?;
            cut_after_last_line(path, &file)?;
            Ok(file)
        };
        let file = open().map_err(|error| {
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
        self.file.write_all(&line).map_err(|error| {
            // A disk that is full took a part of the line. If it stays, the next opening cuts it.
            cut_after_last_line(&self.path, &self.file).ok();
            Failure::io(failed(), error)
        })
    }
}

/// Takes off a part of a line, which a run left that was killed, or whose disk was full: another line after it would be none. What is no part of a
/// round stays, as the text of a file that is no trace.
fn cut_after_last_line(path: &Path, file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(());
    }
    let (read, length) = (File::open(path)?, metadata.len());
    let begin = begin_of_last_line(&read, length)?;
    let mut first = [0];
    // A power cut may leave zeros in the place of text.
    if read.read_at(&mut first, begin)? == 1 && matches!(first, [b'{' | 0]) {
        file.set_len(begin)?;
    }
    Ok(())
}

/// The place after the last newline. A trace may be large: it is read from its end.
fn begin_of_last_line(file: &File, length: u64) -> io::Result<u64> {
    let mut block = [0; 4096];
    let mut end = length;
    while end > 0 {
        let begin = end.saturating_sub(block.len() as u64);
        let part = &mut block[..(end - begin) as usize];
        file.read_exact_at(part, begin)?;
        if let Some(newline) = part.iter().rposition(|byte| *byte == b'\n') {
            return Ok(begin + newline as u64 + 1);
        }
        end = begin;
    }
    Ok(0)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use instar_rollout::{Fact, Facts, MachineName, Member, Moment, Policy, Record, Release};

    use super::*;

    /// The first round of a rollout over a node that is ready.
    fn round() -> Round {
        let release = |version: &str| Release {
            version: version.to_owned(),
            digest: None,
            image: None,
        };
        let name = MachineName::from("lamp-1");
        let members = [(name.clone(), Member::default())];
        let record = Record::begin(release("v2"), vec![Policy::default()], members.into());
        let mut record = record.unwrap();
        let fact = Fact {
            condition: instar_rollout::Condition::Ready,
            running: Some(release("v1")),
            ..Fact::away("")
        };
        let facts = Facts::from([(name, fact)]);
        let asked = BTreeSet::new();
        let (decision, traced) = TracedRound::go_on(&mut record, &facts, &asked, Moment(7));
        Round {
            decision,
            record,
            facts,
            traced,
        }
    }

    #[test]
    fn a_trace_that_was_cut_goes_on_after_its_last_line() {
        let path = std::env::temp_dir().join(format!("instar-trace-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        let note = || TraceFile::open(&path).unwrap().note(&round()).unwrap();
        note();
        let line = fs::read(&path).unwrap();
        for (rest, rounds) in [
            (&line[..line.len() - 1], 2),
            (&line[..1], 3),
            (&[0; 10_000], 4),
            (b"", 5),
        ] {
            let before = fs::read(&path).unwrap();
            fs::write(&path, [&before, rest].concat()).unwrap();
            note();
            assert_eq!(replay_file(&path).unwrap().rounds, rounds);
        }
        // It is no trace, and nothing of it is lost.
        fs::write(&path, "a letter").unwrap();
        note();
        assert!(fs::read_to_string(&path).unwrap().starts_with("a letter{"));
        fs::remove_file(&path).unwrap();
    }
}
