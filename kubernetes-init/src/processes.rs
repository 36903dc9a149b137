//! The processes of services: started, told to end, and reaped.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result};
use instar_extension::{Command, ServiceKind};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

use crate::cgroups::Cgroups;
use crate::environment::{self, Environment};
use crate::notify::Socket;
use crate::output::Output;
use crate::service::Service;
use crate::starter;

/// The end of a process that was started for a service.
#[derive(Debug)]
pub(crate) struct End {
    /// The service.
    pub(crate) name: String,
    pub(crate) success: bool,
    /// `exited with code 1`
    pub(crate) text: String,
}

/// The processes of all services.
#[derive(Debug)]
pub(crate) struct Processes {
    /// None where the container has none: then the processes that were started are all that is known.
    cgroups: Option<Cgroups>,
    logs: PathBuf,
    /// The process that was started last for a service, while it lives.
    main: BTreeMap<String, Pid>,
    outputs: BTreeMap<String, Output>,
    sockets: BTreeMap<String, Socket>,
}

impl Processes {
    pub(crate) fn new(cgroups: Option<Cgroups>, logs: PathBuf) -> Self {
        Processes {
            cgroups,
            logs,
            main: BTreeMap::new(),
            outputs: BTreeMap::new(),
            sockets: BTreeMap::new(),
        }
    }

    /// Starts a command before the start of a service.
    pub(crate) fn prepare(&mut self, service: &Service, command: usize) -> Result<()> {
        let environment = environment::of(service)?;
        let command = service.unit.start_pre.get(command);
        self.start(
            service,
            command.context("there is no such command")?,
            &environment,
        )
    }

    /// Starts a service.
    pub(crate) fn start_main(&mut self, service: &Service) -> Result<()> {
        let mut environment = environment::of(service)?;
        if service.unit.kind == ServiceKind::Notify {
            let socket = Socket::make(&service.name)?;
            let path = socket.path().display().to_string();
            environment.insert("NOTIFY_SOCKET".to_owned(), path);
            self.sockets.insert(service.name.clone(), socket);
        }
        let command = service.unit.start.as_ref();
        self.start(service, command.context("it has no command")?, &environment)
    }

    fn start(
        &mut self,
        service: &Service,
        command: &Command,
        environment: &Environment,
    ) -> Result<()> {
        let name = &service.name;
        if !self.outputs.contains_key(name) {
            self.outputs
                .insert(name.clone(), Output::new(name, &self.logs)?);
        }
        let writer = || -> Result<Stdio> {
            let output = self.outputs.get(name).context("it has no output")?;
            Ok(output.writer()?.into())
        };
        let cgroup = match &self.cgroups {
            Some(cgroups) => Some(cgroups.prepare(name, service.unit.tasks_max)?),
            None => None,
        };
        let mut starting = starter::command(
            cgroup.as_deref(),
            service.unit.limits.iter(),
            &command.program,
            &command.arguments(environment),
        );
        starting.env_clear().envs(environment).current_dir("/");
        starting
            .stdin(Stdio::null())
            .stdout(writer()?)
            .stderr(writer()?);
        let child = starting
            .spawn()
            .with_context(|| format!("cannot start a process for {}", command.program))?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        self.main
            .insert(name.clone(), pid.context("it has no number")?);
        Ok(())
    }

    /// Reaps a process, if one has ended; says of which service it was the one that was started.
    pub(crate) fn reap(&mut self) -> Option<Option<End>> {
        let (pid, status) = wait(WaitOptions::NOHANG).ok().flatten()?;
        let name = self.main.iter().find(|(_, main)| **main == pid);
        let Some(name) = name.map(|(name, _)| name.clone()) else {
            return Some(None);
        };
        self.main.remove(&name);
        Some(Some(End {
            name,
            success: status.exit_status() == Some(0),
            text: describe(status),
        }))
    }

    /// The main process of a service.
    pub(crate) fn main(&self, name: &str) -> Option<Pid> {
        self.main.get(name).copied()
    }

    /// Sends a signal to the main process of a service.
    pub(crate) fn signal_main(&self, name: &str, signal: Signal) -> Result<()> {
        match self.main(name) {
            // It is not reaped yet: the number is still its own.
            Some(pid) => kill_process(pid, signal).with_context(|| format!("cannot signal {name}")),
            None => Ok(()),
        }
    }

    /// Tells all processes of a service to end.
    pub(crate) fn terminate_all(&self, name: &str) -> Result<()> {
        match &self.cgroups {
            Some(cgroups) => cgroups.terminate(name),
            None => self.signal_main(name, Signal::TERM),
        }
    }

    /// Kills all processes of a service.
    pub(crate) fn kill_all(&self, name: &str) -> Result<()> {
        match &self.cgroups {
            Some(cgroups) => cgroups.kill(name),
            None => self.signal_main(name, Signal::KILL),
        }
    }

    /// Whether no process of a service is left.
    pub(crate) fn is_empty(&self, name: &str) -> bool {
        match &self.cgroups {
            Some(cgroups) => !cgroups.is_populated(name),
            None => self.main(name).is_none(),
        }
    }

    /// Lets go of what belongs to a service that is not planned any more. Processes that outlive it lose their output.
    pub(crate) fn forget(&mut self, name: &str) {
        self.outputs.remove(name);
        self.sockets.remove(name);
        if let Some(cgroups) = &self.cgroups {
            cgroups.remove(name);
        }
    }

    /// All that may have something to read.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        use std::os::fd::AsFd;
        let outputs = self.outputs.values().map(Output::as_fd);
        outputs.chain(self.sockets.values().map(Socket::as_fd))
    }

    /// Passes on output, and returns the services that say that they are ready.
    pub(crate) fn listen(&mut self) -> Vec<String> {
        for output in self.outputs.values_mut() {
            output.pass_on();
        }
        let ready = self
            .sockets
            .iter()
            .filter(|(_, socket)| socket.says_ready());
        ready.map(|(name, _)| name.clone()).collect()
    }
}

/// How a process ended, as the rest of a sentence.
fn describe(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(starter::NOT_STARTED), _) => {
            "exited with code 203: its program could not be started, and its log says why"
                .to_owned()
        }
        (Some(code), _) => format!("exited with code {code}"),
        (_, Some(signal)) => format!("was killed by signal {signal}"),
        _ => format!("ended with status {:#x}", status.as_raw()),
    }
}
