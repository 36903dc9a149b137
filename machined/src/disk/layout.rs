//! The partitions that Instar makes, as data.

use std::{fmt, str::FromStr};

use gpt::partition_types::{self, Type};
use serde::Serialize;

/// Alignment of partitions, in bytes: whole erase blocks of every common disk.
pub(super) const ALIGNMENT: u64 = 1024 * 1024;

const MIB: u64 = 1024 * 1024;

/// The name of a partition in the GPT. Instar finds its partitions by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Label {
    /// Boot assets on FAT32, read by the firmware and the boot loader.
    Efi,
    /// The machine's identity: its config and the record of its upgrades.
    State,
    /// Data that can be made again, at /var.
    Ephemeral,
}

/// The size of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionSize {
    /// A fixed number of bytes.
    Bytes(u64),
    /// The rest of the disk; only for the last partition.
    Rest {
        /// The fewest bytes that are enough.
        least: u64,
    },
}

/// One partition of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSpec {
    /// Its name.
    pub label: Label,
    /// The type GUID in the GPT.
    pub kind: Type,
    /// Its size.
    pub size: PartitionSize,
}

/// All partitions, in the order on the disk.
pub const LAYOUT: &[PartitionSpec] = &[
    PartitionSpec {
        label: Label::Efi,
        kind: partition_types::EFI,
        // Three versions of 20 to 30 MB, and one that is being written.
        size: PartitionSize::Bytes(128 * MIB),
    },
    PartitionSpec {
        label: Label::State,
        kind: partition_types::LINUX_FS,
        size: PartitionSize::Bytes(24 * MIB),
    },
    PartitionSpec {
        label: Label::Ephemeral,
        kind: partition_types::LINUX_FS,
        size: PartitionSize::Rest { least: 64 * MIB },
    },
];

impl Label {
    /// Returns the name as in the GPT.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Efi => "EFI",
            Self::State => "STATE",
            Self::Ephemeral => "EPHEMERAL",
        }
    }

    /// Returns the partition of the layout with this name and type GUID; none for a foreign partition.
    pub(super) fn of(name: &str, kind: &uuid::Uuid) -> Option<Self> {
        let spec = LAYOUT
            .iter()
            .find(|spec| spec.label.as_str() == name && spec.kind.guid == *kind)?;
        Some(spec.label)
    }

    /// Returns the partition's entry in the layout.
    pub(super) fn spec(self) -> &'static PartitionSpec {
        &LAYOUT[self as usize]
    }
}

impl FromStr for Label {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        let known = LAYOUT.iter().map(|spec| spec.label);
        known
            .into_iter()
            .find(|label| label.as_str() == name)
            .ok_or(())
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_in_the_order_of_the_labels() {
        for spec in LAYOUT {
            assert_eq!(spec.label.spec(), spec);
        }
    }
}
