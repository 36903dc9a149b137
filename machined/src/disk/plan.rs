//! What to do with the owned disk: a value to look at (and to show as a dry run) before anything is written.

use std::fmt;

use super::{
    discover::{DevPath, Disk, human},
    layout::{ALIGNMENT, EPHEMERAL, PartitionSize, PartitionSpec},
    probe::{Content, block_size},
    table::Table,
};

/// What the config wants of the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskWish<'a> {
    /// The partitions to have.
    pub layout: &'a [PartitionSpec],
    /// Take the disk over whatever is on it.
    pub wipe: bool,
}

/// What to do with one disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPlan {
    /// The disk.
    pub disk: DevPath,
    /// In bytes.
    pub size: u64,
    /// Logical sector in bytes.
    pub sector_size: u64,
    /// What to do.
    pub action: Action,
}

/// The two things that can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The partitions are there.
    Reuse {
        /// The disk's own GUID, which stays.
        guid: uuid::Uuid,
        /// All of them, as they shall be afterwards.
        partitions: Vec<PlannedPartition>,
        /// Write the table again: a copy is broken, or the disk has grown.
        rewrite_table: bool,
        /// The number of the last partition when it is to take new space.
        grow: Option<u32>,
    },
    /// Make them.
    Create {
        /// What is destroyed by that; none for a blank disk.
        destroys: Option<String>,
        /// The new ones.
        partitions: Vec<PlannedPartition>,
    },
}

/// A partition as it shall be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPartition {
    /// Its number, from 1.
    pub number: u32,
    /// Its name.
    pub label: String,
    /// Its own GUID, which stays; none for a new one.
    pub guid: Option<uuid::Uuid>,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Somebody else's disk.
    #[error(
        "{disk} holds {content}; it is not touched. To give it to Instar, set wipe in the config, or name another disk"
    )]
    Foreign {
        /// The disk.
        disk: DevPath,
        /// What is on it.
        content: String,
    },
    /// Cannot be written.
    #[error("{0} is read-only; name another disk in the config")]
    ReadOnly(DevPath),
    /// Not enough space.
    #[error(
        "{disk} has {size}, and the partitions need {needed}; name a larger disk in the config"
    )]
    TooSmall {
        /// The disk.
        disk: DevPath,
        /// What it has.
        size: String,
        /// What is needed.
        needed: String,
    },
    /// A sector size that no GPT is defined for.
    #[error("{disk} has sectors of {sector_size} bytes; only 512 and 4096 are supported")]
    SectorSize {
        /// The disk.
        disk: DevPath,
        /// Its sector size.
        sector_size: u64,
    },
}

/// The plan for `disk`, on which `content` was found.
pub fn plan(disk: &Disk, content: &Content, wish: &DiskWish<'_>) -> Result<DiskPlan, PlanError> {
    if block_size(disk.sector_size).is_none() {
        return Err(PlanError::SectorSize {
            disk: disk.dev_path.clone(),
            sector_size: disk.sector_size,
        });
    }
    if disk.readonly || disk.cdrom {
        return Err(PlanError::ReadOnly(disk.dev_path.clone()));
    }
    let action = match content {
        // Asked to wipe a disk that is Instar's already: it was wiped for us once. A config that keeps saying
        // "wipe" must not cost the data at every boot; that is what reset is for.
        Content::Ours(table) => reuse(disk, table, wish),
        Content::Blank => Action::Create {
            destroys: None,
            partitions: lay_out(disk, wish.layout)?,
        },
        other if wish.wipe => Action::Create {
            destroys: Some(other.to_string()),
            partitions: lay_out(disk, wish.layout)?,
        },
        other => {
            return Err(PlanError::Foreign {
                disk: disk.dev_path.clone(),
                content: other.to_string(),
            });
        }
    };
    Ok(DiskPlan {
        disk: disk.dev_path.clone(),
        size: disk.size,
        sector_size: disk.sector_size,
        action,
    })
}

/// The first byte after the last one that partitions may use: the backup table takes 33 sectors.
fn usable_end(size: u64, sector_size: u64) -> u64 {
    let table = 33 * 512_u64.max(sector_size);
    size.saturating_sub(table) / ALIGNMENT * ALIGNMENT
}

fn lay_out(disk: &Disk, layout: &[PartitionSpec]) -> Result<Vec<PlannedPartition>, PlanError> {
    let end = usable_end(disk.size, disk.sector_size);
    let mut partitions = Vec::new();
    let mut start = ALIGNMENT;
    for (number, spec) in (1..).zip(layout) {
        let (least, length) = match spec.size {
            PartitionSize::Bytes(bytes) => (bytes, bytes.next_multiple_of(ALIGNMENT)),
            PartitionSize::Rest { least } => (least, end.saturating_sub(start)),
        };
        if length < least || start + length > end {
            return Err(PlanError::TooSmall {
                disk: disk.dev_path.clone(),
                size: human(disk.size),
                needed: human(start + least + ALIGNMENT),
            });
        }
        partitions.push(PlannedPartition {
            number,
            label: spec.label.to_owned(),
            guid: None,
            start,
            length,
        });
        start += length;
    }
    Ok(partitions)
}

fn reuse(disk: &Disk, found: &Table, wish: &DiskWish<'_>) -> Action {
    let mut partitions: Vec<PlannedPartition> = found
        .partitions
        .iter()
        .map(|partition| PlannedPartition {
            number: partition.number,
            label: partition.label.clone(),
            guid: Some(partition.guid),
            start: partition.start,
            length: partition.length,
        })
        .collect();
    let takes_rest = wish
        .layout
        .last()
        .filter(|spec| matches!(spec.size, PartitionSize::Rest { .. }));
    let last = partitions
        .iter_mut()
        .max_by_key(|partition| partition.start);
    let mut grow = None;
    if let (Some(spec), Some(last)) = (takes_rest, last) {
        let length = usable_end(disk.size, disk.sector_size).saturating_sub(last.start);
        if last.label == spec.label && length > last.length {
            last.length = length;
            grow = Some(last.number);
        }
    }
    Action::Reuse {
        guid: found.guid,
        partitions,
        rewrite_table: found.needs_repair || grow.is_some(),
        grow,
    }
}

impl DiskPlan {
    /// The partitions after the plan is applied.
    pub fn partitions(&self) -> &[PlannedPartition] {
        match &self.action {
            Action::Reuse { partitions, .. } | Action::Create { partitions, .. } => partitions,
        }
    }

    /// The partition that goes to /var.
    pub fn ephemeral(&self) -> Option<&PlannedPartition> {
        self.partitions()
            .iter()
            .find(|partition| partition.label == EPHEMERAL)
    }
}

impl fmt::Display for DiskPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (disk, size) = (&self.disk, human(self.size));
        match &self.action {
            Action::Reuse {
                rewrite_table,
                grow,
                ..
            } => {
                write!(f, "{disk} ({size}): use what is there")?;
                match (grow, rewrite_table) {
                    (Some(number), _) => write!(f, ", partition {number} grows")?,
                    (None, true) => f.write_str(", the partition table is repaired")?,
                    (None, false) => {}
                }
            }
            Action::Create { destroys, .. } => {
                write!(f, "{disk} ({size}): write a new partition table")?;
                if let Some(content) = destroys {
                    write!(f, ", DESTROYING {content}")?;
                }
            }
        }
        for partition in self.partitions() {
            let (number, label) = (partition.number, &partition.label);
            write!(
                f,
                "\n  {number} {label} {} at {}",
                human(partition.length),
                human(partition.start)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
