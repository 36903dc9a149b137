//! The status that machined reads: written whole when it has changed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use instar_kubernetes_plan::{ServiceStatus, State, Status};

use crate::output::say;
use crate::processes::Processes;
use crate::service::Life;

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
    reboot_asked: bool,
    written: Option<Status>,
}

impl Report {
    pub(crate) fn new(file: PathBuf) -> Self {
        Report {
            file,
            known: BTreeMap::new(),
            errors: [const { Vec::new() }; 2],
            reboot_asked: false,
            written: None,
        }
    }

    /// A step of the start failed, and the rest goes on.
    pub(crate) fn start_failed(&mut self, error: &anyhow::Error) {
        say(&format!("{error:#}"));
        self.errors[0].push(format!("{error:#}"));
    }

    /// These are the errors of the plan from now on.
    pub(crate) fn plan_has(&mut self, errors: Vec<String>) {
        for error in &errors {
            say(error);
        }
        self.errors[1] = errors;
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
        let services = services.map(|life| self.of_service(life, processes));
        let status = Status {
            services: services.collect(),
            errors: self.errors.concat(),
            reboot_asked: self.reboot_asked,
        };
        if self.written.as_ref() == Some(&status) {
            return;
        }
        match self.replace(&status) {
            Ok(()) => self.written = Some(status),
            Err(error) => say(&format!("{error:#}")),
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

    /// Not by `instar_base::whole_file`: the file is in memory and nobody needs it after a power cut, and that crate would bring tokio and
    /// ring into PID 1 of the container.
    fn replace(&self, status: &Status) -> Result<()> {
        let failed = || format!("cannot write {}", self.file.display());
        let part = self.file.with_extension("part");
        let mut text = serde_json::to_vec_pretty(status).with_context(failed)?;
        text.push(b'\n');
        let mut file = File::create(&part).with_context(failed)?;
        file.write_all(&text).with_context(failed)?;
        fs::rename(&part, &self.file).with_context(failed)
    }
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
