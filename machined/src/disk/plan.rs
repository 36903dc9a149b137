//! The plan for the owned disk: a value that can be inspected (and shown as a dry run) before anything is written.

use std::fmt;

use crate::base::byte_size::human_short;

use super::{
    discover::{DevPath, Disk},
    layout::{ALIGNMENT, LAYOUT, Label, PartitionSize, PartitionSpec},
    probe::{Content, block_size},
    table::Table,
};

/// The treatment of a disk that holds other data than Instar's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takeover {
    /// Leave it alone and return an error.
    Refuse,
    /// Take it over and destroy its contents.
    Wipe,
}

/// The plan for one disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPlan {
    /// The disk.
    pub disk: DevPath,
    /// Size of the disk, in bytes.
    pub size: u64,
    /// Logical sector size, in bytes.
    pub sector_size: u64,
    /// The action to take.
    pub action: Action,
}

/// The actions that a plan can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Keep the partitions that exist.
    Reuse {
        /// The disk's own GUID, which is kept.
        guid: uuid::Uuid,
        /// All partitions, as they will be afterwards.
        partitions: Vec<PlannedPartition>,
        /// Write the table again: a copy is broken, a partition is missing, or the disk has grown.
        rewrite_table: bool,
        /// The number of the last partition if it is to grow.
        grow: Option<u32>,
    },
    /// Make all partitions.
    Create {
        /// The contents that this destroys; none for a blank disk.
        destroys: Option<String>,
        /// The partitions to make.
        partitions: Vec<PlannedPartition>,
    },
}

/// A partition as it will be after the plan is applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPartition {
    /// Its number, from 1.
    pub number: u32,
    /// Its name.
    pub label: Label,
    /// Its own GUID, which is kept; none for a new partition.
    pub guid: Option<uuid::Uuid>,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
}

/// Why the disk cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The disk holds something else than Instar.
    #[error(
        "{disk} holds {content}; it is not touched. To give it to Instar, set wipe in the config, or name another disk"
    )]
    Foreign {
        /// The disk.
        disk: DevPath,
        /// The contents of the disk.
        content: String,
    },
    /// The disk was partitioned with another layout.
    #[error(
        "{disk} has Instar's partitions, but not {missing}, and no room for it in its place; set wipe in the config to make them all anew"
    )]
    Incomplete {
        /// The disk.
        disk: DevPath,
        /// The missing partition.
        missing: Label,
    },
    /// The disk is read-only.
    #[error("{0} is read-only; name another disk in the config")]
    ReadOnly(DevPath),
    /// The disk is too small.
    #[error(
        "{disk} has {size}, and the partitions need {needed}; name a larger disk in the config"
    )]
    TooSmall {
        /// The disk.
        disk: DevPath,
        /// The disk's size.
        size: String,
        /// The size that the partitions need.
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

/// Makes the plan for `disk`, on which `content` was found.
pub fn plan(disk: &Disk, content: &Content, takeover: Takeover) -> Result<DiskPlan, PlanError> {
    if block_size(disk.sector_size).is_none() {
        return Err(PlanError::SectorSize {
            disk: disk.dev_path.clone(),
            sector_size: disk.sector_size,
        });
    }
    if disk.readonly || disk.cdrom {
        return Err(PlanError::ReadOnly(disk.dev_path.clone()));
    }
    let create = |destroys| {
        let partitions = lay_out(disk, LAYOUT, 1, ALIGNMENT)?;
        Ok(Action::Create {
            destroys,
            partitions,
        })
    };
    let action = match (content, takeover) {
        // The disk carries Instar already, so it was wiped before. A config that keeps saying "wipe" must not cost the data at
        // every boot; erasing it again is the job of reset.
        (Content::Ours(table), _) => match (reuse(disk, table), takeover) {
            (Err(PlanError::Incomplete { .. }), Takeover::Wipe) => {
                create(Some("partitions of Instar's in another layout".to_owned()))
            }
            (reused, _) => reused,
        },
        (Content::Blank, _) => create(None),
        (other, Takeover::Wipe) => create(Some(other.to_string())),
        (other, Takeover::Refuse) => Err(PlanError::Foreign {
            disk: disk.dev_path.clone(),
            content: other.to_string(),
        }),
    }?;
    Ok(DiskPlan {
        disk: disk.dev_path.clone(),
        size: disk.size,
        sector_size: disk.sector_size,
        action,
    })
}

/// Returns the first byte after the usable space: the backup table takes 33 sectors at the end.
fn usable_end(size: u64, sector_size: u64) -> u64 {
    let table = 33 * 512_u64.max(sector_size);
    size.saturating_sub(table) / ALIGNMENT * ALIGNMENT
}

/// Places new partitions one after the other, with numbers from `number` and offsets from `start`.
fn lay_out(
    disk: &Disk,
    specs: &[PartitionSpec],
    number: u32,
    mut start: u64,
) -> Result<Vec<PlannedPartition>, PlanError> {
    let end = usable_end(disk.size, disk.sector_size);
    let mut partitions = Vec::new();
    for (number, spec) in (number..).zip(specs) {
        let (least, length) = match spec.size {
            PartitionSize::Bytes(bytes) => (bytes, bytes.next_multiple_of(ALIGNMENT)),
            PartitionSize::Rest { least } => (least, end.saturating_sub(start)),
        };
        if length < least || start + length > end {
            return Err(PlanError::TooSmall {
                disk: disk.dev_path.clone(),
                size: human_short(disk.size),
                needed: human_short(start + remaining(specs, spec) + ALIGNMENT),
            });
        }
        partitions.push(PlannedPartition {
            number,
            label: spec.label,
            guid: None,
            start,
            length,
        });
        start += length;
    }
    Ok(partitions)
}

/// Returns the fewest bytes that this partition and the following ones need.
fn remaining(specs: &[PartitionSpec], from: &PartitionSpec) -> u64 {
    let rest = specs.iter().skip_while(|spec| *spec != from);
    rest.map(|spec| match spec.size {
        PartitionSize::Bytes(bytes) => bytes,
        PartitionSize::Rest { least } => least,
    })
    .sum()
}

/// Keeps the existing partitions, adds those that a disk image leaves to be made, and grows the last one.
fn reuse(disk: &Disk, found: &Table) -> Result<Action, PlanError> {
    let labelled = found.partitions.iter().filter_map(|partition| {
        let label = Label::of(&partition.label, &partition.kind)?;
        Some(PlannedPartition {
            number: partition.number,
            label,
            guid: Some(partition.guid),
            start: partition.start,
            length: partition.length,
        })
    });
    let mut partitions: Vec<PlannedPartition> = labelled.collect();
    let is_there = |label| partitions.iter().any(|there| there.label == label);
    // New partitions go behind the existing ones, so only the end of the layout can be added.
    let there = LAYOUT
        .iter()
        .take_while(|spec| is_there(spec.label))
        .count();
    let (before, new) = LAYOUT.split_at(there);
    if let Some(missing) = new.first()
        && partitions.len() > before.len()
    {
        return Err(PlanError::Incomplete {
            disk: disk.dev_path.clone(),
            missing: missing.label,
        });
    }
    let end = usable_end(disk.size, disk.sector_size);
    let mut grow = None;
    if let Some(last) = partitions.iter_mut().max_by_key(|it| it.start) {
        let length = end.saturating_sub(last.start);
        let takes_rest = matches!(last.label.spec().size, PartitionSize::Rest { .. });
        if takes_rest && length > last.length {
            last.length = length;
            grow = Some(last.number);
        }
    }
    let number = partitions.iter().map(|it| it.number).max().unwrap_or(0) + 1;
    let start = partitions.iter().map(|it| it.start + it.length).max();
    let start = start.unwrap_or(ALIGNMENT).next_multiple_of(ALIGNMENT);
    partitions.extend(lay_out(disk, new, number, start)?);
    Ok(Action::Reuse {
        guid: found.guid,
        partitions,
        rewrite_table: found.needs_repair || grow.is_some() || !new.is_empty(),
        grow,
    })
}

impl DiskPlan {
    /// Whether the disk can be used as it is: the plan makes no partition, and only lets one grow or repairs a copy of the table.
    pub(super) fn can_wait(&self) -> bool {
        matches!(self.action, Action::Reuse { .. })
            && self.partitions().iter().all(|it| it.guid.is_some())
    }

    /// Returns the partitions as they will be after the plan is applied.
    pub fn partitions(&self) -> &[PlannedPartition] {
        match &self.action {
            Action::Reuse { partitions, .. } | Action::Create { partitions, .. } => partitions,
        }
    }

    /// Returns the partition with this name.
    pub fn partition(&self, label: Label) -> Option<&PlannedPartition> {
        self.partitions().iter().find(|it| it.label == label)
    }
}

impl fmt::Display for DiskPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (disk, size) = (&self.disk, human_short(self.size));
        match &self.action {
            Action::Reuse {
                rewrite_table,
                grow,
                ..
            } => {
                write!(f, "{disk} ({size}): use what is there")?;
                let adds = self.partitions().iter().any(|it| it.guid.is_none());
                match (grow, adds, rewrite_table) {
                    (Some(number), ..) => write!(f, ", partition {number} grows")?,
                    (None, true, _) => f.write_str(", add what is missing")?,
                    (None, false, true) => f.write_str(", the partition table is repaired")?,
                    (None, false, false) => {}
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
                human_short(partition.length),
                human_short(partition.start)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
