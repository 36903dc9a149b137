//! A machine's own directory.
//!
//! | file | what |
//! | --- | --- |
//! | `command` | QEMU's command line, one argument per line |
//! | `console.log` | output of the serial port; that of earlier starts is in `console.N.log` |
//! | `console.sock` | what is written to it is typed at the serial port, if the machine has asked for that |
//! | `qemu.log` | QEMU's standard output and error |
//! | `pid` | QEMU's process number |
//! | `forwards` | a line per forward: the guest's port, the host's port |
//! | `owner.sock`, `control.sock` | QMP, for the owner and for all others |
//! | `uefi-variables.fd` | the firmware's variables, kept over starts |
//! | `lock` | locked while a machine runs here |

use std::fs::{self, File, TryLockError};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::console::{Console, tail};
use crate::error::{Error, Evidence, Result};

/// When this variable is set and not empty, directories are kept on success as well.
pub const KEEP_VARIABLE: &str = "INSTAR_KEEP";

pub(crate) const CONSOLE: &str = "console.log";
pub(crate) const CONSOLE_SOCKET: &str = "console.sock";
pub(crate) const QEMU_LOG: &str = "qemu.log";
pub(crate) const FORWARDS: &str = "forwards";
const UEFI_VARIABLES: &str = "uefi-variables.fd";
pub(crate) const OWNER_SOCKET: &str = "owner.sock";
pub(crate) const CONTROL_SOCKET: &str = "control.sock";

/// Number of a console's last lines that an error shows.
const TAIL_LINES: usize = 30;

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Open on the directory itself.
    handle: File,
    _lock: File,
}

impl Directory {
    /// Makes the directory, or takes it over from a machine that has ended.
    pub(crate) fn claim(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).map_err(Error::directory("make", path))?;
        let path = path
            .canonicalize()
            .map_err(Error::directory("find", path))?;
        let lock_path = path.join("lock");
        let lock = File::create(&lock_path).map_err(Error::directory("make", &lock_path))?;
        lock_patiently(&lock).map_err(|_| {
            Error::Impossible(format!("a machine already runs in {}", path.display()))
        })?;
        for socket in [OWNER_SOCKET, CONTROL_SOCKET, CONSOLE_SOCKET] {
            // Usually there is none.
            let _ = fs::remove_file(path.join(socket));
        }
        let directory = Self {
            handle: File::open(&path).map_err(Error::directory("open", &path))?,
            path,
            _lock: lock,
        };
        directory.set_old_console_aside()?;
        Ok(directory)
    }

    /// Whether a machine runs in this directory.
    pub(crate) fn is_in_use(path: &Path) -> bool {
        File::open(path.join("lock")).is_ok_and(|lock| lock.try_lock().is_err())
    }

    fn set_old_console_aside(&self) -> Result<()> {
        let current = self.path.join(CONSOLE);
        if !current.exists() {
            return Ok(());
        }
        let mut number = 1;
        let mut aside = self.path.join("console.1.log");
        while aside.exists() {
            number += 1;
            aside = self.path.join(format!("console.{number}.log"));
        }
        fs::rename(&current, aside).map_err(Error::directory("rename", &current))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn console(&self) -> Console {
        Console::new(self.path.join(CONSOLE))
    }

    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, content).map_err(Error::directory("write", &path))?;
        Ok(path)
    }

    /// Returns the machine's own UEFI variables: those of its last start, or a copy of `new`.
    pub(crate) fn own_variables(&self, new: &Path) -> Result<PathBuf> {
        let own = self.path.join(UEFI_VARIABLES);
        if !own.exists() {
            // Not `fs::copy`, which copies the mode too: the original may be read only.
            let content = fs::read(new).map_err(Error::directory("read", new))?;
            fs::write(&own, content).map_err(Error::directory("write", &own))?;
        }
        Ok(own)
    }

    /// Makes the file for QEMU's own output.
    pub(crate) fn qemu_log(&self) -> Result<File> {
        let path = self.path.join(QEMU_LOG);
        File::create(&path).map_err(Error::directory("make", &path))
    }

    pub(crate) fn qemu_said(&self) -> String {
        fs::read_to_string(self.path.join(QEMU_LOG)).unwrap_or_default()
    }

    /// Returns a short path to a socket in here: the kernel allows 107 bytes, and the directory's own path may be
    /// longer.
    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        short_path(&self.handle, name)
    }

    pub(crate) fn evidence(&self) -> Evidence {
        Evidence {
            directory: self.path.clone(),
            console: tail(&self.console().text().unwrap_or_default(), TAIL_LINES),
            qemu: tail(&self.qemu_said(), TAIL_LINES),
        }
    }

    /// Removes the directory, unless `INSTAR_KEEP` is set.
    pub(crate) fn remove(self) -> Result<()> {
        if std::env::var_os(KEEP_VARIABLE).is_some_and(|value| !value.is_empty()) {
            return Ok(());
        }
        fs::remove_dir_all(&self.path).map_err(Error::directory("remove", &self.path))
    }
}

/// Takes the lock, with retries: a caller of [`Self::is_in_use`] holds it for a moment.
fn lock_patiently(lock: &File) -> std::result::Result<(), TryLockError> {
    for _ in 0..10 {
        if lock.try_lock().is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    lock.try_lock()
}

pub(crate) fn short_path(directory: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn belongs_to_one_machine_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("vm");
        let first = Directory::claim(&path).unwrap();
        assert!(Directory::is_in_use(&path));
        assert!(
            Directory::claim(&path)
                .unwrap_err()
                .to_string()
                .contains("already runs")
        );
        drop(first);
        assert!(!Directory::is_in_use(&path));
        Directory::claim(&path).unwrap();
    }

    #[test]
    fn uefi_variables_are_kept() {
        let parent = tempfile::tempdir().unwrap();
        let new = parent.path().join("vars.fd");
        fs::write(&new, "new").unwrap();
        let directory = Directory::claim(&parent.path().join("vm")).unwrap();
        let own = directory.own_variables(&new).unwrap();
        assert_eq!(fs::read_to_string(&own).unwrap(), "new");
        fs::write(&own, "changed").unwrap();
        assert_eq!(directory.own_variables(&new).unwrap(), own);
        assert_eq!(fs::read_to_string(&own).unwrap(), "changed");
    }

    #[test]
    fn earlier_consoles_are_set_aside() {
        let parent = tempfile::tempdir().unwrap();
        for content in ["first", "second", "third"] {
            let directory = Directory::claim(parent.path()).unwrap();
            directory.write(CONSOLE, content.as_bytes()).unwrap();
        }
        let read = |name| fs::read_to_string(parent.path().join(name)).unwrap();
        assert_eq!(
            (read("console.1.log"), read("console.2.log")),
            ("first".to_owned(), "second".to_owned())
        );
        assert_eq!(read(CONSOLE), "third");
    }

    #[test]
    fn a_socket_in_a_deep_directory_can_be_used() {
        let parent = tempfile::tempdir().unwrap();
        let directory = Directory::claim(&parent.path().join("d".repeat(200))).unwrap();
        let socket = directory.socket("x.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        std::os::unix::net::UnixStream::connect(&socket).unwrap();
    }
}
