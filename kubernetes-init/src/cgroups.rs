//! The cgroups of the container: its root has no process of its own, so that kubelet can make cgroups below it; each service has a leaf
//! (Documentation/admin-guide/cgroup-v2.rst).
//!
//! ```text
//!   /sys/fs/cgroup              the container's root: all controllers are enabled for its children
//!     ├─ init                   kubernetes-init
//!     ├─ services/NAME          a service, and all that it starts: containerd's shims
//!     └─ kubepods               kubelet's
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use instar_extension::Limit;
use rustix::process::{Pid, Signal, kill_process};

const ROOT: &str = "/sys/fs/cgroup";

/// The container's cgroups.
#[derive(Debug)]
pub(crate) struct Cgroups {
    services: PathBuf,
}

impl Cgroups {
    /// Leaves the root, so that its controllers can be enabled.
    pub(crate) fn set_up() -> Result<Self> {
        let root = Path::new(ROOT);
        ensure!(
            root.join("cgroup.controllers").exists(),
            "{ROOT} is no cgroup of version 2: kubelet needs it"
        );
        let own = root.join("init");
        make(&own)?;
        write(&own.join("cgroup.procs"), "0")?;
        let cgroups = Self {
            services: root.join("services"),
        };
        make(&cgroups.services)?;
        Ok(cgroups)
    }

    /// Enables all controllers for kubelet's cgroups and for services. One that cannot be enabled does not keep others from it.
    pub(crate) fn enable_controllers(&self) -> Result<()> {
        enable_controllers(Path::new(ROOT)).and(enable_controllers(&self.services))
    }

    /// Makes the cgroup of a service, with its limit on tasks, and returns the file that takes processes.
    pub(crate) fn prepare(&self, name: &str, tasks: Limit) -> Result<PathBuf> {
        let cgroup = self.services.join(name);
        make(&cgroup)?;
        if let Some(tasks) = tasks {
            write(&cgroup.join("pids.max"), &tasks.to_string())?;
        }
        Ok(cgroup.join("cgroup.procs"))
    }

    /// Whether a process of the service is left.
    pub(crate) fn is_populated(&self, name: &str) -> bool {
        let events = fs::read_to_string(self.services.join(name).join("cgroup.events"));
        events.is_ok_and(|events| events.lines().any(|line| line == "populated 1"))
    }

    /// Sends SIGTERM to all processes of the service. One that never started has none.
    pub(crate) fn terminate(&self, name: &str) -> Result<()> {
        let file = self.services.join(name).join("cgroup.procs");
        if !file.exists() {
            return Ok(());
        }
        let listed =
            fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        for pid in listed
            .lines()
            .filter_map(|line| Pid::from_raw(line.parse().ok()?))
        {
            // One that has ended meanwhile is as it should be.
            let _ = kill_process(pid, Signal::TERM);
        }
        Ok(())
    }

    /// Kills all processes of the service. One that never started has none.
    pub(crate) fn kill(&self, name: &str) -> Result<()> {
        let file = self.services.join(name).join("cgroup.kill");
        match file.exists() {
            true => write(&file, "1"),
            false => Ok(()),
        }
    }

    /// Removes the cgroup of a service that is not planned any more; one with processes stays.
    pub(crate) fn remove(&self, name: &str) {
        // With processes of pods in it, it goes with the container.
        let _ = fs::remove_dir(self.services.join(name));
    }
}

fn make(cgroup: &Path) -> Result<()> {
    fs::create_dir_all(cgroup)
        .with_context(|| format!("cannot make the cgroup {}", cgroup.display()))
}

fn enable_controllers(cgroup: &Path) -> Result<()> {
    let file = cgroup.join("cgroup.controllers");
    let controllers =
        fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let enabled = controllers.split_whitespace().map(|controller| {
        write(
            &cgroup.join("cgroup.subtree_control"),
            &format!("+{controller}"),
        )
    });
    enabled.fold(Ok(()), Result::and)
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {text:?} to {}", file.display()))
}
