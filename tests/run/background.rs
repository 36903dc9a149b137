//! The registry that outlives this program: an instance of Debian's docker-registry with its own port and storage.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use instar_qemu::lease_port;
use instar_tests::{HOST_FOR_GUEST, http, registry_config};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const PROGRAM: &str = "docker-registry";
const PATIENCE: Duration = Duration::from_secs(60);
const CONFIG: &str = "registry.yml";
const PID: &str = "registry.pid";

/// A running registry; plain HTTP on loopback.
#[derive(Debug)]
pub(crate) struct Registry {
    port: u16,
}

impl Registry {
    /// Starts a registry in the folder. It has a session of its own and does not hold this program's output open.
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let port = lease_port()?.port();
        let storage = folder.join("registry");
        let config = folder.join(CONFIG);
        fs::write(&config, registry_config(&storage, port))
            .with_context(|| format!("cannot write {}", config.display()))?;
        let log = File::create(folder.join("registry.log")).context("cannot make registry.log")?;
        // setsid(1) of util-linux: neither Ctrl-C nor the end of the terminal reaches it.
        let mut process = Command::new("setsid")
            .arg(PROGRAM)
            .arg("serve")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run docker-registry: `make deps` installs it")?;
        fs::write(folder.join(PID), process.id().to_string()).context("cannot write its number")?;
        let registry = Self { port };
        let until = Instant::now() + PATIENCE;
        while !http(&registry.address(), "GET", "/v2/", &[], &[])
            .is_ok_and(|answer| answer.status == 200)
        {
            if let Some(status) = process.try_wait()? {
                bail!("docker-registry ended ({status}): see registry.log");
            }
            ensure!(Instant::now() < until, "docker-registry does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(registry)
    }

    /// Ends the registry that was started in the folder, if it still runs; returns whether it did.
    pub(crate) fn stop(folder: &Path) -> Result<bool> {
        let Ok(text) = fs::read_to_string(folder.join(PID)) else {
            return Ok(false);
        };
        let Some(pid) = text.trim().parse().ok().and_then(Pid::from_raw) else {
            return Ok(false);
        };
        // The descriptor first: from here on the pid cannot come to mean another process.
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            return Ok(false);
        };
        let command = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero()));
        let ours = folder.join(CONFIG).display().to_string();
        if !String::from_utf8_lossy(&command.unwrap_or_default()).contains(&ours) {
            return Ok(false);
        }
        pidfd_send_signal(&process, Signal::TERM).context("cannot stop the registry")?;
        fs::remove_file(folder.join(PID)).context("cannot forget the registry")?;
        Ok(true)
    }

    /// `127.0.0.1:PORT`
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The registry's address in the node.
    pub(crate) fn host_for_guest(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.port)
    }

    /// An image's name in the node.
    pub(crate) fn name_for_guest(&self, name: &str) -> String {
        format!("{}/{name}", self.host_for_guest())
    }
}
