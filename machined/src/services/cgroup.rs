//! The cgroups of services, beside machined's own (cgroup v2; Documentation/admin-guide/cgroup-v2.rst).
//!
//! ```text
//! /generation.N/machined
//!              /apid, /dashboard, …
//!              /containers       containers that end with the generation; the limit on processes for all of them
//!                         /NAME  one container; its own limit
//! /workloads                     containers that may outlive it; the limit on processes for all of them
//!           /NAME                one container; its own limit
//! ```
//!
//! A cgroup cannot be moved, so a container is started in the right one: init ends all processes of the generation's, and does not know
//! containers.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;

/// Where init mounts the hierarchy.
const HIERARCHY: &str = "/sys/fs/cgroup";
/// The parent of the cgroups of containers that may outlive their generation; init makes it.
const WORKLOADS: &str = "/workloads";
/// The parent of the cgroups of other containers.
const CONTAINERS: &str = "containers";

/// Time limit for killed processes to end: one that lives longer waits for a device.
const DYING: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// One service's cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    /// Its path in the hierarchy, as in `/generation.1/apid`.
    path: String,
    /// Limit on its memory, in bytes.
    memory_limit: Option<u64>,
}

impl Cgroup {
    /// Returns the cgroup of this name beside machined's own.
    pub fn beside_machined(name: &str) -> anyhow::Result<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").context("read /proc/self/cgroup")?;
        Ok(Cgroup {
            path: sibling(&own, name)?,
            memory_limit: None,
        })
    }

    /// Returns the cgroup for a container that is about to be made: below the workloads if it may live through a change of generations,
    /// otherwise one that ends with this generation.
    pub fn for_container(name: &str, outlives_generation: bool) -> anyhow::Result<Self> {
        if !outlives_generation {
            return Self::beside_machined(&format!("{CONTAINERS}/{name}"));
        }
        Ok(Cgroup {
            path: format!("{WORKLOADS}/{name}"),
            memory_limit: None,
        })
    }

    /// Returns the cgroup in which a container's processes run, if there are any.
    pub fn where_it_runs(name: &str) -> anyhow::Result<Option<Self>> {
        for outlives_generation in [true, false] {
            let cgroup = Self::for_container(name, outlives_generation)?;
            if cgroup.is_populated() {
                return Ok(Some(cgroup));
            }
        }
        Ok(None)
    }

    /// Returns the cgroup of a container that may be running.
    pub fn of_container(name: &str) -> anyhow::Result<Self> {
        let lasting = Self::for_container(name, true)?;
        match lasting.directory().is_dir() {
            true => Ok(lasting),
            false => Self::for_container(name, false),
        }
    }

    /// Whether its processes may live through a change of generations.
    pub fn outlives_generation(&self) -> bool {
        self.path.starts_with(WORKLOADS)
    }

    /// Makes the parent of a container's cgroup, and limits the number of processes and threads of all containers in it together.
    pub fn prepare_for_container(&self) -> anyhow::Result<()> {
        let own = self.directory();
        let directory = own.parent().unwrap_or(&own);
        fs::create_dir_all(directory)
            .with_context(|| format!("make the parent of the cgroup {}", self.path))?;
        let most = most_processes(kernel_limit("pid_max")?, kernel_limit("threads-max")?);
        fs::write(directory.join("pids.max"), most.to_string())
            .with_context(|| format!("limit the processes beside the cgroup {}", self.path))?;
        for controller in ["+cpu", "+io", "+memory", "+pids"] {
            // As in init: a kernel without one of the controllers still runs containers.
            let _ = fs::write(directory.join("cgroup.subtree_control"), controller);
        }
        weigh(&workloads(), self.outlives_generation().then_some(&own));
        Ok(())
    }

    /// Gives the containers that may outlive their generation the share of the processor for as many as there are now: to be called when
    /// some have gone.
    pub fn weigh_workloads() {
        weigh(&workloads(), None);
    }

    /// Adds a memory limit in bytes; the kernel kills processes that exceed it.
    pub fn with_memory_limit(self, bytes: u64) -> Self {
        Cgroup {
            memory_limit: Some(bytes),
            ..self
        }
    }

    /// Returns the path in the hierarchy, for container runtimes.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the directory of its files.
    pub fn directory(&self) -> PathBuf {
        Path::new(HIERARCHY).join(self.path.trim_start_matches('/'))
    }

    /// Moves a process into it, and makes the cgroup first if needed.
    pub fn take_in(&self, pid: u32) -> anyhow::Result<()> {
        let directory = self.directory();
        fs::create_dir_all(&directory).with_context(|| format!("make the cgroup {}", self.path))?;
        if let Some(bytes) = self.memory_limit {
            fs::write(directory.join("memory.max"), bytes.to_string())
                .with_context(|| format!("limit the memory of the cgroup {}", self.path))?;
        }
        fs::write(directory.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("move process {pid} to the cgroup {}", self.path))
    }

    /// Kills all its processes, and waits until they have ended.
    ///
    /// # Errors
    /// Some are still there after the time limit: they wait for a device that does not answer.
    pub async fn empty(&self) -> anyhow::Result<()> {
        let until = tokio::time::Instant::now() + DYING;
        loop {
            self.kill_all()?;
            if self.is_populated() {
                let late = tokio::time::Instant::now() >= until;
                anyhow::ensure!(!late, "processes of the cgroup {} do not die", self.path);
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            return Ok(());
        }
    }

    /// Whether this process is in it or below it, and is not another process that got the same number.
    pub fn holds(&self, pid: u32) -> bool {
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup"));
        cgroups.is_ok_and(|cgroups| is_within(&cgroups, &self.path))
    }

    /// Returns how many processes in it or below it the kernel has killed for lack of memory since the cgroup was made; 0 if that cannot be
    /// read.
    pub fn memory_kills(&self) -> u64 {
        let events = fs::read_to_string(self.directory().join("memory.events"));
        events.map_or(0, |events| kills(&events))
    }

    /// Whether a process is in it or below it.
    fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.directory().join("cgroup.events"));
        events.is_ok_and(|events| !events.contains("populated 0"))
    }

    /// Kills all its processes, if it exists.
    pub fn kill_all(&self) -> anyhow::Result<()> {
        match fs::write(self.directory().join("cgroup.kill"), "1") {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error)
                .with_context(|| format!("kill the processes of the cgroup {}", self.path)),
            _ => Ok(()),
        }
    }
}

/// The directory of the workloads' cgroups.
fn workloads() -> PathBuf {
    Path::new(HIERARCHY).join(WORKLOADS.trim_start_matches('/'))
}

/// Writes the share of the containers in this directory of cgroups.
fn weigh(directory: &Path, new: Option<&PathBuf>) {
    let weight = weight(containers_in(directory, new));
    // A kernel without the controller, and an init that makes no such directory, have no share.
    let _ = fs::write(directory.join("cpu.weight"), weight.to_string());
}

/// Counts the containers in a directory of cgroups, and the one that is about to be made, if there is one.
fn containers_in(directory: &Path, new: Option<&PathBuf>) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let others =
        entries.filter(|it| Some(&it.path()) != new && it.file_type().is_ok_and(|it| it.is_dir()));
    others.count() as u64 + u64::from(new.is_some())
}

/// The share of the processor for so many containers together: each has as much as a generation, as if they lay side by side. With the
/// kernel's own weight all of them together would have as much as one generation (`cpu.weight`, 1 to 10000, usually 100).
fn weight(containers: u64) -> u64 {
    containers.saturating_mul(100).clamp(100, 10_000)
}

/// Reads `oom_kill` of memory.events.
fn kills(events: &str) -> u64 {
    let mut lines = events.lines();
    let count = lines.find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
    count.unwrap_or(0)
}

/// Whether a process with these lines in its /proc/PID/cgroup is in the cgroup of this path or below it.
fn is_within(cgroups: &str, path: &str) -> bool {
    let mut lines = cgroups.lines();
    let own = lines.find_map(|line| line.strip_prefix("0::")?.strip_prefix(path));
    own.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

/// Limit on processes: half of the numbers and stacks that the kernel has. The other half is for the machine itself: if machined cannot
/// start a thread, it ends.
fn most_processes(pid_max: u64, threads_max: u64) -> u64 {
    pid_max.min(threads_max) / 2
}

fn kernel_limit(name: &str) -> anyhow::Result<u64> {
    let path = Path::new("/proc/sys/kernel").join(name);
    let text = fs::read_to_string(&path).with_context(|| format!("read {path:?}"))?;
    text.trim()
        .parse()
        .with_context(|| format!("{path:?} is no number: {text:?}"))
}

/// From `0::/generation.1/machined` to `/generation.1/NAME`.
fn sibling(own: &str, name: &str) -> anyhow::Result<String> {
    let path = own
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .with_context(|| format!("no cgroup v2 in {own:?}"))?;
    let (parent, _) = path
        .rsplit_once('/')
        .with_context(|| format!("{path:?} is not a cgroup path"))?;
    Ok(format!("{parent}/{name}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn services_live_beside_machined() {
        assert_eq!(
            sibling("0::/generation.3/machined\n", "apid").unwrap(),
            "/generation.3/apid"
        );
        assert_eq!(
            sibling("1:cpu:/x\n0::/machined\n", "apid").unwrap(),
            "/apid"
        );
        assert!(sibling("1:cpu:/x\n", "apid").is_err());
        assert_eq!(
            sibling("0::/generation.3/machined\n", "containers/machined").unwrap(),
            "/generation.3/containers/machined"
        );
    }

    #[test]
    fn each_container_weighs_as_much_as_a_generation() {
        for (containers, expected) in [(0, 100), (1, 100), (3, 300), (100, 10_000), (500, 10_000)] {
            assert_eq!(weight(containers), expected);
        }
        let workloads = tempfile::tempdir().unwrap();
        for name in ["web", "other"] {
            fs::create_dir(workloads.path().join(name)).unwrap();
        }
        fs::write(workloads.path().join("cgroup.procs"), "").unwrap();
        for (name, count) in [("web", 2), ("new", 3)] {
            let new = workloads.path().join(name);
            assert_eq!(containers_in(workloads.path(), Some(&new)), count, "{name}");
        }
        // The share follows their number also when some have gone.
        let written = || fs::read_to_string(workloads.path().join("cpu.weight")).unwrap();
        weigh(workloads.path(), Some(&workloads.path().join("new")));
        assert_eq!(written(), "300");
        weigh(workloads.path(), None);
        assert_eq!(written(), "200");
        fs::remove_dir(workloads.path().join("web")).unwrap();
        weigh(workloads.path(), None);
        assert_eq!(written(), "100");
    }

    #[test]
    fn kills_for_lack_of_memory_are_counted() {
        assert_eq!(
            kills("low 0\nmax 7\noom 3\noom_kill 2\noom_group_kill 0\n"),
            2
        );
        assert_eq!(kills("low 0\n"), 0);
    }

    #[test]
    fn a_process_is_in_a_cgroup_or_below_it() {
        for (cgroups, within) in [
            ("0::/workloads/web\n", true),
            ("1:cpu:/\n0::/workloads/web/own/child\n", true),
            ("0::/workloads/webs\n", false),
            ("0::/workloads\n", false),
            ("1:cpu:/workloads/web\n", false),
            ("", false),
        ] {
            assert_eq!(is_within(cgroups, "/workloads/web"), within, "{cgroups:?}");
        }
    }

    #[test]
    fn containers_leave_room_for_the_machine() {
        // 2 GiB of memory, and 384 MiB, where the kernel's stacks are the limit.
        assert_eq!(most_processes(32_768, 15_700), 7_850);
        assert_eq!(most_processes(32_768, 2_900), 1_450);
        assert_eq!(most_processes(32_768, 500_000), 16_384);
    }
}
