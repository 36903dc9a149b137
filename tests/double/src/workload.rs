//! A process in the workload domain, like a container: in its cgroup, with a root of its own and a program outside of
//! any image.

use crate::report::report;
use anyhow::{Context, Result};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::pivot_root;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount,
};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::Duration;

const CGROUP: &str = "/sys/fs/cgroup/workloads/one";
/// The workload's record: its process and the process's start time.
const RECORD: &str = "/run/workloads/one";

/// Starts the workload. A `stuck` one keeps the image busy that it was started from.
pub(crate) fn start(stuck: bool) -> Result<()> {
    fs::create_dir_all(CGROUP)?;
    let mut program = File::from(memfd_create("workload", MemfdFlags::empty())?);
    program.write_all(&fs::read("/sbin/machined")?)?;
    let child = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd()))
        .arg(if stuck { "stuck-workload" } else { "workload" })
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("start the workload")?;
    fs::write(format!("{CGROUP}/cgroup.procs"), child.id().to_string())?;
    // The workload is ready once it sees nothing of the image any more.
    let root = format!("/proc/{}/root/sbin/machined", child.id());
    while !stuck && Path::new(&root).exists() {
        sleep(Duration::from_millis(10));
    }
    fs::write(RECORD, identity(child.id())?)?;
    report!("a workload runs");
    Ok(())
}

/// Reports the workload's state.
pub(crate) fn look() -> Result<()> {
    let record = fs::read_to_string(RECORD).unwrap_or_default();
    let pid = record.split(' ').next().and_then(|pid| pid.parse().ok());
    let lives = pid.is_some_and(|pid| identity(pid).is_ok_and(|now| now == record));
    let kept = fs::read_dir("/sys/fs/cgroup/workloads")?
        .flatten()
        .filter(|entry| entry.path().is_dir())
        .count();
    report!(
        "the workload {}, cgroups={kept}",
        if lives { "lives" } else { "is gone" }
    );
    Ok(())
}

/// Returns the process's number and start time (field 22 of proc_pid_stat(5)); an error for a dead process.
fn identity(pid: u32) -> Result<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, fields) = stat.rsplit_once(") ").context("no name in stat")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    anyhow::ensure!(fields.first() != Some(&"Z"), "it is dead");
    Ok(format!(
        "{pid} {}",
        fields.get(19).context("no start time")?
    ))
}

/// Leaves the generation's mounts, and stays.
pub(crate) fn be(stuck: bool) -> Result<ExitCode> {
    if !stuck {
        unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC)?;
        mount_change(
            "/",
            MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
        )?;
        mount("tmpfs", "/run", "tmpfs", MountFlags::empty(), None)?;
        fs::create_dir("/run/old")?;
        pivot_root("/run", "/run/old")?;
        std::env::set_current_dir("/")?;
        unmount("/old", UnmountFlags::DETACH)?;
    }
    loop {
        sleep(Duration::from_secs(3600));
    }
}
