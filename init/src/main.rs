//! PID 1. It verifies the root filesystem, starts machined in a generation of its own, and stays: it reaps, waits for
//! a verdict about each generation, and starts the next, the previous, or the machine again. It never exits and never
//! gives up: every failure has a next step, and the console says which and why.
//!
//! It knows nothing about disks, networks, configurations or policies; they are machined's.
//!
//! - `boot` below: from the kernel to the first generation.
//! - `supervisor`: carries out the decisions of `verdict` from then on.
//! - `generation`: start and end of one; `workloads`: the processes that may outlive it; `fingerprint`: the check that it leaves nothing
//!   behind.
//!
//! The decision: PID 1 has so few lines that it need not change when the system does, and waits for one thing at a time in one thread. An init
//! that also supervises services was the other choice: each change of theirs would need a reboot, and each of their bugs could be PID 1's.

#![cfg_attr(not(test), no_main)]
// Tests do not call `boot`, so most of the rest is unused in them.
#![cfg_attr(test, allow(dead_code))]

mod cgroups;
mod console;
mod ending;
mod failure;
mod fingerprint;
mod generation;
mod kept;
mod link;
mod modules;
mod reaper;
mod rootfs;
mod supervisor;
mod sys;
mod verdict;
mod watchdog;
mod workloads;

use cgroups::{CGROUPS, enable_controllers};
use console::complain;
use ending::reboot_because;
use failure::{Result, Step};
use rootfs::Image;
use rustix::mount::{MountFlags, mount};
use std::convert::Infallible;
use std::fs;
use std::time::Duration;
use supervisor::Supervisor;
use watchdog::Watchdog;

/// Default deadline of the first generation; the kernel arguments may set another.
const BOOT_DEADLINE: Duration = Duration::from_secs(300);

/// The entry point that the kernel starts. It does not return.
fn boot() -> ! {
    std::panic::set_hook(Box::new(|panic| {
        reboot_because(format_args!("this is a bug: {panic}"))
    }));
    let Err(failure) = start();
    reboot_because(failure)
}

/// The boot, from top to bottom.
fn start() -> Result<Infallible> {
    mount_special_filesystems()?;
    sys::occupy_low_descriptors();
    console::open();

    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let (deadline, watchdog) = arguments(&line);
    // The start waits for all CPUs again and again, and need not wait long; machined ends this after the boot.
    let _ = fs::write("/sys/kernel/rcu_expedited", "1");
    modules::load();
    let image = Image::of_initramfs()?;
    enable_controllers(CGROUPS);
    fs::create_dir("/new").step("make /new")?;
    workloads::make()?;
    Supervisor::new(image, deadline, watchdog)?.run()
}

fn mount_special_filesystems() -> Result<()> {
    let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let delegation = c"nsdelegate,memory_recursiveprot";
    for (kind, path, flags, data) in [
        ("proc", "/proc", quiet, c""),
        ("sysfs", "/sys", quiet, c""),
        ("devtmpfs", "/dev", MountFlags::NOSUID, c"mode=0755"),
        ("cgroup2", CGROUPS, quiet, delegation),
    ] {
        // Below /sys the kernel has made it.
        let _ = fs::create_dir(path);
        mount(kind, path, kind, flags, data).step(format_args!("mount {path}"))?;
    }
    Ok(())
}

/// Reads init's kernel arguments: the time limit for the first generation to report healthy, and whether to look for a watchdog. The last
/// one of a name wins. An invalid one is logged and ignored: it must not keep a machine from booting.
fn arguments(line: &str) -> (Duration, Watchdog) {
    let (mut deadline, mut watchdog) = (BOOT_DEADLINE, Watchdog::Absent);
    for argument in line.split_ascii_whitespace() {
        match argument.split_once('=') {
            Some(("instar.boot-deadline", seconds)) => match seconds.parse() {
                Ok(seconds @ 1..=86_400) => deadline = Duration::from_secs(seconds),
                _ => complain!("{argument}: not a number of seconds from 1 to 86400; ignored"),
            },
            Some(("instar.watchdog", "off")) => watchdog = Watchdog::Off,
            Some(("instar.watchdog", _)) => complain!("{argument}: can only be 'off'; ignored"),
            _ => {}
        }
    }
    (deadline, watchdog)
}

#[cfg(test)]
mod tests;
