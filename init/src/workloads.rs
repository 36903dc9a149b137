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

/// Kills every process with a program, but init and the workloads; tells whether there was one. Kernel threads have no program, and
/// what is dead has none any more.
pub(crate) fn kill_others() -> bool {
    let mut any = false;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|it| it.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw).filter(|pid| !pid.is_init()) else {
            continue;
        };
        let has_program = fs::read_link(entry.path().join("exe")).is_ok();
        let cgroup = fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
        if has_program && !cgroup.starts_with("0::/workloads/") {
            let _ = kill_process(pid, Signal::KILL);
            any = true;
        }
    }
    any
}
