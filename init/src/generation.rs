//! Start and end of a generation: one set of namespaces, one cgroup, one squashfs, one machined.
//!
//! init itself enters the namespaces of the generation, so that `/proc/1/root` shows the root that people and host tools expect, and
//! returns through the descriptors of its own namespaces. It must therefore be the last process in there, and hold no descriptor into it.

use crate::cgroups::Cgroup;
use crate::console::say;
use crate::failure::{Result, Step, fail};
use crate::link::Link;
use crate::reaper::{Exits, Reaper, reap};
use crate::rootfs::MountedImage;
use crate::sys;
use crate::watchdog::Watchdog;
use crate::workloads::{MEMORY, kill_others, sweep_cgroups};
use instar_init_protocol::{BootId, Welcome};
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, mount, mount_bind, mount_change, mount_move,
    move_mount,
};
use rustix::process::{Pid, Signal, chdir, chroot, kill_process, kill_process_group};
use rustix::thread::move_into_link_name_space;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout after SIGKILL: a process that is still alive then waits for a device that does not answer.
const DYING: Duration = Duration::from_secs(10);

/// init's own namespaces, to return to.
pub(crate) struct Home(Vec<File>);

pub(crate) struct Generation {
    /// `None` while machined is dead.
    pub(crate) machined: Option<Pid>,
    pub(crate) link: Link,
    cgroup: Cgroup,
}

impl Home {
    /// Opens the namespaces. Call it in the initramfs, before the first generation.
    pub(crate) fn new() -> Result<Self> {
        let names = ["mnt", "uts", "ipc"].into_iter();
        let files = names.map(|name| File::open(format!("/proc/self/ns/{name}")));
        let files = files.collect::<io::Result<_>>();
        files.map(Self).step("open init's namespaces")
    }

    /// Returns to the initramfs; root and working directory change with the mount namespace.
    fn return_to(&self) -> Result<()> {
        for namespace in &self.0 {
            let entered = move_into_link_name_space(namespace.as_fd(), None);
            entered.step("return to init's namespaces")?;
        }
        Ok(())
    }
}

impl Generation {
    /// Makes a generation of a mounted image, enters it and starts machined. On an error init is back in its own namespaces.
    pub(crate) fn start(welcome: &Welcome, image: &MountedImage, home: &Home) -> Result<Self> {
        let (number, boot_id) = (welcome.generation, &welcome.boot_id);
        let started = Cgroup::new(number).and_then(|cgroup| {
            enter(image, boot_id)?;
            say!("generation {number} starts, boot id {boot_id}");
            let (machined, link) = start_machined(&cgroup)?;
            Ok(Self {
                machined,
                link,
                cgroup,
            })
        });
        if started.is_err() {
            home.return_to()?;
        }
        started
    }

    /// Starts machined again. The processes that it started go on; its own helpers do not.
    pub(crate) fn restart_machined(&mut self) -> Result<()> {
        self.cgroup.kill("machined/")?;
        (self.machined, self.link) = start_machined(&self.cgroup)?;
        Ok(())
    }

    /// Kills machined; the reaper will find it.
    pub(crate) fn kill_machined(&self) {
        // It may have died by itself meanwhile.
        let _ = self.machined.map(|pid| kill_process(pid, Signal::KILL));
    }

    /// Ends all processes in the generation, except workloads to be kept, and leaves it. A process that survives is an error: only a reboot
    /// helps.
    pub(crate) fn end(
        self,
        keep: bool,
        home: &Home,
        reaper: &Reaper,
        watchdog: &mut Watchdog,
    ) -> Result<Exits> {
        let exits = end_processes(Some(&self.cgroup), keep, reaper, watchdog)?;
        drop(self);
        home.return_to()?;
        sweep_cgroups(keep);
        Ok(exits)
    }
}

/// Kills and reaps all processes but init, or all but the workloads; the processes of `cgroup` first.
pub(crate) fn end_processes(
    cgroup: Option<&Cgroup>,
    keep: bool,
    reaper: &Reaper,
    watchdog: &mut Watchdog,
) -> Result<Exits> {
    let (begin, mut exits, mut kept) = (Instant::now(), Exits::new(), Vec::new());
    loop {
        // The second kill catches processes that moved into another cgroup.
        let _ = cgroup.map(|cgroup| cgroup.kill(""));
        let are_others = match keep {
            true => kill_others(&mut kept),
            false => kill_process_group(Pid::INIT, Signal::KILL).is_ok(),
        };
        let mut reaped = reap(None);
        while let Ok(Some(exit)) = reaped {
            exits.push(exit);
            reaped = reap(None);
        }
        if reaped.is_err() || keep && !are_others {
            // machined need not know of the others: they were killed on purpose.
            exits.retain(|(pid, _)| kept.contains(pid));
            return Ok(exits);
        }
        if begin.elapsed() > DYING {
            let children = fs::read_to_string("/proc/self/task/1/children").unwrap_or_default();
            return fail!(Kernel: "processes do not die: {}", children.trim());
        }
        reaper.wait(None, Duration::from_millis(if keep { 1 } else { 100 }));
        watchdog.feed();
    }
}

/// The namespaces and mounts of a generation, in the order that the kernel wants. From here on this process sees the
/// generation's root.
fn enter(image: &MountedImage, boot_id: &BootId) -> Result<()> {
    sys::enter_new_namespaces().step("make the namespaces")?;
    let itself = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(&image.mount, "", CWD, "/new", itself).step("attach the image")?;
    // Moving changes this namespace only: init's own keeps its mounts.
    for name in ["proc", "sys", "dev"] {
        mount_move(format!("/{name}"), format!("/new/{name}"))
            .step(format_args!("move /{name}"))?;
    }
    let quiet = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", "/new/run", "tmpfs", quiet, c"mode=0755").step("mount /run")?;
    fs::create_dir("/new/run/workloads").step("make /run/workloads")?;
    mount_move(MEMORY, "/new/run/workloads").step("move /workloads")?;
    fs::write("/new/run/boot-id", format!("{boot_id}\n")).step("write /run/boot-id")?;
    mount_bind("/new/run/boot-id", "/new/proc/sys/kernel/random/boot_id")
        .step("show the boot id")?;
    // pivot_root cannot move away from the initramfs; moving the mount over it can.
    chdir("/new").step("enter the image")?;
    mount_move(".", "/").step("make the image the root")?;
    chroot(".").step("make the image the root directory")?;
    chdir("/").step("enter the new root")?;
    // Only now: if they were shared earlier, the moves would reach init's own namespace.
    let all_shared = MountPropagationFlags::SHARED | MountPropagationFlags::REC;
    mount_change("/", all_shared).step("share the mounts")
}

/// Reads an id below /proc/sys/kernel/random: `boot_id` is the kernel's own, `uuid` a new one each time.
pub(crate) fn read_boot_id(name: &str) -> Result<BootId> {
    let path = format!("/proc/sys/kernel/random/{name}");
    let id = fs::read_to_string(&path).step(format_args!("read {path}"))?;
    id.trim_end().parse().step(format_args!("use {path}"))
}

fn start_machined(cgroup: &Cgroup) -> Result<(Option<Pid>, Link)> {
    let (link, socket) = Link::new()?;
    let mut command = Command::new("/sbin/machined");
    command
        .env_clear()
        .env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin")
        .stdin(Stdio::null());
    let procs = cgroup.open("machined/cgroup.procs")?;
    let child = sys::spawn(&mut command, socket, procs).step("start /sbin/machined")?;
    Ok((Some(Pid::from_child(&child)), link))
}
