//! The kernel's table of mounts (proc_pid_mountinfo(5), proc_pid_mounts(5)).

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// A line of a mountinfo file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// Its number.
    pub id: u32,
    /// The number of the mount that it lies on.
    pub parent: u32,
    /// The device number, for example `8:1`.
    pub device: String,
    /// Where it is mounted.
    pub at: PathBuf,
    /// The filesystem's type, for example `ext4`.
    pub kind: String,
    /// The device's path, or the filesystem's own name for its source.
    pub source: String,
    /// The filesystem's own options as they are written.
    options: String,
}

impl MountPoint {
    /// The values of the filesystem's own options of this name.
    pub fn values<'a>(&'a self, option: &'a str) -> impl Iterator<Item = String> + 'a {
        let options = self.options.split(',');
        options.filter_map(move |written| {
            let (name, value) = written.split_once('=')?;
            (name == option).then(|| unescape(value))
        })
    }

    /// Returns whether the device is anonymous (major number 0, as for tmpfs), so that it keeps no disk busy.
    pub fn is_in_memory(&self) -> bool {
        self.device.starts_with("0:")
    }
}

/// Returns the topmost mount at `target`; none if nothing is mounted there.
pub fn mounted_at(procfs: &Path, target: &Path) -> Option<MountPoint> {
    let table = fs::read_to_string(procfs.join("self/mountinfo")).ok()?;
    mounts(&table).filter(|mount| mount.at == target).last()
}

/// Looks at the table of each mount namespace that has a process, the caller's own first. A process that ends meanwhile, or that the caller may
/// not look at, is left out.
///
/// One table is in memory at a time: a node of Kubernetes has hundreds, some of a megabyte. A name in it may be of any bytes, as a pod gives
/// names too, and hides no other mount.
///
/// # Errors
/// The caller's own table, or the list of processes, cannot be read.
pub fn in_all_namespaces(procfs: &Path, mut look: impl FnMut(&str)) -> io::Result<()> {
    let own = procfs.join("self");
    look(&String::from_utf8_lossy(&fs::read(own.join("mountinfo"))?));
    let mut seen: BTreeSet<PathBuf> = fs::read_link(own.join("ns/mnt")).into_iter().collect();
    for entry in fs::read_dir(procfs)? {
        let process = entry?.path();
        let Ok(namespace) = fs::read_link(process.join("ns/mnt")) else {
            continue;
        };
        if !seen.contains(&namespace)
            && let Ok(table) = fs::read(process.join("mountinfo"))
        {
            seen.insert(namespace);
            look(&String::from_utf8_lossy(&table));
        }
    }
    Ok(())
}

/// Returns whether a filesystem is mounted at `target`.
pub fn is_mounted(target: &Path) -> bool {
    mounted_at(Path::new("/proc"), target).is_some()
}

/// Parses the lines of a mountinfo: `36 35 98:0 /root /mount/point options … - ext4 /dev/vda1 options`.
pub fn mounts(table: &str) -> impl Iterator<Item = MountPoint> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        let (id, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let device = fields.next()?.to_owned();
        let at = unescape(fields.nth(1)?).into();
        let mut filesystem = fields.skip_while(|field| *field != "-").skip(1);
        let (kind, source) = (filesystem.next()?.to_owned(), unescape(filesystem.next()?));
        let options = filesystem.next().unwrap_or_default().to_owned();
        Some(MountPoint {
            id,
            parent,
            device,
            at,
            kind,
            source,
            options,
        })
    })
}

/// Returns the mounts of a mountinfo at `target`, the topmost first. The table's own order is that in which they were made: one that was put
/// beneath another comes after it.
pub fn stacked_at(table: &str, target: &Path) -> Vec<MountPoint> {
    let mut left: Vec<MountPoint> = mounts(table).filter(|it| it.at == target).collect();
    let mut stack = Vec::new();
    let lies_on =
        |upper: &MountPoint, lower: &MountPoint| upper.id != lower.id && upper.parent == lower.id;
    let topmost = |left: &[MountPoint]| {
        left.iter()
            .position(|lower| !left.iter().any(|upper| lies_on(upper, lower)))
    };
    while let Some(at) = topmost(&left) {
        stack.push(left.remove(at));
    }
    stack
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
pub fn mounted(table: &str) -> impl Iterator<Item = Mounted> {
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
    #![allow(clippy::unwrap_used)]
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
    fn a_stack_is_ordered_by_what_lies_on_what() {
        let table = "\
            22 1 0:20 / / rw - squashfs /dev/loop0 ro\n\
            40 50 0:40 / /usr ro,nosuid - overlay extensions-1 ro\n\
            45 22 0:41 / /usr/share rw - tmpfs tmpfs rw\n\
            50 22 0:42 / /usr ro,nosuid - overlay extensions-2 ro\n";
        let stack = stacked_at(table, Path::new("/usr"));
        let stack: Vec<_> = stack.iter().map(|it| (&*it.kind, &*it.source)).collect();
        let expected = [("overlay", "extensions-1"), ("overlay", "extensions-2")];
        assert_eq!(stack, expected);
        assert!(stacked_at(table, Path::new("/var")).is_empty());
        // The first mount of all lies on itself.
        assert_eq!(
            stacked_at("1 1 0:2 / / rw - rootfs rootfs rw\n", Path::new("/")).len(),
            1
        );
    }

    #[test]
    fn each_namespace_has_one_table() -> io::Result<()> {
        let procfs = tempfile::tempdir()?;
        for (process, namespace) in [("self", 1), ("1", 1), ("7", 2), ("8", 2), ("9", 3)] {
            let process = procfs.path().join(process);
            fs::create_dir_all(process.join("ns"))?;
            // A pod may give a mount any name.
            let table = [format!("of {namespace} ").as_bytes(), &[0xff]].concat();
            fs::write(process.join("mountinfo"), table)?;
            std::os::unix::fs::symlink(format!("mnt:[{namespace}]"), process.join("ns/mnt"))?;
        }
        fs::write(procfs.path().join("version"), "")?;
        // It has ended.
        fs::remove_file(procfs.path().join("9/mountinfo"))?;
        let mut tables = Vec::new();
        in_all_namespaces(procfs.path(), |table| tables.push(table.to_owned()))?;
        assert_eq!(tables, ["of 1 \u{fffd}", "of 2 \u{fffd}"]);
        Ok(())
    }

    #[test]
    fn an_option_has_the_values_that_were_given_to_it() {
        let table = "\
            40 22 0:40 / /a rw,nodev - overlay none rw,lowerdir+=/b\\054c,lowerdir+=/d,upperdir=/e\n\
            41 22 0:41 / /f rw - tmpfs tmpfs\n";
        let [overlay, other]: [MountPoint; 2] =
            mounts(table).collect::<Vec<_>>().try_into().unwrap();
        let values = |name| overlay.values(name).collect::<Vec<_>>();
        assert_eq!(values("lowerdir+"), ["/b,c", "/d"]);
        assert_eq!(values("upperdir"), ["/e"]);
        assert!(values("lowerdir").is_empty() && values("nodev").is_empty());
        assert_eq!(other.values("rw").count(), 0);
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
