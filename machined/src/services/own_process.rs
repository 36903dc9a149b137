//! A process of the rootfs that runs a part of machined under a name of its own: apid, the dashboard.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use anyhow::Context as _;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use super::cgroup::Cgroup;
use super::log_ring::LogRing;
use crate::base::Exit;
use crate::sys::oom_score;

/// A running process of the rootfs; dropping the value kills the process.
pub(crate) struct OwnProcess {
    pid: u32,
    child: Child,
    /// Copies its standard error to the log until the process closes it.
    output: Option<tokio::task::JoinHandle<()>>,
}

impl OwnProcess {
    /// Starts the process in its cgroup, with standard error as its log, and sets its place in the order in which the kernel kills
    /// processes (`sys::oom_score`). The process must wait for data from its starter, so that it does nothing outside of the cgroup.
    pub(crate) fn start(
        command: &mut Command,
        cgroup: &Cgroup,
        oom_score: i16,
        log: LogRing,
    ) -> anyhow::Result<Self> {
        oom_score::set_for(command, oom_score);
        let program = command.as_std().get_program().display().to_string();
        let mut child = command
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {program}"))?;
        let pid = child
            .id()
            .with_context(|| format!("{program} has no process id"))?;
        cgroup.take_in(pid)?;
        let mut stderr = child
            .stderr
            .take()
            .with_context(|| format!("{program} has no standard error"))?;
        let output = crate::base::task::spawn(async move {
            let mut chunk = [0; 1024];
            while let Ok(length @ 1..) = stderr.read(&mut chunk).await {
                log.write(&chunk[..length]);
            }
        });
        Ok(OwnProcess {
            pid,
            child,
            output: Some(output),
        })
    }

    /// Returns its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for its end, and for the rest of its output.
    pub(crate) async fn wait(&mut self) -> Exit {
        let exit = match self.child.wait().await {
            Ok(status) => Exit::from_wait_status(status.into_raw()),
            Err(_) => Exit::Unknown,
        };
        // No other process holds its standard error, so the copy ends with the process.
        if let Some(output) = &mut self.output {
            // A task that panicked has ended as well.
            let _ = output.await;
            self.output = None;
        }
        exit
    }

    /// Kills it at once: it has nothing to save.
    pub(crate) fn kill(&mut self) -> std::io::Result<()> {
        self.child.start_kill()
    }
}
