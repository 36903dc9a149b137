//! Opens a file for a caller: first as a mere handle, then, if the policy allows it, for reading.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, openat2, readlinkat,
};
use rustix::io::Errno;

use super::policy::{Facts, Filesystem, gives_out};
use crate::disk::STATE;

/// Limit on the entries of a directory that are shown, so that no directory fills the machine's memory.
const MOST_ENTRIES: usize = 1 << 16;

/// Why a caller cannot see a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path is not absolute.
    #[error("{0:?} is not an absolute path")]
    NotAbsolute(String),
    /// The policy hides the file; it may not even exist.
    #[error("{0} is not given out: it belongs to what the node keeps to itself (see docs/api.md)")]
    Hidden(PathBuf),
    /// The file has no content, because it is not regular.
    #[error("{path} is {what}; only regular files can be read")]
    NotRegular {
        /// The file.
        path: PathBuf,
        /// Its kind.
        what: &'static str,
    },
    /// The file has no entries, because it is no directory.
    #[error("{0} is no directory")]
    NotDirectory(PathBuf),
    /// The directory has more entries than are kept in memory.
    #[error("{path} has more than {MOST_ENTRIES} entries; the others are not shown")]
    TooManyEntries {
        /// The directory.
        path: PathBuf,
    },
    /// The kernel refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl FileError {
    pub(super) fn io(path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io {
            path: path.to_owned(),
            source: source.into(),
        }
    }
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Regular,
    Directory,
    Symlink,
    BlockDevice,
    CharacterDevice,
    Fifo,
    Socket,
}

impl Kind {
    fn of(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Self::Directory,
            FileType::Symlink => Self::Symlink,
            FileType::BlockDevice => Self::BlockDevice,
            FileType::CharacterDevice => Self::CharacterDevice,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            _ => Self::Regular,
        }
    }

    fn in_words(self) -> &'static str {
        match self {
            Self::Regular => "a regular file",
            Self::Directory => "a directory",
            Self::Symlink => "a symbolic link",
            Self::BlockDevice | Self::CharacterDevice => "a device",
            Self::Fifo => "a pipe",
            Self::Socket => "a socket",
        }
    }
}

/// The files of this machine that callers may see.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// The device number of STATE's filesystem; none while STATE is not mounted.
    state: Option<u64>,
}

impl View {
    /// Creates a view of the filesystems that are mounted now.
    pub fn of_this_machine() -> Self {
        Self::with_state_at(Path::new(STATE))
    }

    fn with_state_at(state: &Path) -> Self {
        let device = |path: &Path| rustix::fs::stat(path).ok().map(|stat| stat.st_dev);
        let above = state.parent().and_then(device);
        View {
            state: device(state).filter(|device| Some(*device) != above),
        }
    }

    /// Finds a file by its absolute path, through symbolic links. The links of /proc that lead into other processes are not
    /// followed.
    pub fn find(&self, path: &str) -> Result<Found, FileError> {
        if !path.starts_with('/') {
            return Err(FileError::NotAbsolute(path.to_owned()));
        }
        let handle = handle(CWD, path.as_ref(), OFlags::empty())
            .map_err(|error| refusal(Path::new(path), error))?;
        let found = self.look_at(handle, Path::new(path))?;
        if found.open {
            Ok(found)
        } else {
            Err(FileError::Hidden(found.path))
        }
    }

    fn look_at(&self, handle: OwnedFd, asked: &Path) -> Result<Found, FileError> {
        let failed = |error: Errno| FileError::io(asked, error);
        let stat = fstat(&handle).map_err(failed)?;
        let filesystem = Filesystem::from_magic(fstatfs(&handle).map_err(failed)?.f_type);
        let path = readlinkat(CWD, own_link(&handle), Vec::new()).map_err(failed)?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes()));
        let open = gives_out(&Facts {
            path: &path,
            filesystem,
            on_state: self.state == Some(stat.st_dev),
            directory: Kind::of(&stat) == Kind::Directory,
            for_everybody: stat.st_mode & 0o004 != 0,
        });
        Ok(Found {
            view: *self,
            handle,
            path,
            stat,
            filesystem,
            open,
        })
    }
}

/// A file that was found. It has not been opened for reading yet, so nothing has happened to it.
#[derive(Debug)]
pub struct Found {
    view: View,
    handle: OwnedFd,
    path: PathBuf,
    stat: Stat,
    filesystem: Filesystem,
    open: bool,
}

impl Found {
    /// Returns the real path, as the kernel reports it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its kind.
    pub fn kind(&self) -> Kind {
        Kind::of(&self.stat)
    }

    /// Returns its stat(2).
    pub fn stat(&self) -> &Stat {
        &self.stat
    }

    /// Returns whether the kernel generates its content, so that its size is unknown before it has been read.
    pub fn is_made_up(&self) -> bool {
        self.filesystem != Filesystem::Data
    }

    /// Returns whether the policy lets callers read its content.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Returns a second handle on the same file.
    pub fn try_clone(&self) -> Result<Found, FileError> {
        let handle = self.handle.try_clone();
        Ok(Found {
            view: self.view,
            handle: handle.map_err(|error| FileError::io(&self.path, error))?,
            path: self.path.clone(),
            stat: self.stat,
            filesystem: self.filesystem,
            open: self.open,
        })
    }

    /// Returns the target of a symbolic link; none for any other file.
    pub fn link(&self) -> Option<PathBuf> {
        if self.kind() != Kind::Symlink {
            return None;
        }
        let target = readlinkat(&self.handle, "", Vec::new()).ok()?;
        Some(std::ffi::OsString::from_vec(target.into_bytes()).into())
    }

    /// Returns the extended attributes that can be read.
    pub fn attributes(&self) -> Vec<(String, Vec<u8>)> {
        if !self.open {
            return Vec::new();
        }
        let link = own_link(&self.handle);
        // The kernel's own limit for names and for a value (xattr(7)).
        let mut names = vec![0; 1 << 16];
        let length = rustix::fs::listxattr(&link, names.as_mut_slice()).unwrap_or(0);
        let mut value = vec![0; 1 << 16];
        names[..length]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .filter_map(|name| {
                let length = rustix::fs::getxattr(&link, name, value.as_mut_slice()).ok()?;
                Some((
                    String::from_utf8_lossy(name).into_owned(),
                    value[..length].to_vec(),
                ))
            })
            .collect()
    }

    /// Opens a regular file for reading.
    pub fn read(&self) -> Result<File, FileError> {
        match self.kind() {
            Kind::Regular => Ok(self.reopen(OFlags::RDONLY)?.into()),
            kind => Err(FileError::NotRegular {
                path: self.path.clone(),
                what: kind.in_words(),
            }),
        }
    }

    /// Returns the names in a directory, sorted, and the error that kept others from being read.
    pub fn names(&self) -> Result<(Vec<std::ffi::OsString>, Option<FileError>), FileError> {
        if self.kind() != Kind::Directory {
            return Err(FileError::NotDirectory(self.path.clone()));
        }
        let failed = |error: Errno| FileError::io(&self.path, error);
        let directory = self.reopen(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        let mut trouble = None;
        for entry in Dir::new(directory).map_err(failed)? {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    trouble = Some(failed(error));
                    break;
                }
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            if names.len() == MOST_ENTRIES {
                trouble = Some(FileError::TooManyEntries {
                    path: self.path.clone(),
                });
                break;
            }
            names.push(std::ffi::OsString::from_vec(name.to_vec()));
        }
        names.sort_unstable();
        Ok((names, trouble))
    }

    /// Opens an entry of this directory without following it if it is a link. An entry that the policy hides can be looked at,
    /// but not read.
    pub fn entry(&self, name: &OsStr) -> Result<Found, FileError> {
        let path = self.path.join(name);
        let handle = handle(&self.handle, name, OFlags::NOFOLLOW)
            .map_err(|error| FileError::io(&path, error))?;
        self.view.look_at(handle, &path)
    }

    /// Opens the file of the handle: this very file, even if its path leads elsewhere by now.
    fn reopen(&self, flags: OFlags) -> Result<OwnedFd, FileError> {
        if !self.open {
            return Err(FileError::Hidden(self.path.clone()));
        }
        let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        rustix::fs::open(own_link(&self.handle), flags, Mode::empty())
            .map_err(|error| FileError::io(&self.path, error))
    }
}

/// Opens a handle that has no effect on the file: no device wakes up, and no pipe is waited for.
fn handle(
    directory: impl std::os::fd::AsFd,
    path: &OsStr,
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    openat2(
        directory,
        path,
        flags | OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::NO_MAGICLINKS,
    )
}

/// Path of the kernel's own link to an open file.
fn own_link(handle: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", handle.as_raw_fd())
}

fn refusal(path: &Path, error: Errno) -> FileError {
    match error {
        // A magic link of /proc, or links in a circle: both are hidden.
        Errno::LOOP => FileError::Hidden(path.to_owned()),
        error => FileError::io(path, error),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Read as _;
    use std::os::unix::fs::symlink;

    use super::*;

    fn view() -> View {
        View::of_this_machine()
    }

    /// Returns whether the policy hides the file, or the kernel refuses it first because the test runs without root's rights.
    fn hidden(path: &str) -> bool {
        match view().find(path) {
            Err(FileError::Hidden(_)) => true,
            Err(FileError::Io { source, .. }) => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }

    #[test]
    fn no_way_round_through_proc() {
        let own = std::process::id();
        let open_file = File::open("/etc/os-release").unwrap();
        for path in [
            "/proc/1/root".to_owned(),
            "/proc/1/root/etc/os-release".to_owned(),
            "/proc/self/root/etc/os-release".to_owned(),
            "/proc/self/cwd".to_owned(),
            "/proc/self/exe".to_owned(),
            format!("/proc/self/fd/{}", open_file.as_raw_fd()),
            format!("/proc/{own}/fd"),
            format!("/proc/{own}/task/{own}/root/etc"),
            "/proc/self/environ".to_owned(),
            "/proc/self/mem".to_owned(),
            "/proc/self/maps".to_owned(),
            "/proc/thread-self/environ".to_owned(),
            "/proc/self/task/../environ".to_owned(),
            "/sys/../proc/self/environ".to_owned(),
            "/dev/fd/0".to_owned(),
        ] {
            assert!(hidden(&path), "{path}: {:?}", view().find(&path));
        }
    }

    #[test]
    fn what_everybody_sees_is_open() {
        for path in [
            "/proc/sys/kernel/random/boot_id",
            "/proc/self/status",
            "/proc/net/dev",
            "/proc/mounts",
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/etc/os-release",
        ] {
            let mut text = String::new();
            view()
                .find(path)
                .unwrap()
                .read()
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            assert!(!text.is_empty(), "{path}");
        }
    }

    #[test]
    fn links_are_judged_by_where_they_lead() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        symlink("/proc/self/environ", at("environ")).unwrap();
        symlink("/proc/1/root", at("root")).unwrap();
        symlink("/etc/os-release", at("release")).unwrap();
        symlink("circle", at("circle")).unwrap();
        let find = |name: &str| view().find(at(name).to_str().unwrap());
        assert!(hidden(at("environ").to_str().unwrap()));
        assert!(hidden(at("root").to_str().unwrap()));
        assert!(matches!(find("circle"), Err(FileError::Hidden(_))));
        assert!(find("release").unwrap().read().is_ok());
        // As an entry, the link itself is found and not its target.
        let directory = view().find(scratch.path().to_str().unwrap()).unwrap();
        let entry = directory.entry(OsStr::new("environ")).unwrap();
        assert_eq!(entry.link().unwrap(), Path::new("/proc/self/environ"));
        assert!(matches!(entry.read(), Err(FileError::NotRegular { .. })));
    }

    #[test]
    fn a_file_that_moves_is_judged_by_what_was_opened() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("file");
        std::fs::write(&path, "the one that was found").unwrap();
        let found = view().find(path.to_str().unwrap()).unwrap();
        std::fs::rename(&path, scratch.path().join("elsewhere")).unwrap();
        symlink("/proc/self/environ", &path).unwrap();
        let mut text = String::new();
        found.read().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "the one that was found");
    }

    #[test]
    fn a_filesystem_of_secrets_is_known_by_its_device() {
        // /dev/shm is a filesystem of its own on every machine that builds this.
        let view = View::with_state_at(Path::new("/dev/shm"));
        assert!(view.state.is_some());
        assert!(matches!(view.find("/dev/shm"), Err(FileError::Hidden(_))));
        assert!(View::with_state_at(Path::new("/etc/ssl")).state.is_none());
    }

    #[test]
    fn errors_name_the_path() {
        for (path, part) in [
            ("relative", "not an absolute path"),
            ("/no/such/file", "/no/such/file: No such file"),
            ("/etc/os-release/x", "Not a directory"),
        ] {
            let error = view().find(path).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let null = view().find("/dev/null").unwrap().read().unwrap_err();
        assert!(null.to_string().contains("/dev/null is a device"), "{null}");
    }
}
