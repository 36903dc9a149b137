//! The kernel's table of mounts (proc_pid_mountinfo(5), proc_pid_mounts(5)).

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A line of a mountinfo file.
pub(crate) struct MountPoint {
    /// The device number, for example `8:1`.
    pub(crate) device: String,
    pub(crate) at: PathBuf,
    /// The device's path, or the filesystem's own name for its source.
    pub(crate) source: String,
}

impl MountPoint {
    /// Returns whether the device is anonymous (major number 0, as for tmpfs), so that it keeps no disk busy.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.device.starts_with("0:")
    }
}

/// Returns the topmost mount at `target`; none if nothing is mounted there.
pub(crate) fn mounted_at(procfs: &Path, target: &Path) -> Option<MountPoint> {
    let table = fs::read_to_string(procfs.join("self/mountinfo")).ok()?;
    mounts(&table).filter(|mount| mount.at == target).last()
}

/// Returns whether a filesystem is mounted at `target`.
pub(crate) fn is_mounted(target: &Path) -> bool {
    mounted_at(Path::new("/proc"), target).is_some()
}

/// Parses the lines of a mountinfo: `36 35 98:0 /root /mount/point options … - ext4 /dev/vda1 options`.
pub(crate) fn mounts(table: &str) -> impl Iterator<Item = MountPoint> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let device = fields.next()?.to_owned();
        let at = unescape(fields.nth(1)?).into();
        let mut filesystem = fields.skip_while(|field| *field != "-").skip(1);
        let source = unescape(filesystem.nth(1)?);
        Some(MountPoint { device, at, source })
    })
}

/// A filesystem that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The device, or the filesystem's own name for its source.
    pub source: String,
    /// The mount point.
    pub target: String,
    /// The filesystem's type, for example `ext4`.
    pub filesystem: String,
    /// Whether it is read-only through this mount.
    pub read_only: bool,
}

/// Parses the lines of a table of mounts: `/dev/vda1 /mount/point ext4 rw,relatime 0 0`. Unlike a mountinfo, it combines the
/// flags of the mount and of the filesystem, so it tells whether a mount can be written to.
pub(crate) fn mounted(table: &str) -> impl Iterator<Item = Mounted> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some(Mounted {
            source: unescape(fields.next()?),
            target: unescape(fields.next()?),
            filesystem: fields.next()?.to_owned(),
            read_only: fields.next()?.split(',').any(|option| option == "ro"),
        })
    })
}

/// Decodes a path. Blank, tab, newline and backslash are written as a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 4);
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(byte) if byte.is_ascii() => {
                plain.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            _ => {
                plain.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    plain + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_says_where_and_how() {
        let table =
            "/dev/vda2 /var/a\\040b\\134040 ext4 rw 0 0\n/dev/loop0 / squashfs ro,relatime 0 0\n";
        let mounts: Vec<_> = mounted(table).collect();
        assert_eq!(mounts[0].target, "/var/a b\\040");
        assert!(!mounts[0].read_only);
        assert!(mounts[1].read_only && mounts[1].filesystem == "squashfs");
    }

    #[test]
    fn names_are_plain() {
        for (escaped, plain) in [
            ("/var/a\\040b\\134040", "/var/a b\\040"),
            ("end\\", "end\\"),
            ("\\0ä", "\\0ä"),
        ] {
            assert_eq!(unescape(escaped), plain);
        }
    }

    #[test]
    fn mount_points_are_found_by_their_whole_name() {
        assert!(is_mounted(Path::new("/proc")));
        assert!(!is_mounted(Path::new("/pro")));
    }
}
