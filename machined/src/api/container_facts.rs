//! Facts about the containers of the machine config: from the config, their services and their cgroups.

use std::fs;
use std::path::Path;

use crate::containers::Runtime;
use crate::machine::Machine;
use crate::services::{Cgroup, Phase};

/// The facts about one container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContainerFacts {
    /// Its name.
    pub(super) name: String,
    /// Its image, as the config names it.
    pub(super) image: String,
    /// The phase of its service.
    pub(super) phase: Phase,
    /// PID of its first process, while it runs.
    pub(super) pid: Option<u32>,
    /// Memory of its processes and caches, in bytes.
    pub(super) memory_bytes: u64,
    /// Processor time since it started, in nanoseconds.
    pub(super) cpu_nanoseconds: u64,
}

/// Lists all containers in the order of the config. A container that does not run has 0 for memory and processor time.
pub(super) fn containers(machine: &Machine) -> anyhow::Result<Vec<ContainerFacts>> {
    let Some(configured) = machine.config() else {
        return Ok(Vec::new());
    };
    let (runtime, mut found) = (Runtime::default(), Vec::new());
    for container in &configured.config.containers {
        let name = container.name.to_string();
        let cgroup = Cgroup::of_container(&name)?;
        let pid = running(runtime.noted_pid(&container.name), &cgroup);
        let cgroup = cgroup.directory();
        let phase = machine
            .services
            .get(&name)
            .map(|service| service.status().phase);
        found.push(ContainerFacts {
            image: container.image.to_string(),
            phase: phase.unwrap_or(Phase::Initialized),
            pid,
            memory_bytes: read_number(&cgroup.join("memory.current")),
            cpu_nanoseconds: cpu_time(&cgroup),
            name,
        });
    }
    Ok(found)
}

/// A container's first process as it was noted at the start, while it runs: neither the lowest PID of a cgroup nor one in the cgroup itself,
/// as PIDs wrap around, and a container may put its processes into cgroups of its own.
fn running(noted: Option<u32>, cgroup: &Cgroup) -> Option<u32> {
    noted.filter(|pid| cgroup.holds(*pid))
}

/// Reads a file with a number; 0 if there is none.
pub(super) fn read_number(path: &Path) -> u64 {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().parse().unwrap_or(0)
}

/// Reads `usage_usec` of cpu.stat (Documentation/admin-guide/cgroup-v2.rst).
pub(super) fn cpu_time(cgroup: &Path) -> u64 {
    let stat = fs::read_to_string(cgroup.join("cpu.stat")).unwrap_or_default();
    let microseconds = stat
        .lines()
        .find_map(|line| line.strip_prefix("usage_usec ")?.parse::<u64>().ok());
    microseconds.unwrap_or(0).saturating_mul(1000)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cgroup_tells_what_its_container_takes() {
        let cgroup = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(cgroup.path().join(file), text).unwrap();
        write("memory.current", "4096\n");
        write("cpu.stat", "usage_usec 1500\nuser_usec 1000\n");
        assert_eq!(read_number(&cgroup.path().join("memory.current")), 4096);
        assert_eq!(cpu_time(cgroup.path()), 1_500_000);
    }

    #[test]
    fn a_noted_process_counts_while_the_containers_cgroup_holds_it() {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
        let name = own.unwrap().rsplit('/').next().unwrap();
        let noted = Some(std::process::id());
        let own = Cgroup::beside_machined(name).unwrap();
        assert_eq!(running(noted, &own), noted);
        let other = Cgroup::beside_machined("another-one").unwrap();
        assert_eq!(running(noted, &other), None);
        assert_eq!(running(None, &own), None);
    }
}
