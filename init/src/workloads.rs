//! The workload domain: a cgroup and a tmpfs that last from the boot to the end of the kernel. The processes and files that machined puts
//! there survive a change of generations if the request for the next generation says so; otherwise they end with everything else. init
//! neither knows nor lists them.

use crate::cgroups::{CGROUPS, enable_controllers, remove_cgroups};
use crate::failure::{Result, Step};
use crate::fingerprint::entries;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;

/// The cgroup, by its name in the hierarchy.
const NAME: &str = "workloads";

/// The tmpfs, in init's own namespace. A generation sees it below /run.
pub(crate) const MEMORY: &str = "/workloads";

/// Makes the domain. Call it before the fingerprint is taken: the domain belongs to the machine.
pub(crate) fn make() -> Result<()> {
    let cgroup = format!("{CGROUPS}/{NAME}");
    fs::create_dir(&cgroup).step("make the cgroup of workloads")?;
    enable_controllers(&cgroup);
    fs::create_dir(MEMORY).step("make /workloads")?;
    let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("tmpfs", MEMORY, "tmpfs", quiet, c"mode=0700").step("mount /workloads")
}

/// Removes the cgroups whose processes are dead. Cgroups of kept workloads are skipped: empty ones are still in use.
pub(crate) fn sweep_cgroups(keep: bool) {
    for (name, path) in entries(Path::new(CGROUPS)) {
        let is_domain = name == NAME;
        if path.is_dir() && !(is_domain && keep) {
            remove_cgroups(&path);
            // A busy cgroup shows in the comparison with the fingerprint.
            let _ = (!is_domain).then(|| fs::remove_dir(path));
        }
    }
}

/// Kills every process but init and the workloads, whose process ids are added to `kept`. Returns whether there was one, even a dead one
/// that is not reaped.
pub(crate) fn kill_others(kept: &mut Vec<Pid>) -> bool {
    let mut any = false;
    for (name, path) in entries(Path::new("/proc")) {
        let read = |file| fs::read_to_string(path.join(file)).unwrap_or_default();
        // Behind the name come the state and the parent (proc_pid_stat(5)): 0 for init and kthreadd, 2 for all other kernel threads.
        let stat = read("stat");
        let parent = stat.rsplit(") ").next().and_then(|it| it.split(' ').nth(1));
        match name.parse().ok().and_then(Pid::from_raw) {
            Some(pid) if read("cgroup").starts_with("0::/workloads/") => kept.push(pid),
            Some(pid) if !matches!(parent, None | Some("0" | "2")) => {
                any |= kill_process(pid, Signal::KILL).is_ok();
            }
            _ => {}
        }
    }
    any
}
