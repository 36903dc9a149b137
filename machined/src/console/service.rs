//! The dashboard on the screen as a service: a process of the rootfs with the terminal, and with a connection on which it has the
//! role of a reader.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::net::UnixStream;
use tokio::process::Command;
use tokio_util::task::AbortOnDropHandle;

use super::screen::Screen;
use crate::api;
use crate::base::Exit;
use crate::machine::Machine;
use crate::services::{Adopted, Cgroup, LogRing, OwnProcess, Running, Signal, Step, Workload};
use crate::sys::container::pass_descriptors;
use crate::sys::oom_score;

/// Everything that the dashboard needs at each start.
pub(super) struct Dashboard {
    machine: Arc<Machine>,
    cgroup: Cgroup,
}

impl Dashboard {
    /// Creates it for this machine.
    pub(super) fn new(machine: Arc<Machine>, cgroup: Cgroup) -> Self {
        Dashboard { machine, cgroup }
    }

    fn spawn(&self, log: LogRing) -> anyhow::Result<Box<dyn Running>> {
        let (screen, terminal) = Screen::take()?;
        let (ours, theirs) = UnixStream::pair().context("make its connection")?;
        let theirs = OwnedFd::from(theirs.into_std()?);
        let mut command = std::process::Command::new("/sbin/dashboard");
        command
            .arg0("dashboard")
            .env_clear()
            .stdin(Stdio::from(terminal.try_clone()?))
            .stdout(Stdio::from(terminal));
        let mut command = Command::from(command);
        let passing = pass_descriptors(&mut command, &[theirs]).context("pass its connection")?;
        let process = OwnProcess::start(&mut command, &self.cgroup, oom_score::USUAL, log)?;
        drop(passing);
        let machine = self.machine.clone();
        let server = crate::base::task::spawn(async move {
            // The connection ends with the dashboard, and the service notices that by itself.
            let _ = api::serve_reader(ours, machine).await;
        });
        Ok(Box::new(RunningDashboard {
            process,
            screen,
            _server: AbortOnDropHandle::new(server),
        }))
    }
}

impl Workload for Dashboard {
    fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
        // A dashboard that an earlier machined started has lost its connection.
        Box::pin(async { self.cgroup.kill_all() })
    }

    fn start(&self, log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
        Box::pin(async { self.spawn(log) })
    }

    fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
        Box::pin(async { Adopted::Nothing })
    }

    fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
        Box::pin(async { anyhow::bail!("the dashboard is not a container") })
    }
}

struct RunningDashboard {
    process: OwnProcess,
    screen: Screen,
    _server: AbortOnDropHandle<()>,
}

impl Running for RunningDashboard {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn wait(&mut self) -> Step<'_, Exit> {
        Box::pin(self.process.wait())
    }

    fn signal(&mut self, _signal: Signal) -> anyhow::Result<()> {
        // No need to end gently: the next dashboard sets up the terminal anew.
        self.process.kill().context("kill the dashboard")
    }

    fn clean_up(&mut self) -> Step<'_, ()> {
        Box::pin(async {
            if let Err(error) = self.screen.give_back() {
                tracing::warn!("the screen stays on the dashboard's terminal: {error:#}");
            }
        })
    }
}
