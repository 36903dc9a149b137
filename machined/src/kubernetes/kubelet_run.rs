//! The run of kubelet that is going on, as kubernetes-init tells it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use instar_kubernetes_plan::STATUS;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::time::{ClockId, clock_gettime};

use super::container_root::container_root;
use super::control;
use super::status_file::read_status;
use crate::services::Cgroup;

/// The service's name in the status.
const KUBELET: &str = "kubelet";
/// Limit on a process's line of figures, in bytes.
const LONGEST_STAT: u64 = 4096;

/// One run of kubelet: the values differ from those of the next run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KubeletRun {
    /// Its process, by its number in the container.
    pub pid: Option<u32>,
    /// The number of its starts after the first one in this container.
    pub restarts: u64,
}

/// Reads the run of kubelet; `None` while there is no status, or none of kubelet. Blocks.
pub fn kubelet_run() -> Option<KubeletRun> {
    read(&control().join(STATUS))
}

fn read(status: &Path) -> Option<KubeletRun> {
    let status = read_status(status).unwrap_or_else(|error| {
        tracing::warn!("nobody knows whether kubelet has started again: {error:#}");
        None
    });
    let kubelet = status?.services.remove(KUBELET)?;
    Some(KubeletRun {
        pid: kubelet.pid,
        restarts: kubelet.restarts,
    })
}

/// Returns for how long kubelet's process has been running, by a clock that nobody sets; `None` if it does not run. `container`: the first
/// process of the container of Kubernetes, which runs in this cgroup. Blocks.
///
/// # Errors
/// The container's processes cannot be read.
pub fn kubelet_age(container: u32, cgroup: &Cgroup) -> io::Result<Option<Duration>> {
    let Some(pid) = kubelet_run().and_then(|run| run.pid) else {
        return Ok(None);
    };
    let Some(root) = container_root(container, cgroup)? else {
        return Ok(None);
    };
    // The number is one of the container's own, so its /proc is read.
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let opened = openat2(
        &root,
        format!("proc/{pid}/stat"),
        flags,
        Mode::empty(),
        resolve,
    );
    let stat = match opened.map_err(io::Error::from) {
        Ok(stat) => stat,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    File::from(stat)
        .take(LONGEST_STAT)
        .read_to_string(&mut text)?;
    Ok(age(&text))
}

/// Returns the age of a process from its line of figures (proc_pid_stat(5)).
fn age(stat: &str) -> Option<Duration> {
    // The command may hold blanks and parentheses. Behind it, the start is the twentieth figure.
    let (_, figures) = stat.rsplit_once(") ")?;
    let ticks: u64 = figures.split_whitespace().nth(19)?.parse().ok()?;
    let since_boot = ticks / rustix::param::clock_ticks_per_second().max(1);
    let now = clock_gettime(ClockId::Boottime).tv_sec;
    let now = Duration::from_secs(u64::try_from(now).ok()?);
    now.checked_sub(Duration::from_secs(since_boot))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_age_of_a_process_is_that_of_its_start() {
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(age(&own).unwrap() < Duration::from_secs(24 * 3600));
        let start = |ticks: &str| format!("7 (a) b) S 1 {} {ticks} 99", "0 ".repeat(17));
        let up = age(&start("0")).unwrap();
        let later = age(&start("1000")).unwrap();
        let started = 1000 / rustix::param::clock_ticks_per_second();
        assert!(up.abs_diff(later + Duration::from_secs(started)) < Duration::from_secs(5));
        assert_eq!(age(&start(&u64::MAX.to_string())), None);
        assert_eq!(age("7 (a) S 1"), None);
    }

    #[test]
    fn the_run_is_that_of_the_status() {
        let directory = tempfile::tempdir().unwrap();
        let status = directory.path().join(STATUS);
        let written = |text: &str| {
            std::fs::write(&status, text).unwrap();
            read(&status)
        };
        assert_eq!(read(&status), None);
        assert_eq!(written("{"), None);
        assert_eq!(written(r#"{"services":{}}"#), None);
        let service =
            r#"{"extension":"kubernetes","state":"running","pid":40,"since":1,"restarts":2}"#;
        let found = written(&format!(r#"{{"services":{{"kubelet":{service}}}}}"#));
        let expected = KubeletRun {
            pid: Some(40),
            restarts: 2,
        };
        assert_eq!(found, Some(expected));
    }
}
