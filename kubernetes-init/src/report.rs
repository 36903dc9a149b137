//! The status that machined reads: written whole when it has changed.
//!
//! Its file is on the machine's disk, which pods may fill. A full disk takes no new file, so the status is then written over the old one, in the
//! blocks that it has: each file is longer than its text, by blanks. machined hears of a reboot that a pod asks for by this file alone.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use instar_kubernetes_plan::{ServiceStatus, State, Status};

use crate::output::say;
use crate::processes::Processes;
use crate::service::Life;

/// The room that a file has behind its text, for a later text that is longer.
const SPARE: usize = 8 << 10;
/// A file is a number of whole blocks.
const BLOCK: usize = 4 << 10;

/// The facts about a service beyond its state.
#[derive(Debug, Default)]
struct Known {
    state: Option<State>,
    since: u64,
    /// How its process ended the last time, and whether that was a success.
    last_exit: Option<(String, bool)>,
    error: Option<String>,
}

/// The writer of the status.
#[derive(Debug)]
pub(crate) struct Report {
    file: PathBuf,
    known: BTreeMap<String, Known>,
    /// Errors from the start, and those of the plan.
    errors: [Vec<String>; 2],
    /// Why it cannot be shown whether a reboot waits. No service depends on that.
    unshown: Option<String>,
    reboot_asked: bool,
    written: Option<Status>,
    /// Why the last try to write failed: told once.
    trouble: Option<String>,
}

impl Report {
    pub(crate) fn new(file: PathBuf) -> Self {
        Report {
            file,
            known: BTreeMap::new(),
            errors: [const { Vec::new() }; 2],
            unshown: None,
            reboot_asked: false,
            written: None,
            trouble: None,
        }
    }

    /// A step of the start failed, and the rest goes on.
    pub(crate) fn start_failed(&mut self, error: &anyhow::Error) {
        say(&format!("{error:#}"));
        self.errors[0].push(format!("{error:#}"));
    }

    /// These are the errors of the plan from now on.
    pub(crate) fn plan_has(&mut self, errors: Vec<String>) {
        // machined has a plan that cannot be carried out read again and again.
        for error in errors.iter().filter(|it| !self.errors[1].contains(it)) {
            say(error);
        }
        self.errors[1] = errors;
    }

    /// The file that says whether a reboot waits is right, or it cannot be written.
    pub(crate) fn required_is_shown(&mut self, shown: io::Result<()>) {
        let unshown = shown.err();
        let unshown =
            unshown.map(|error| format!("it cannot be shown whether a reboot waits: {error}"));
        if let Some(why) = &unshown
            && self.unshown != unshown
        {
            say(why);
        }
        self.unshown = unshown;
    }

    /// A pod asks for a reboot of the machine. It ends this container.
    pub(crate) fn reboot_asked(&mut self) {
        self.reboot_asked = true;
    }

    /// A service's process ended.
    pub(crate) fn ended(&mut self, name: &str, how: String, success: bool) {
        say(&format!("{name}: its process {how}"));
        self.known.entry(name.to_owned()).or_default().last_exit = Some((how, success));
    }

    /// A step for a service failed.
    pub(crate) fn failed(&mut self, name: &str, error: &anyhow::Error) {
        let text = format!("{error:#}");
        say(&format!("{name}: {text}"));
        self.known.entry(name.to_owned()).or_default().error = Some(text);
    }

    /// A service is not planned any more.
    pub(crate) fn forget(&mut self, name: &str) {
        self.known.remove(name);
    }

    /// Writes the status if it has changed.
    pub(crate) fn write<'a>(
        &mut self,
        services: impl Iterator<Item = &'a Life>,
        processes: &Processes,
    ) {
        let status = self.status(services, processes);
        if self.written.as_ref() == Some(&status) {
            return;
        }
        let trouble = match self.put(&status) {
            Ok(()) => {
                self.written = Some(status);
                None
            }
            Err(error) => Some(format!("{error:#}")),
        };
        if let Some(trouble) = &trouble
            && self.trouble.as_ref() != Some(trouble)
        {
            say(trouble);
        }
        self.trouble = trouble;
    }

    fn status<'a>(
        &mut self,
        services: impl Iterator<Item = &'a Life>,
        processes: &Processes,
    ) -> Status {
        let services = services.map(|life| self.of_service(life, processes));
        Status {
            services: services.collect(),
            errors: self.errors.concat(),
            warnings: self.unshown.iter().cloned().collect(),
            reboot_asked: self.reboot_asked,
        }
    }

    fn of_service(&mut self, life: &Life, processes: &Processes) -> (String, ServiceStatus) {
        let service = life.service();
        let known = self.known.entry(service.name.clone()).or_default();
        let state = life.shown();
        if known.state != Some(state) {
            known.state = Some(state);
            known.since = now();
        }
        if state == State::Running {
            known.error = None;
        }
        let pid = processes.main(&service.name);
        let status = ServiceStatus {
            extension: service.extension.clone(),
            state,
            pid: pid.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok()),
            since: known.since,
            restarts: life.starts().saturating_sub(1),
            last_exit: known.last_exit.as_ref().map(|(how, _)| how.clone()),
            last_success: known.last_exit.as_ref().map(|(_, success)| *success),
            error: known.error.clone(),
        };
        (service.name.clone(), status)
    }

    /// Replaces the file, or writes over it if that fails.
    fn put(&self, status: &Status) -> Result<()> {
        let text = serde_json::to_vec_pretty(status).context("cannot write the status as JSON")?;
        let Err(error) = self.replace(&text) else {
            return Ok(());
        };
        self.write_over(&text).with_context(|| {
            let file = self.file.display();
            format!("cannot replace {file} ({error}) nor write over it; machined knows the previous status until the disk has room")
        })
    }

    /// Not by `instar_base::whole_file`: nobody needs the file after a power cut, and that crate would bring tokio and ring into PID 1 of the
    /// container.
    fn replace(&self, text: &[u8]) -> io::Result<()> {
        let part = self.file.with_extension("part");
        let length = (text.len() + SPARE).next_multiple_of(BLOCK);
        let written =
            File::create(&part).and_then(|mut file| file.write_all(&filled(text, length)));
        let replaced = written.and_then(|()| fs::rename(&part, &self.file));
        if replaced.is_err() {
            // It takes room that others may need; the next try makes it anew.
            let _ = fs::remove_file(&part);
        }
        replaced
    }

    /// Writes over the file that is there. A reader may see a part of each text meanwhile, which is no JSON, and looks again.
    fn write_over(&self, text: &[u8]) -> io::Result<()> {
        let file = File::options().write(true).open(&self.file)?;
        let length = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
        if text.len() > length {
            let longer = format!("the new text is longer than the file, of {length} bytes");
            return Err(io::Error::new(io::ErrorKind::StorageFull, longer));
        }
        file.write_all_at(&filled(text, length), 0)
    }
}

/// Returns a text with blanks behind it, up to this length.
fn filled(text: &[u8], length: usize) -> Vec<u8> {
    let mut filled = text.to_vec();
    filled.resize(length, b' ');
    filled
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(report: &Report) -> Status {
        serde_json::from_slice(&fs::read(&report.file).unwrap()).unwrap()
    }

    fn status(errors: usize, reboot_asked: bool) -> Status {
        Status {
            errors: vec!["an error of an extension".to_owned(); errors],
            reboot_asked,
            ..Status::default()
        }
    }

    /// By the errors machined goes back from extensions on trial.
    #[test]
    fn a_file_for_agents_that_cannot_be_written_is_no_error_of_the_plan() {
        let mut report = Report::new("status.json".into());
        let processes = Processes::new(None, "logs".into());
        report.plan_has(vec!["an error".to_owned()]);
        let full = || Err(io::Error::from(io::ErrorKind::StorageFull));
        for (shown, warnings) in [(full(), 1), (full(), 1), (Ok(()), 0)] {
            report.required_is_shown(shown);
            let status = report.status([].iter(), &processes);
            assert_eq!(status.errors, ["an error"]);
            assert_eq!(status.warnings.len(), warnings, "{status:?}");
        }
    }

    #[test]
    fn a_full_disk_takes_the_status_over_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let report = Report::new(folder.path().join("status.json"));
        report.put(&status(3, false)).unwrap();
        let length = fs::metadata(&report.file).unwrap().len();
        assert_eq!(length % BLOCK as u64, 0);
        let fill = || std::os::unix::fs::symlink("/dev/full", folder.path().join("status.part"));
        // Longer and shorter texts have room, and blanks stand behind them.
        for (errors, asked) in [(20, false), (1, true), (0, true)] {
            fill().unwrap();
            report.put(&status(errors, asked)).unwrap();
            assert_eq!(read(&report), status(errors, asked));
            assert_eq!(fs::metadata(&report.file).unwrap().len(), length);
        }
        // One that has no room leaves the previous status whole.
        fill().unwrap();
        let error = format!("{:#}", report.put(&status(1000, true)).unwrap_err());
        assert!(error.contains("No space left"), "{error}");
        assert!(error.contains("longer than the file"), "{error}");
        assert_eq!(read(&report), status(0, true));
        // The disk has room again.
        report.put(&status(1000, true)).unwrap();
        assert_eq!(read(&report), status(1000, true));
    }
}
