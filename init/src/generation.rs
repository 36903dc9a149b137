//! Birth and death of a generation: one set of namespaces, one cgroup, one squashfs, one machined.
//!
//! init itself goes into the namespaces of the generation, so that `/proc/1/root` shows what people and host tools
//! expect, and comes back through the descriptors of its own namespaces. It must therefore be the last one in there,
//! and hold no descriptor into it.

use crate::console::say;
use crate::failure::{Failure, Result, Step};
use crate::link::Link;
use crate::reaper::{Reaped, Reaper};
use crate::rootfs::MountedImage;
use crate::sys;
use crate::watchdog::Watchdog;
use instar_init_protocol::{BootId, ErrorCode};
use rustix::mount::{
    MountPropagationFlags, MoveMountFlags, mount_bind, mount_change, mount_move, move_mount,
};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, chdir, chroot, getrlimit, kill_process, setrlimit,
};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::move_into_link_name_space;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use sys_mount::{Mount, MountFlags};

/// Where the cgroups are.
pub(crate) const CGROUPS: &str = "/sys/fs/cgroup";

/// What lasts longer than this after SIGKILL waits for a device that does not answer.
pub(crate) const DYING: Duration = Duration::from_secs(10);

/// What init comes back to: its own namespaces, and the limits that the kernel gave it.
pub(crate) struct Home {
    namespaces: Vec<(&'static str, File)>,
    limits: Vec<(Resource, Rlimit)>,
}

/// A running generation.
pub(crate) struct Generation {
    /// 1 at boot, counts up.
    pub(crate) number: u64,
    pub(crate) boot_id: BootId,
    /// Nobody while it is dead.
    pub(crate) machined: Option<Pid>,
    pub(crate) link: Link,
    cgroup: Cgroup,
}

/// The files of the generation's cgroups, opened before anybody could hide them.
struct Cgroup {
    kill: File,
    kill_machined: File,
    machined_procs: File,
}

impl Home {
    /// To be called in the initramfs, before the first generation.
    pub(crate) fn new() -> Result<Self> {
        let namespaces = ["mnt", "uts", "ipc"].map(|name| {
            let path = format!("/proc/self/ns/{name}");
            File::open(&path)
                .step(format_args!("open {path}"))
                .map(|file| (name, file))
        });
        let limits = [
            Resource::As,
            Resource::Core,
            Resource::Cpu,
            Resource::Data,
            Resource::Fsize,
            Resource::Locks,
            Resource::Memlock,
            Resource::Msgqueue,
            Resource::Nice,
            Resource::Nofile,
            Resource::Nproc,
            Resource::Rss,
            Resource::Rtprio,
            Resource::Rttime,
            Resource::Sigpending,
            Resource::Stack,
        ];
        Ok(Self {
            namespaces: namespaces.into_iter().collect::<Result<_>>()?,
            limits: limits
                .map(|resource| (resource, getrlimit(resource)))
                .to_vec(),
        })
    }

    /// Goes back to the initramfs; root and working directory go with the mount namespace.
    fn return_to(&self) -> Result<()> {
        for (name, file) in &self.namespaces {
            move_into_link_name_space(file.as_fd(), None)
                .step(format_args!("return to init's {name} namespace"))?;
        }
        Ok(())
    }

    /// Undoes what a generation may have done to PID 1, and its children would inherit.
    fn restore_limits(&self) {
        for (resource, limit) in &self.limits {
            // It can only fail for want of a privilege that init has.
            let _ = setrlimit(*resource, *limit);
        }
        let _ = fs::write("/proc/self/oom_score_adj", "0");
    }
}

impl Generation {
    /// Makes a generation of a mounted image, enters it and starts machined. When that fails, init is back home.
    pub(crate) fn start(number: u64, image: &MountedImage, home: &Home) -> Result<Self> {
        let mut random = [0; 16];
        getrandom(&mut random, GetRandomFlags::empty()).step("get random bytes")?;
        let boot_id = BootId::from_random(random);
        let started = Cgroup::new(number).and_then(|cgroup| {
            enter(image, &boot_id)?;
            say!("generation {number} starts, boot id {boot_id}");
            let (machined, link) = start_machined(&cgroup, home)?;
            Ok(Self {
                number,
                boot_id,
                machined: Some(machined),
                link,
                cgroup,
            })
        });
        if started.is_err() {
            home.return_to()?;
            remove_cgroups(Path::new(CGROUPS));
        }
        started
    }

    /// Starts machined again. What it started goes on running; its own helpers do not.
    pub(crate) fn restart_machined(&mut self, home: &Home) -> Result<()> {
        rustix::io::write(&self.cgroup.kill_machined, b"1")
            .step("kill what is left of machined")?;
        let (machined, link) = start_machined(&self.cgroup, home)?;
        self.machined = Some(machined);
        self.link = link;
        Ok(())
    }

    /// Kills machined; the reaper will find it.
    pub(crate) fn kill_machined(&self) {
        if let Some(pid) = self.machined {
            // It may have died by itself meanwhile.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Ends everything in the generation and leaves it. What stays alive is an error: only a reboot helps.
    pub(crate) fn end(self, home: &Home, reaper: &Reaper, watchdog: &mut Watchdog) -> Result<()> {
        let Self { cgroup, link, .. } = self;
        drop(link);
        let begin = Instant::now();
        loop {
            // The second kill catches what moved itself into another cgroup.
            let _ = rustix::io::write(&cgroup.kill, b"1");
            let _ = rustix::process::kill_process_group(Pid::INIT, Signal::KILL);
            if reap_all(reaper) {
                break;
            }
            if begin.elapsed() > DYING {
                let children = fs::read_to_string("/proc/self/task/1/children").unwrap_or_default();
                let text = format_args!("processes do not die: {}", children.trim());
                return Err(Failure::new(ErrorCode::Kernel, text));
            }
            reaper.wait(None, Duration::from_millis(100));
            watchdog.feed();
        }
        drop(cgroup);
        home.return_to()?;
        remove_cgroups(Path::new(CGROUPS));
        Ok(())
    }
}

/// Whether all processes are gone.
fn reap_all(reaper: &Reaper) -> bool {
    loop {
        match reaper.reap() {
            Reaped::Exit(..) => {}
            Reaped::NothingYet => return false,
            Reaped::NobodyLeft => return true,
        }
    }
}

/// The namespaces and mounts of a generation, in the order that the kernel wants. From here on this process sees the
/// generation's root.
fn enter(image: &MountedImage, boot_id: &BootId) -> Result<()> {
    sys::enter_new_namespaces().step("make the namespaces")?;
    move_mount(
        &image.mount,
        "",
        rustix::fs::CWD,
        "/new",
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .step("attach the image")?;
    // Moving changes this namespace only: init's own keeps its mounts.
    for name in ["proc", "sys", "dev"] {
        mount_move(format!("/{name}"), format!("/new/{name}"))
            .step(format_args!("move /{name}"))?;
    }
    Mount::builder()
        .fstype("tmpfs")
        .flags(MountFlags::NOSUID | MountFlags::NODEV)
        .data("mode=0755")
        .mount("tmpfs", "/new/run")
        .step("mount /run")?;
    fs::write("/new/run/boot-id", format!("{boot_id}\n")).step("write /run/boot-id")?;
    mount_bind("/new/run/boot-id", "/new/proc/sys/kernel/random/boot_id")
        .step("show the boot id")?;
    // pivot_root cannot move away from the initramfs; moving the mount over it can.
    chdir("/new").step("enter the image")?;
    mount_move(".", "/").step("make the image the root")?;
    chroot(".").step("make the image the root directory")?;
    chdir("/").step("enter the new root")?;
    // Only now: shared earlier, the moves would reach init's own namespace.
    mount_change(
        "/",
        MountPropagationFlags::SHARED | MountPropagationFlags::REC,
    )
    .step("share the mounts")
}

fn start_machined(cgroup: &Cgroup, home: &Home) -> Result<(Pid, Link)> {
    let (link, socket) = Link::new()?;
    home.restore_limits();
    let mut command = Command::new("/sbin/machined");
    command
        .env_clear()
        .env("PATH", "/usr/bin:/usr/sbin:/bin:/sbin")
        .stdin(Stdio::null());
    let child =
        sys::spawn(&mut command, &socket, &cgroup.machined_procs).step("start /sbin/machined")?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new(ErrorCode::Kernel, "machined has no process id"))?;
    Ok((pid, link))
}

impl Cgroup {
    fn new(number: u64) -> Result<Self> {
        let root = Path::new(CGROUPS);
        let generation = root.join(format!("generation.{number}"));
        let machined = generation.join("machined");
        fs::create_dir(&generation).step(format_args!("make {}", generation.display()))?;
        enable_controllers(&generation);
        fs::create_dir(&machined).step(format_args!("make {}", machined.display()))?;
        let open = |path: &Path, name| {
            let path = path.join(name);
            File::options()
                .write(true)
                .open(&path)
                .step(format_args!("open {}", path.display()))
        };
        Ok(Self {
            kill: open(&generation, "cgroup.kill")?,
            kill_machined: open(&machined, "cgroup.kill")?,
            machined_procs: open(&machined, "cgroup.procs")?,
        })
    }
}

/// Turns on the controllers for the children of a cgroup. A kernel without one of them still boots.
pub(crate) fn enable_controllers(cgroup: &Path) {
    for controller in ["+cpu", "+io", "+memory", "+pids"] {
        let _ = fs::write(cgroup.join("cgroup.subtree_control"), controller);
    }
}

/// Removes the cgroups below one, children first. What cannot be removed shows in the fingerprint.
pub(crate) fn remove_cgroups(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroups(&entry.path());
            let _ = fs::remove_dir(entry.path());
        }
    }
}
