//! The memory of a process of this host.

use anyhow::{Context, Result};

/// Memory in MiB: all that is in RAM, the program's pages too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessMemory {
    /// Now.
    pub now_mib: u64,
    /// The most that it had since it began.
    pub most_mib: u64,
}

impl ProcessMemory {
    pub(super) fn of(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/status");
        let status =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Ok(Self {
            now_mib: mib(&status, "VmRSS:")?,
            most_mib: mib(&status, "VmHWM:")?,
        })
    }
}

fn mib(status: &str, name: &str) -> Result<u64> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib.with_context(|| format!("no {name}"))?.trim().parse()?;
    Ok(kib / 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_had_at_least_the_memory_that_it_has() {
        let own = ProcessMemory::of(std::process::id()).unwrap();
        assert!(0 < own.now_mib && own.now_mib <= own.most_mib, "{own:?}");
    }
}
