//! What a machine looks like when nothing runs on it. Taken once before the first generation and compared after the
//! end of each: a next generation starts on a machine like freshly booted, or the machine is rebooted.
//!
//! Processes are not in it: when init has no children left, there are none. Physical network links are not either:
//! they come with their drivers, and keep their addresses over a change of generations.

use crate::failure::{Failure, Result, Step};
use instar_init_protocol::ErrorCode;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The sysctls that are restored: what of /proc/sys belongs to the whole machine.
const SYSCTLS: [&str; 3] = ["/proc/sys/kernel", "/proc/sys/vm", "/proc/sys/fs"];

/// What the kernel moves by itself. What belongs to a namespace need not be here: init compares in its own.
const VOLATILE: [&str; 4] = [
    "ns_last_pid",
    "perf_event_max_sample_rate",
    "stat_refresh",
    "tainted",
];

/// What there is of each kind.
type Facts = [(&'static str, Vec<String>); 5];

/// A sysctl and its value.
pub(crate) struct Sysctl {
    path: Box<Path>,
    value: Box<[u8]>,
}

/// The state of the machine.
pub(crate) struct Fingerprint {
    facts: Facts,
    sysctls: Vec<Sysctl>,
}

impl Fingerprint {
    /// Takes the fingerprint of the machine as it is now.
    pub(crate) fn take() -> Self {
        let mut sysctls = Vec::new();
        for folder in SYSCTLS {
            read_sysctls(Path::new(folder), &mut sysctls);
        }
        sysctls.shrink_to_fit();
        Self {
            facts: facts(None),
            sysctls,
        }
    }

    /// The sysctls that have another value now. Cheap enough to be asked on the way to a next generation.
    pub(crate) fn changed_sysctls(&self) -> Vec<&Sysctl> {
        let changed =
            |sysctl: &&Sysctl| fs::read(&sysctl.path).is_ok_and(|now| *now != *sysctl.value);
        self.sysctls.iter().filter(changed).collect()
    }

    /// Compares the machine with the fingerprint. `ours` is the loop device of an image that is mounted already.
    pub(crate) fn compare(&self, ours: Option<&str>) -> Result<()> {
        let differences = differences(&self.facts, &facts(ours));
        if differences.is_empty() {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::Kernel,
            format_args!("not as freshly booted: {}", differences.join(", ")),
        ))
    }
}

impl Sysctl {
    /// Gives it back the value that it had.
    pub(crate) fn restore(&self) -> Result<()> {
        let path = self.path.display();
        fs::write(&self.path, &self.value).step(format_args!("restore {path}"))?;
        match fs::read(&self.path) {
            Ok(value) if *value == *self.value => Ok(()),
            _ => Err(Failure::new(
                ErrorCode::Kernel,
                format_args!("{path} does not take its old value"),
            )),
        }
    }
}

fn differences(before: &Facts, now: &Facts) -> Vec<String> {
    let mut differences = Vec::new();
    for ((what, before), (_, now)) in before.iter().zip(now) {
        // Removing what is matched tells two of the same from one.
        let mut gone = before.clone();
        for item in now {
            match gone.iter().position(|other| other == item) {
                Some(at) => drop(gone.swap_remove(at)),
                None => differences.push(format!("{what} {item} is left")),
            }
        }
        differences.extend(gone.iter().map(|item| format!("{what} {item} is gone")));
    }
    differences
}

fn read_sysctls(folder: &Path, sysctls: &mut Vec<Sysctl>) {
    for (name, path) in entries(folder) {
        if VOLATILE.contains(&name.as_str()) {
            continue;
        }
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if metadata.is_dir() {
            read_sysctls(&path, sysctls);
        } else if metadata.permissions().mode() & 0o600 == 0o600 {
            // One that cannot be read now cannot be compared later.
            if let Ok(value) = fs::read(&path) {
                sysctls.push(Sysctl {
                    path: path.into(),
                    value: value.into(),
                });
            }
        }
    }
}

fn facts(ours: Option<&str>) -> Facts {
    let lines = |path: &str| {
        fs::read_to_string(path)
            .unwrap_or_default()
            .lines()
            .map(str::to_owned)
            .collect()
    };
    let in_use = |name: &str, path: &Path| {
        let loop_in_use = name.starts_with("loop") && path.join("loop/backing_file").exists();
        (loop_in_use && ours != Some(name)) || name.starts_with("dm-") || name.starts_with("md")
    };
    let named = |folder: &str, keep: &dyn Fn(&str, &Path) -> bool| {
        let entries = entries(Path::new(folder)).into_iter();
        entries
            .filter(|(name, path)| keep(name, path))
            .map(|(name, _)| name)
            .collect()
    };
    [
        ("the mount", lines("/proc/self/mounts")),
        ("the swap", lines("/proc/swaps")),
        ("the block device", named("/sys/block", &in_use)),
        (
            "the network link",
            named("/sys/class/net", &|_, path| {
                path.is_dir() && !path.join("device").exists()
            }),
        ),
        (
            "the cgroup",
            named("/sys/fs/cgroup", &|_, path| path.is_dir()),
        ),
    ]
}

fn entries(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            (
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests;
