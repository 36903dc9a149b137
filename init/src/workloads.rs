//! The workload domain: a cgroup and a tmpfs that last from the boot to the end of the kernel. What machined puts there lives through a
//! change of generations when the one who asks for the next generation says so; otherwise it ends with everything else. init neither
//! knows nor lists what is in it.

use crate::failure::{Result, Step};
use crate::generation::{CGROUPS, enable_controllers, remove_cgroups};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;

/// The cgroup, by its name in the hierarchy.
const NAME: &str = "workloads";

/// The tmpfs, in init's own namespace. A generation sees it below /run.
pub(crate) const MEMORY: &str = "/workloads";

/// To be called before the fingerprint is taken: the domain belongs to the machine.
pub(crate) fn make() -> Result<()> {
    let cgroup = format!("{CGROUPS}/{NAME}");
    fs::create_dir(&cgroup).step("make the cgroup of workloads")?;
    enable_controllers(&cgroup);
    fs::create_dir(MEMORY).step("make /workloads")?;
    let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", MEMORY, "tmpfs", quiet, c"mode=0700").step("mount /workloads")
}

/// Removes the cgroups whose processes are dead. Those of workloads that are kept are not looked at: empty ones belong to somebody.
pub(crate) fn sweep_cgroups(keep: bool) {
    for entry in fs::read_dir(CGROUPS).into_iter().flatten().flatten() {
        let is_domain = entry.file_name() == NAME;
        if is_domain && keep || !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        remove_cgroups(entry.path());
        if !is_domain {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The processes of the machine, but init and the kernel's threads.
#[derive(Default)]
pub(crate) struct Processes {
    /// Those of workloads.
    pub(crate) kept: Vec<Pid>,
    /// Whether there is another one, even a dead one that nobody has reaped.
    pub(crate) others: bool,
}

/// Kills every process that is none of the workloads', and tells what there was.
pub(crate) fn kill_others() -> Processes {
    let mut found = Processes::default();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|it| it.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw) else {
            continue;
        };
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // Behind the name come the state and the parent (proc_pid_stat(5)): 0 for init and kthreadd, 2 for all other kernel threads.
        let parent = stat.rsplit(") ").next().and_then(|it| it.split(' ').nth(1));
        if matches!(parent, None | Some("0" | "2")) {
            continue;
        }
        let cgroup = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        if cgroup.starts_with("0::/workloads/") {
            found.kept.push(pid);
        } else {
            let _ = kill_process(pid, Signal::KILL);
            found.others = true;
        }
    }
    found
}
