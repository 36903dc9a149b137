//! What is mounted, and how much room there is (proc_mounts(5), statvfs(3)).

use instar_api::machine::MountStat;

use crate::mounts::mount_table::unescape;

/// Room on a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes in all.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that can still be written.
    pub available: u64,
    /// Files that there can be.
    pub inodes: u64,
    /// Files that there are.
    pub inodes_used: u64,
    /// Files that can still be made.
    pub inodes_free: u64,
}

/// Every mount of machined's generation.
pub fn mounts() -> anyhow::Result<Vec<MountStat>> {
    let table = super::read("/proc/self/mounts")?;
    let mut stats: Vec<MountStat> = parse(&table).collect();
    for stat in &mut stats {
        // One that is covered by another mount answers for that one, as df does.
        if let Ok(room) = room(&stat.mounted_on) {
            (stat.size, stat.available) = (room.size, room.available);
        }
    }
    Ok(stats)
}

/// A filesystem that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The device, or whatever the filesystem calls its source.
    pub source: String,
    /// Where.
    pub target: String,
    /// Its type, such as `ext4`.
    pub filesystem: String,
    /// Cannot be written through this mount.
    pub read_only: bool,
}

/// Every mount of machined's generation that has room: the kernel's own filesystems have none.
pub fn mounted() -> anyhow::Result<Vec<Mounted>> {
    let table = super::read("/proc/self/mounts")?;
    let sized = |mount: &Mounted| room(&mount.target).is_ok_and(|room| room.size > 0);
    Ok(parse_mounted(&table).filter(sized).collect())
}

fn parse_mounted(table: &str) -> impl Iterator<Item = Mounted> {
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

/// Room on what is mounted at this place; none where nothing is that has room.
pub fn room_of_mount(target: &str) -> anyhow::Result<Option<Room>> {
    let table = super::read("/proc/self/mounts")?;
    let is_mounted = parse_mounted(&table).any(|mount| mount.target == target);
    // It may be unmounted in between.
    let room = is_mounted.then(|| room(target).ok()).flatten();
    Ok(room.filter(|room| room.size > 0))
}

/// Room on the filesystem of a path.
pub fn room(path: impl rustix::path::Arg) -> std::io::Result<Room> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(Room {
        size: bytes(stat.f_blocks),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        available: bytes(stat.f_bavail),
        inodes: stat.f_files,
        inodes_used: stat.f_files.saturating_sub(stat.f_ffree),
        inodes_free: stat.f_ffree,
    })
}

fn parse(table: &str) -> impl Iterator<Item = MountStat> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some(MountStat {
            filesystem: unescape(fields.next()?),
            mounted_on: unescape(fields.next()?),
            ..MountStat::default()
        })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_are_plain() {
        let table = "/dev/vda2 /var/a\\040b\\134040 ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n";
        let names: Vec<_> = parse(table).map(|mount| mount.mounted_on).collect();
        assert_eq!(names, ["/var/a b\\040", "/run"]);
        let mounts: Vec<_> = parse_mounted("/dev/loop0 / squashfs ro,relatime 0 0\n").collect();
        assert!(mounts[0].read_only && mounts[0].filesystem == "squashfs");
    }

    #[test]
    fn there_is_room_in_tmp() {
        let room = room("/tmp").unwrap();
        assert!(room.size > 0 && room.used <= room.size && room.available <= room.size);
        assert!(
            mounts()
                .unwrap()
                .iter()
                .any(|mount| mount.mounted_on == "/")
        );
    }
}
