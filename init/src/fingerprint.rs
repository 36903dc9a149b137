//! The fingerprint of the machine when nothing runs on it. Taken once before the first generation and compared after the end of each: the
//! next generation starts on a machine like freshly booted, or the machine is rebooted.
//!
//! Processes are not in it: when init has no children left, there are none. Physical network links are not either:
//! they come with their drivers, and keep their addresses over a change of generations.

use crate::cgroups::CGROUPS;
use crate::failure::{Result, fail};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The sysctls that are restored: the parts of /proc/sys that belong to the whole machine.
const SYSCTLS: [&str; 3] = ["/proc/sys/kernel", "/proc/sys/vm", "/proc/sys/fs"];

/// Sysctls that the kernel changes by itself. Those of a namespace are not in the list: init compares in its own namespaces.
const VOLATILE: &str = "ns_last_pid perf_event_max_sample_rate stat_refresh tainted";

/// Files in which every line is a fact. The last two hold state that PID 1 could pass on to its children.
const LISTS: [(&str, &str); 4] = [
    ("the mount", "/proc/self/mounts"),
    ("the swap", "/proc/swaps"),
    ("init's limit", "/proc/self/limits"),
    ("init's oom_score_adj", "/proc/self/oom_score_adj"),
];

pub(crate) struct Fingerprint {
    facts: Vec<String>,
    sysctls: Vec<(Box<Path>, Box<[u8]>)>,
}

impl Fingerprint {
    /// Takes the fingerprint of the machine as it is now.
    pub(crate) fn take() -> Self {
        let mut sysctls = Vec::new();
        for folder in SYSCTLS {
            read_sysctls(Path::new(folder), &mut sysctls);
        }
        sysctls.shrink_to_fit();
        let facts = facts(None);
        Self { facts, sysctls }
    }

    /// Restores the old values of sysctls that have changed.
    pub(crate) fn restore_sysctls(&self) -> Result<()> {
        let changed: Vec<_> = self.sysctls.iter().filter(|it| has_changed(it)).collect();
        for (path, value) in &changed {
            // Some sysctls change others, or refuse a value while another is not restored: only the end result counts.
            let _ = fs::write(path, value);
        }
        match changed.into_iter().find(|sysctl| has_changed(sysctl)) {
            None => Ok(()),
            Some((path, _)) => fail!(Kernel: "{} does not take its old value", path.display()),
        }
    }

    /// Compares the machine with the fingerprint. `ours` is the loop device of an image that is mounted already and ignored. Workloads that
    /// are kept may have made network links, such as those of their pods: the links stay with them.
    pub(crate) fn compare(&self, keep: bool, ours: Option<&str>) -> Result<()> {
        match &differences(&self.facts, facts(ours))[..] {
            [] => Ok(()),
            all if keep && all.iter().all(|it| it.starts_with("the network link")) => Ok(()),
            all => fail!(Kernel: "not as freshly booted: {}", all.join(", ")),
        }
    }
}

fn has_changed((path, value): &(Box<Path>, Box<[u8]>)) -> bool {
    fs::read(path).is_ok_and(|now| now[..] != value[..])
}

fn read_sysctls(folder: &Path, sysctls: &mut Vec<(Box<Path>, Box<[u8]>)>) {
    for (name, path) in entries(folder) {
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if metadata.is_dir() {
            read_sysctls(&path, sysctls);
        } else if metadata.permissions().mode() & 0o600 == 0o600
            && VOLATILE.split(' ').all(|it| it != name)
            // A sysctl that cannot be read now cannot be compared later.
            && let Ok(value) = fs::read(&path)
        {
            sysctls.push((path.into(), value.into()));
        }
    }
}

fn differences(before: &[String], now: Vec<String>) -> Vec<String> {
    let mut differences = Vec::new();
    // Each match is removed, so that duplicates are counted.
    let mut gone = before.to_vec();
    for fact in now {
        match gone.iter().position(|other| *other == fact) {
            Some(at) => drop(gone.swap_remove(at)),
            None => differences.push(format!("{fact} is left")),
        }
    }
    differences.extend(gone.iter().map(|fact| format!("{fact} is gone")));
    differences
}

fn facts(ours: Option<&str>) -> Vec<String> {
    let mut facts = Vec::new();
    for (what, path) in LISTS {
        let list = fs::read_to_string(path).unwrap_or_default();
        facts.extend(list.lines().map(|line| format!("{what} {line}")));
    }
    for (name, path) in entries(Path::new("/sys/block")) {
        let attached = path.join("loop/backing_file").exists() && ours != Some(&name);
        if attached || name.starts_with("dm-") || name.starts_with("md") {
            facts.push(format!("the block device {name}"));
        }
    }
    for (name, path) in entries(Path::new("/sys/class/net")) {
        if path.is_dir() && !path.join("device").exists() {
            facts.push(format!("the network link {name}"));
        }
    }
    for (name, path) in entries(Path::new(CGROUPS)) {
        if path.is_dir() {
            facts.push(format!("the cgroup {name}"));
        }
    }
    facts
}

/// The entries of a folder: names and paths.
pub(crate) fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = |entry: fs::DirEntry| (entry.file_name().to_string_lossy().into(), entry.path());
    entries.map(named).collect()
}

#[cfg(test)]
mod tests;
