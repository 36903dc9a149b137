//! What is mounted where, as the kernel says (proc_pid_mountinfo(5)).

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A line of a mountinfo.
pub(crate) struct MountPoint {
    /// The device number, `8:1`.
    pub(crate) device: String,
    pub(crate) at: PathBuf,
    /// The device's path, or whatever the filesystem calls its source.
    pub(crate) source: String,
}

impl MountPoint {
    /// Anonymous devices (tmpfs) have major number 0 and keep nothing busy.
    pub(crate) fn is_in_memory(&self) -> bool {
        self.device.starts_with("0:")
    }
}

/// What is mounted at `target` last; none when nothing is.
pub(crate) fn mounted_at(procfs: &Path, target: &Path) -> Option<MountPoint> {
    let table = fs::read_to_string(procfs.join("self/mountinfo")).ok()?;
    mounts(&table).filter(|mount| mount.at == target).last()
}

/// The lines of a mountinfo: `36 35 98:0 /root /mount/point options … - ext4 /dev/vda1 options`.
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

/// The kernel writes blank, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(text.to_owned(), |text, (code, plain)| {
            text.replace(code, plain)
        })
}
