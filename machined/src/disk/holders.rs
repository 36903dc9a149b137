//! The processes and mounts that keep a filesystem busy, for errors that name the processes to stop.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use crate::base::mount_table::mounts;

/// A process or mount that keeps a filesystem from being unmounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A process with an open file, a working directory or a program on it.
    Process {
        /// Its PID.
        pid: u32,
        /// Its name.
        name: String,
        /// The file that it holds.
        path: PathBuf,
    },
    /// Another filesystem is mounted below.
    Mount(PathBuf),
    /// A process whose mount namespace still has it mounted.
    Namespace {
        /// Its PID.
        pid: u32,
        /// Its name.
        name: String,
        /// The mount point in that namespace.
        path: PathBuf,
    },
}

/// Limit on the holders in an error; a longer list is of no more help.
const MOST: usize = 8;

/// Lists the holders of the mount at `target`: processes of every namespace by their files, and mounts below it.
pub fn holders(procfs: &Path, target: &Path) -> Vec<Holder> {
    let own_mounts = fs::read_to_string(procfs.join("self/mountinfo")).unwrap_or_default();
    let below =
        mounts(&own_mounts).filter(|mount| mount.at != target && mount.at.starts_with(target));
    let mut found: Vec<Holder> = below.map(|mount| Holder::Mount(mount.at)).collect();
    for (pid, directory) in processes(procfs) {
        let links = ["cwd", "root", "exe"]
            .map(|name| directory.join(name))
            .into_iter();
        let open = fs::read_dir(directory.join("fd"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let held = links
            .chain(open)
            .filter_map(|link| fs::read_link(link).ok())
            .find(|path| path.starts_with(target));
        if let Some(path) = held {
            found.push(Holder::Process {
                pid,
                name: name_of(&directory),
                path,
            });
        }
        if found.len() >= MOST {
            break;
        }
    }
    found
}

/// Lists the processes in whose mount namespace a filesystem of this device (`8:1`) is still mounted.
pub(super) fn still_mounted(procfs: &Path, device: &str) -> Vec<Holder> {
    let mut found = Vec::new();
    for (pid, directory) in processes(procfs) {
        let Ok(table) = fs::read_to_string(directory.join("mountinfo")) else {
            continue;
        };
        if let Some(mount) = mounts(&table).find(|mount| mount.device == device) {
            found.push(Holder::Namespace {
                pid,
                name: name_of(&directory),
                path: mount.at,
            });
        }
        if found.len() >= MOST {
            break;
        }
    }
    found
}

fn processes(procfs: &Path) -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir(procfs).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
}

fn name_of(directory: &Path) -> String {
    fs::read_to_string(directory.join("comm"))
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name, path } => {
                write!(f, "process {pid} ({name}) uses {}", path.display())
            }
            Self::Mount(path) => write!(f, "{} is mounted below it", path.display()),
            Self::Namespace { pid, name, path } => {
                write!(
                    f,
                    "the mount namespace of process {pid} ({name}) has it at {}",
                    path.display()
                )
            }
        }
    }
}

/// Formats the holders for an error.
pub(super) fn list(holders: &[Holder]) -> String {
    match holders {
        [] => "something that /proc does not show".to_owned(),
        some => some
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; "),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::mount_table::mounted_at;

    fn procfs() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        let mountinfo = "22 1 0:20 / / rw - squashfs /dev/loop0 ro\n\
            30 22 254:1 / /var rw,nosuid - ext4 /dev/vda1 rw\n\
            31 30 0:40 / /var/lib/a\\040b rw - tmpfs tmpfs rw\n\
            32 22 0:41 / /variable rw - tmpfs tmpfs rw\n";
        for (pid, name, cwd, file) in [
            ("self", "machined", "/", "/dev/null"),
            ("7", "nginx", "/", "/var/log/x"),
            ("8", "sh", "/variable", "/dev/null"),
        ] {
            let directory = proc.path().join(pid);
            fs::create_dir_all(directory.join("fd")).unwrap();
            fs::write(directory.join("comm"), format!("{name}\n")).unwrap();
            fs::write(
                directory.join("mountinfo"),
                if pid == "8" { "" } else { mountinfo },
            )
            .unwrap();
            std::os::unix::fs::symlink(cwd, directory.join("cwd")).unwrap();
            std::os::unix::fs::symlink(file, directory.join("fd/3")).unwrap();
        }
        proc
    }

    #[test]
    fn holders_are_named() {
        let proc = procfs();
        let found = holders(proc.path(), Path::new("/var"));
        assert_eq!(
            list(&found),
            "/var/lib/a b is mounted below it; process 7 (nginx) uses /var/log/x"
        );
        assert!(holders(proc.path(), Path::new("/opt")).is_empty());
        assert!(list(&[]).contains("does not show"));
    }

    #[test]
    fn other_namespaces_are_seen() {
        let proc = procfs();
        let var = mounted_at(proc.path(), Path::new("/var")).unwrap();
        assert_eq!((&*var.device, &*var.source), ("254:1", "/dev/vda1"));
        assert!(mounted_at(proc.path(), Path::new("/mnt")).is_none());
        let found = still_mounted(proc.path(), "254:1");
        assert_eq!(
            list(&found),
            "the mount namespace of process 7 (nginx) has it at /var"
        );
        assert!(still_mounted(proc.path(), "8:1").is_empty());
    }
}
