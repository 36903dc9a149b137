//! The owner of a user volume: the user of the first container that may write to it.
//!
//! Only an unused volume changes its owner: one that is empty and root's. After that, its containers decide about the owner.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags, fchown, fstat, openat};
use rustix::process::{Gid, Uid};

use super::spec::User;

/// Gives an unused volume to the user. Returns whether it did.
pub(super) fn hand_over(volume: &Path, user: &User) -> io::Result<bool> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, volume, flags, Mode::empty())?;
    let stat = fstat(&directory)?;
    let is_roots = stat.st_uid == 0 && stat.st_gid == 0;
    if !is_roots || (user.uid == 0 && user.gid == 0) || !is_empty(Dir::read_from(&directory)?)? {
        return Ok(false);
    }
    fchown(
        &directory,
        Some(Uid::from_raw(user.uid)),
        Some(Gid::from_raw(user.gid)),
    )?;
    Ok(true)
}

fn is_empty(mut entries: Dir) -> io::Result<bool> {
    let other = entries.find(|entry| {
        entry.as_ref().map_or(true, |entry| {
            !matches!(entry.file_name().to_bytes(), b"." | b"..")
        })
    });
    match other.transpose()? {
        Some(_) => Ok(false),
        None => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    fn user(uid: u32) -> User {
        User {
            uid,
            gid: uid,
            ..User::default()
        }
    }

    /// Needs root, as machined has it: only root may change a file's owner, and the kernel's refusal is shown to others.
    #[test]
    fn only_an_unused_volume_changes_hands() {
        let volume = tempfile::tempdir().unwrap();
        let owner = || fs::metadata(volume.path()).unwrap().uid();
        if owner() != 0 {
            assert!(!hand_over(volume.path(), &user(999)).unwrap());
            return;
        }
        assert!(!hand_over(volume.path(), &user(0)).unwrap());
        fs::write(volume.path().join("file"), "x").unwrap();
        assert!(!hand_over(volume.path(), &user(999)).unwrap());
        fs::remove_file(volume.path().join("file")).unwrap();
        assert!(hand_over(volume.path(), &user(999)).unwrap());
        assert_eq!(owner(), 999);
        assert!(!hand_over(volume.path(), &user(1000)).unwrap());
        assert_eq!(owner(), 999);
    }

    #[test]
    fn a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(hand_over(&link, &user(999)).is_err());
    }
}
