//! Which files clients may read.
//!
//! - On **filesystems that hold data**: everything but the places of secrets. Those are STATE (the machine config with the authority's
//!   key), machined's sockets and bundles, and the container runtime's own files (both repeat a container's environment).
//! - On **filesystems that the kernel generates**: the files that every user of the machine could read, by the file's mode.
//!   Root alone may read `/proc/kcore`, the machine config in QEMU's firmware configuration, and the keys of TCP Fast Open and stable
//!   addresses.
//! - Of **processes**: the files of a short list, without memory, environment, descriptors and roots.
//! - On **other filesystems**: nothing. Examples are debugfs, and those whose answers come from a process (FUSE).

use std::path::Path;

use crate::disk::STATE;

/// Kinds of filesystems, by their numbers in statfs(2) (linux/magic.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Filesystem {
    /// Holds files that a program wrote.
    Data,
    /// /proc.
    Processes,
    /// Files that the kernel generates, for example in /sys.
    Kernel,
    /// Device nodes: they can be listed but not read.
    Devices,
    /// Anything else.
    Other,
}

impl Filesystem {
    /// Converts `f_type` of statfs(2).
    pub(super) fn from_magic(magic: i64) -> Self {
        match magic {
            // squashfs, ext2/3/4, tmpfs (devtmpfs too), overlayfs, XFS, btrfs, FAT, ISO 9660, ramfs
            0x7371_7368 | 0xEF53 | 0x0102_1994 | 0x794C_7630 | 0x5846_5342 | 0x9123_683E
            | 0x4D44 | 0x9660 | 0x8584_58F6 => Self::Data,
            0x9FA0 => Self::Processes,
            // sysfs, cgroup2, efivarfs
            0x6265_6572 | 0x6367_7270 | 0xDE5E_81E4 => Self::Kernel,
            // devpts
            0x1CD1 => Self::Devices,
            _ => Self::Other,
        }
    }
}

/// Facts about a file, gathered without reading it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    /// Its path from the kernel: absolute, without symbolic links.
    pub(super) path: &'a Path,
    /// The filesystem that it is on.
    pub(super) filesystem: Filesystem,
    /// Whether it is on the filesystem of STATE, wherever that is mounted.
    pub(super) on_state: bool,
    /// Whether it is a directory.
    pub(super) directory: bool,
    /// Whether its mode lets all users read it.
    pub(super) for_everybody: bool,
}

/// Directories of secrets, by path. Their names can be listed; their contents are hidden.
const SECRET: [&str; 4] = [
    STATE,
    "/run/machined",
    // Bundles of containers, and crun's copies of them.
    "/run/workloads",
    "/run/crun",
];

/// Files in /proc/PID that tell as much about a process as `ps` would.
const OF_A_PROCESS: [&str; 24] = [
    "autogroup",
    "cgroup",
    "cmdline",
    "comm",
    "cpuset",
    "gid_map",
    "limits",
    "loginuid",
    "mountinfo",
    "mounts",
    "mountstats",
    "oom_adj",
    "oom_score",
    "oom_score_adj",
    "sched",
    "schedstat",
    "sessionid",
    "setgroups",
    "smaps_rollup",
    "stat",
    "statm",
    "status",
    "uid_map",
    "wchan",
];

/// Files in /proc that show more to root than to others, in spite of their mode (kallsyms, keys), and one that never ends (kmsg).
const ROOTS_VIEW: [&str; 3] = ["kallsyms", "kmsg", "keys"];

/// Returns whether callers may read the content of a file (or list a directory). A hidden file is still listed in its directory.
pub(super) fn gives_out(facts: &Facts<'_>) -> bool {
    if !facts.path.is_absolute() || facts.on_state || is_secret(facts.path) {
        return false;
    }
    match facts.filesystem {
        Filesystem::Data => true,
        Filesystem::Devices => facts.directory,
        Filesystem::Kernel => facts.for_everybody,
        Filesystem::Processes => {
            facts.for_everybody && is_open_in_proc(facts.path, facts.directory)
        }
        Filesystem::Other => false,
    }
}

fn is_secret(path: &Path) -> bool {
    SECRET.iter().any(|secret| path.starts_with(secret))
}

fn is_open_in_proc(path: &Path, directory: bool) -> bool {
    // A /proc that is mounted elsewhere belongs to a container.
    let Ok(below) = path.strip_prefix("/proc") else {
        return false;
    };
    let mut parts = below.iter().map(|part| part.to_string_lossy());
    let Some(first) = parts.next() else {
        return true;
    };
    if !first.bytes().all(|byte| byte.is_ascii_digit()) {
        return !ROOTS_VIEW.contains(&first.as_ref());
    }
    let rest: Vec<_> = parts.collect();
    let rest: Vec<&str> = rest.iter().map(AsRef::as_ref).collect();
    is_open_of_process(&rest, directory)
}

/// Decides about the rest of a path after /proc/PID or /proc/PID/task/TID.
fn is_open_of_process(rest: &[&str], directory: bool) -> bool {
    match rest {
        [] => directory,
        ["task" | "fdinfo"] => directory,
        // The flags of a descriptor, but not the file that it is open on.
        ["fdinfo", _] => true,
        ["task", _, rest @ ..] => is_open_of_process(rest, directory),
        // The sockets and devices of the process's network namespace.
        ["net", ..] => true,
        [file] => !directory && OF_A_PROCESS.contains(file),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, filesystem: Filesystem) -> Facts<'_> {
        Facts {
            path: Path::new(path),
            filesystem,
            on_state: false,
            directory: false,
            for_everybody: true,
        }
    }

    #[test]
    fn data_is_given_out_but_for_the_places_of_secrets() {
        for path in [
            "/var/secret",
            "/etc/os-release",
            "/run/generation",
            "/system/statement",
        ] {
            assert!(gives_out(&of(path, Filesystem::Data)), "{path}");
        }
        for path in [
            "/system/state",
            "/system/state/config.yaml",
            "/system/state/config.yaml (deleted)",
            "/run/machined/containers/x/config.json",
            "/run/crun/x/config.json",
            // The kernel's path of a file outside of our root.
            "(unreachable)/etc/passwd",
        ] {
            assert!(!gives_out(&of(path, Filesystem::Data)), "{path}");
        }
    }

    #[test]
    fn state_is_secret_wherever_it_is_mounted() {
        let facts = Facts {
            on_state: true,
            ..of("/var/mnt/bound/config.yaml", Filesystem::Data)
        };
        assert!(!gives_out(&facts));
    }

    #[test]
    fn of_processes_only_what_ps_shows() {
        for path in [
            "/proc/meminfo",
            "/proc/sys/kernel/random/boot_id",
            "/proc/bus/pci/devices",
            "/proc/1/status",
            "/proc/12/task/13/stat",
            "/proc/12/net/tcp",
            "/proc/12/cmdline",
            "/proc/1/fdinfo/3",
        ] {
            assert!(gives_out(&of(path, Filesystem::Processes)), "{path}");
        }
        for path in [
            "/proc/1/mem",
            "/proc/1/environ",
            "/proc/1/maps",
            "/proc/1/auxv",
            "/proc/1/root",
            "/proc/1/cwd",
            "/proc/1/fd/3",
            "/proc/1/map_files/0-1",
            "/proc/1/attr/current",
            "/proc/12/task/13/mem",
            "/proc/12/task/13/task/1/mem",
            "/proc/12/ns/net",
            "/proc/kallsyms",
            "/proc/kmsg",
            // The /proc of a container.
            "/var/lib/x/proc/meminfo",
        ] {
            assert!(!gives_out(&of(path, Filesystem::Processes)), "{path}");
        }
        for (path, open) in [
            ("/proc", true),
            ("/proc/1", true),
            ("/proc/1/task", true),
            ("/proc/1/task/1", true),
            ("/proc/1/net", true),
            ("/proc/sys", true),
            ("/proc/1/fd", false),
            ("/proc/1/ns", false),
            ("/proc/1/map_files", false),
        ] {
            let facts = Facts {
                directory: true,
                ..of(path, Filesystem::Processes)
            };
            assert_eq!(gives_out(&facts), open, "{path}");
        }
    }

    #[test]
    fn of_the_kernel_only_what_is_for_everybody() {
        for filesystem in [Filesystem::Kernel, Filesystem::Processes] {
            let facts = Facts {
                for_everybody: false,
                ..of("/proc/kcore", filesystem)
            };
            assert!(!gives_out(&facts));
        }
        assert!(gives_out(&of(
            "/sys/class/net/eth0/mtu",
            Filesystem::Kernel
        )));
        assert!(!gives_out(&of("/sys/kernel/debug/x", Filesystem::Other)));
    }
}
