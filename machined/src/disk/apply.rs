//! Carries out a plan. This is the only code that opens a disk for writing, and only the disk that the plan names.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    contents,
    layout::{ALIGNMENT, Label},
    plan::{Action, DiskPlan, PlannedPartition},
    probe::block_size,
    write_table::{self, Entry},
};
use crate::sys;

/// Timeout for a node in /dev. The kernel makes the nodes by itself; slow controllers take a while.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// Why a plan could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The disk is busy or gone.
    #[error("cannot open {disk} for writing; something may have it mounted or mapped")]
    Open {
        /// The disk.
        disk: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A write failed.
    #[error("cannot write the partition table of {disk}; see the kernel log for I/O errors")]
    Write {
        /// The disk.
        disk: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel did not take over the new table.
    #[error("the kernel does not take the new partitions of {disk}; something uses one of them")]
    Announce {
        /// The disk.
        disk: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The partition's node in /dev did not appear.
    #[error("{partition} has not appeared within {} s; see the kernel log", NODE_DEADLINE.as_secs())]
    NoNode {
        /// The path of the node.
        partition: PathBuf,
    },
}

impl ApplyError {
    /// Whether something has mounted or claimed the disk.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Self::Open { source, .. } if source.kind() == io::ErrorKind::ResourceBusy)
    }
}

/// Applies the plan to its disk. Blocks the thread: do not call it on the runtime's. Returns false if the table stays as it is until a boot
/// at which nobody uses the disk: containers that live on use a partition, and all that the plan wants is a larger partition or another copy
/// of the table.
pub fn apply(plan: &DiskPlan, sysfs: &Path) -> Result<bool, ApplyError> {
    let path = plan.disk.as_path();
    let guid = match &plan.action {
        Action::Reuse {
            guid,
            rewrite_table,
            ..
        } => rewrite_table.then_some(*guid),
        Action::Create { .. } => Some(uuid::Uuid::new_v4()),
    };
    if let Some(guid) = guid {
        let disk = match open_exclusively(path) {
            Err(error) if error.is_busy() && plan.can_wait() => return Ok(false),
            opened => opened?,
        };
        // The table comes last: once it is there, the disk is ours and the contents of its partitions are reused. So remains of
        // an old filesystem in their places must be gone before.
        erase(&disk, plan)
            .and_then(|()| write_table(&disk, plan, guid))
            .map_err(|source| ApplyError::Write {
                disk: path.to_owned(),
                source,
            })?;
    }
    announce(plan, sysfs)?;
    plan.partitions()
        .iter()
        .try_for_each(|partition| wait_for_node(plan, partition, sysfs))?;
    Ok(true)
}

/// Returns the path of a partition: `/dev/vda1`, `/dev/nvme0n1p1`.
pub fn partition_path(disk: &Path, number: u32) -> PathBuf {
    let disk = disk.display().to_string();
    let separator = if disk.ends_with(|c: char| c.is_ascii_digit()) {
        "p"
    } else {
        ""
    };
    PathBuf::from(format!("{disk}{separator}{number}"))
}

/// Opens a disk or a partition for writing. O_EXCL on a block device fails with EBUSY when it, or a partition of it, is mounted or otherwise claimed.
pub(crate) fn open_exclusively(path: &Path) -> Result<File, ApplyError> {
    let exclusive = i32::try_from(rustix::fs::OFlags::EXCL.bits()).unwrap_or(0);
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(exclusive)
        .open(path)
        .map_err(|source| ApplyError::Open {
            disk: path.to_owned(),
            source,
        })
}

/// Zeroes the beginning of each new partition, and both ends of a disk that is taken over. Older data deeper in the partition,
/// for example superblock copies of an older filesystem, cannot all be found: the mark "to be made anew" makes it void.
fn erase(disk: &File, plan: &DiskPlan) -> io::Result<()> {
    let zeros = vec![0; usize::try_from(ALIGNMENT.min(plan.size)).unwrap_or(0)];
    let ends: &[u64] = match plan.action {
        Action::Create { .. } => &[plan.size - zeros.len() as u64, 0],
        Action::Reuse { .. } => &[],
    };
    let new = plan.partitions().iter().filter(|it| it.guid.is_none());
    for partition in new.clone().filter(|it| it.label != Label::Efi) {
        contents::mark(disk, partition.start + partition.length)?;
    }
    for offset in new.map(|it| it.start).chain(ends.iter().copied()) {
        disk.write_all_at(&zeros, offset)?;
    }
    disk.sync_all()
}

fn write_table(disk: &File, plan: &DiskPlan, guid: uuid::Uuid) -> io::Result<()> {
    let block =
        block_size(plan.sector_size).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    let entry = |partition: &PlannedPartition| Entry {
        number: partition.number,
        label: partition.label.as_str().to_owned(),
        kind: partition.label.spec().kind.clone(),
        guid: partition.guid.unwrap_or_else(uuid::Uuid::new_v4),
        start: partition.start,
        length: partition.length,
    };
    let entries: Vec<Entry> = plan.partitions().iter().map(entry).collect();
    write_table::write(disk, plan.size, block, guid, &entries)
}

/// A partition in the kernel's list, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    number: u32,
    start: u64,
    length: u64,
}

/// Tells the kernel about planned partitions that are not in its list; on most boots there are none.
fn announce(plan: &DiskPlan, sysfs: &Path) -> Result<(), ApplyError> {
    let path = plan.disk.as_path();
    let failed = |source| ApplyError::Announce {
        disk: path.to_owned(),
        source,
    };
    let planned: Vec<Known> = plan
        .partitions()
        .iter()
        .map(|partition| Known {
            number: partition.number,
            start: partition.start,
            length: partition.length,
        })
        .collect();
    let known = known_to_kernel(path, sysfs).map_err(failed)?;
    if planned.len() == known.len() && planned.iter().all(|partition| known.contains(partition)) {
        return Ok(());
    }
    let disk = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(failed)?;
    let deadline = Instant::now() + NODE_DEADLINE;
    loop {
        match bring_up_to_date(&disk, &planned, path, sysfs) {
            // A program that probes new devices may hold the disk for a moment.
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
                std::thread::sleep(POLL);
            }
            done => return done.map_err(failed),
        }
    }
}

fn bring_up_to_date(disk: &File, planned: &[Known], path: &Path, sysfs: &Path) -> io::Result<()> {
    let same_place =
        |one: &Known, other: &Known| one.number == other.number && one.start == other.start;
    for old in known_to_kernel(path, sysfs)? {
        if !planned.iter().any(|new| same_place(new, &old)) {
            sys::block::delete_partition(disk, old.number)?;
        }
    }
    let known = known_to_kernel(path, sysfs)?;
    for new in planned {
        match known.iter().find(|old| same_place(new, old)) {
            None => sys::block::add_partition(disk, new.number, new.start, new.length)?,
            Some(old) if old.length != new.length => {
                sys::block::resize_partition(disk, new.number, new.start, new.length)?;
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Reads the kernel's list of a disk's partitions, from `/sys/class/block/DISK/PARTITION/{partition,start,size}`.
fn known_to_kernel(disk: &Path, sysfs: &Path) -> io::Result<Vec<Known>> {
    let mut known = Vec::new();
    for entry in fs::read_dir(sysfs.join("class/block").join(block_name(disk)))? {
        let folder = entry?.path();
        let number = |file: &str| {
            let text = fs::read_to_string(folder.join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        // sysfs counts in units of 512 bytes, whatever the disk's sector size.
        if let (Some(partition), Some(start), Some(length)) =
            (number("partition"), number("start"), number("size"))
        {
            known.push(Known {
                number: u32::try_from(partition).map_err(io::Error::other)?,
                start: start * 512,
                length: length * 512,
            });
        }
    }
    Ok(known)
}

/// Returns the name of a block device in sysfs.
fn block_name(node: &Path) -> String {
    node.strip_prefix("/dev")
        .unwrap_or(node)
        .to_string_lossy()
        .replace('/', "!")
}

/// Returns the size of a partition in bytes as the kernel has it, if it has it.
pub(super) fn size_of(sysfs: &Path, node: &Path) -> Option<u64> {
    let size = sysfs
        .join("class/block")
        .join(block_name(node))
        .join("size");
    let sectors: u64 = fs::read_to_string(size).ok()?.trim().parse().ok()?;
    // sysfs counts in units of 512 bytes, whatever the disk's sector size.
    sectors.checked_mul(512)
}

/// Waits until the kernel has the partition with its planned size, and its node in /dev.
fn wait_for_node(
    plan: &DiskPlan,
    partition: &PlannedPartition,
    sysfs: &Path,
) -> Result<(), ApplyError> {
    let node = partition_path(plan.disk.as_path(), partition.number);
    let deadline = Instant::now() + NODE_DEADLINE;
    loop {
        if size_of(sysfs, &node) == Some(partition.length) && node.exists() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(ApplyError::NoNode { partition: node });
        }
        std::thread::sleep(POLL);
    }
}
