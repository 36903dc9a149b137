//! Mounted filesystems, and their room (proc_mounts(5), statvfs(3)).

use instar_api::machine::MountStat;

use crate::base::mount_table::{Mounted, mounted as in_table};

const TABLE: &str = "/proc/self/mounts";

/// Room on a filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// All bytes.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that can still be written.
    pub available: u64,
    /// Limit on the number of files.
    pub inodes: u64,
    /// Number of files.
    pub inodes_used: u64,
    /// Number of files that can still be made.
    pub inodes_free: u64,
}

/// Lists every mount of machined's generation.
pub fn mounts() -> anyhow::Result<Vec<MountStat>> {
    let table = super::read(TABLE)?;
    let stats = in_table(&table).map(|mount| {
        // A mount that is covered by another one shows that one's room, as in df.
        let room = room(&mount.target).ok();
        MountStat {
            size: room.map_or(0, |room| room.size),
            available: room.map_or(0, |room| room.available),
            filesystem: mount.source,
            mounted_on: mount.target,
        }
    });
    Ok(stats.collect())
}

/// Lists every mount of machined's generation that has room: the kernel's own filesystems have none.
pub fn mounted() -> anyhow::Result<Vec<Mounted>> {
    let table = super::read(TABLE)?;
    let sized = |mount: &Mounted| room(&mount.target).is_ok_and(|room| room.size > 0);
    Ok(in_table(&table).filter(sized).collect())
}

/// Returns the room of the filesystem that is mounted at `target`; none if there is no mount with room.
pub fn room_of_mount(target: &str) -> anyhow::Result<Option<Room>> {
    let table = super::read(TABLE)?;
    let is_mounted = in_table(&table).any(|mount| mount.target == target);
    // It may be unmounted in between.
    let room = is_mounted.then(|| room(target).ok()).flatten();
    Ok(room.filter(|room| room.size > 0))
}

/// Returns the room of the filesystem that a path is on.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
