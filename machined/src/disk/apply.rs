//! Carrying a plan out: the only code that opens a disk for writing, and only the one that the plan names.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use super::{
    layout::{ALIGNMENT, LAYOUT},
    plan::{Action, DiskPlan, PlannedPartition},
    probe::block_size,
    write_table::{self, Entry},
};
use crate::sys;

/// The kernel makes nodes in /dev by itself; this is for slow controllers.
const NODE_DEADLINE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// Why a plan could not be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Busy or gone.
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
    /// The kernel keeps the old table.
    #[error(
        "the kernel does not take the new partition table of {disk}; something uses a partition of it"
    )]
    Reread {
        /// The disk.
        disk: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No node.
    #[error("{partition} has not appeared within {} s; see the kernel log", NODE_DEADLINE.as_secs())]
    NoNode {
        /// The partition's device.
        partition: PathBuf,
    },
}

/// Makes the disk as planned. Blocks: run it where that is fine.
pub fn apply(plan: &DiskPlan, sysfs: &Path) -> Result<(), ApplyError> {
    let path = plan.disk.as_path();
    match &plan.action {
        Action::Reuse {
            rewrite_table: false,
            ..
        } => {}
        Action::Reuse { guid, .. } => {
            let disk = open_exclusively(path)?;
            write_table(&disk, plan, *guid).map_err(|source| ApplyError::Write {
                disk: path.to_owned(),
                source,
            })?;
            reread(&disk, path)?;
        }
        Action::Create { .. } => {
            let disk = open_exclusively(path)?;
            // The table comes last: once it is there, the disk is ours and what its partitions hold is reused. So what
            // an old filesystem has left in their place must be gone before.
            erase(&disk, plan)
                .and_then(|()| write_table(&disk, plan, uuid::Uuid::new_v4()))
                .map_err(|source| ApplyError::Write {
                    disk: path.to_owned(),
                    source,
                })?;
            reread(&disk, path)?;
        }
    }
    plan.partitions()
        .iter()
        .try_for_each(|partition| wait_for_node(plan, partition, sysfs))
}

/// The device of a partition: `/dev/vda1`, `/dev/nvme0n1p1`.
pub fn partition_path(plan: &DiskPlan, number: u32) -> PathBuf {
    let disk = plan.disk.to_string();
    let separator = if disk.ends_with(|c: char| c.is_ascii_digit()) {
        "p"
    } else {
        ""
    };
    PathBuf::from(format!("{disk}{separator}{number}"))
}

/// O_EXCL on a block device fails with EBUSY when it, or a partition of it, is mounted or otherwise claimed.
fn open_exclusively(path: &Path) -> Result<File, ApplyError> {
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

/// Makes both ends of the disk and the beginning of each partition zero.
fn erase(disk: &File, plan: &DiskPlan) -> io::Result<()> {
    let zeros = vec![0; usize::try_from(ALIGNMENT.min(plan.size)).unwrap_or(0)];
    let starts = plan.partitions().iter().map(|partition| partition.start);
    for offset in starts.chain([plan.size - zeros.len() as u64, 0]) {
        disk.write_all_at(&zeros, offset)?;
    }
    disk.sync_all()
}

fn write_table(disk: &File, plan: &DiskPlan, guid: uuid::Uuid) -> io::Result<()> {
    let block =
        block_size(plan.sector_size).ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))?;
    let entry = |partition: &PlannedPartition| {
        let spec = LAYOUT.iter().find(|spec| spec.label == partition.label)?;
        Some(Entry {
            number: partition.number,
            label: partition.label.clone(),
            kind: spec.kind.clone(),
            guid: partition.guid.unwrap_or_else(uuid::Uuid::new_v4),
            start: partition.start,
            length: partition.length,
        })
    };
    let entries: Option<Vec<Entry>> = plan.partitions().iter().map(entry).collect();
    let entries = entries
        .ok_or_else(|| io::Error::other("the plan names a partition that is not in the layout"))?;
    write_table::write(disk, plan.size, block, guid, &entries)
}

/// Something that probes new devices may hold the disk for a moment.
fn reread(disk: &File, path: &Path) -> Result<(), ApplyError> {
    let deadline = Instant::now() + NODE_DEADLINE;
    loop {
        match sys::block::reread_partitions(disk) {
            Ok(()) => return Ok(()),
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && Instant::now() < deadline =>
            {
                std::thread::sleep(POLL);
            }
            Err(source) => {
                return Err(ApplyError::Reread {
                    disk: path.to_owned(),
                    source,
                });
            }
        }
    }
}

/// Waits until the kernel has the partition with its planned size, and its node in /dev.
fn wait_for_node(
    plan: &DiskPlan,
    partition: &PlannedPartition,
    sysfs: &Path,
) -> Result<(), ApplyError> {
    let node = partition_path(plan, partition.number);
    let name = node
        .strip_prefix("/dev")
        .unwrap_or(&node)
        .to_string_lossy()
        .replace('/', "!");
    let size = sysfs.join("class/block").join(name).join("size");
    let deadline = Instant::now() + NODE_DEADLINE;
    loop {
        let sectors = fs::read_to_string(&size)
            .ok()
            .and_then(|text| text.trim().parse::<u64>().ok());
        if sectors == Some(partition.length / 512) && node.exists() {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(ApplyError::NoNode { partition: node });
        }
        std::thread::sleep(POLL);
    }
}
