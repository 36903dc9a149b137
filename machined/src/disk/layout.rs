//! The partitions that Instar makes, as data.

use gpt::partition_types::{self, Type};

/// Partitions start and end on multiples of this: whole erase blocks of every common disk.
pub(super) const ALIGNMENT: u64 = 1024 * 1024;

/// How large a partition becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartitionSize {
    /// This many bytes.
    Bytes(u64),
    /// What is left; only for the last one.
    Rest {
        /// Less than this many bytes is an error.
        least: u64,
    },
}

/// One partition of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionSpec {
    /// The name in the GPT, by which it is found again.
    pub label: &'static str,
    /// The type GUID in the GPT.
    pub kind: Type,
    /// Its size.
    pub size: PartitionSize,
}

/// The name of the partition at /var.
pub const EPHEMERAL: &str = "EPHEMERAL";

/// All partitions, in the order on the disk.
pub const LAYOUT: &[PartitionSpec] = &[PartitionSpec {
    label: EPHEMERAL,
    kind: partition_types::LINUX_FS,
    size: PartitionSize::Rest {
        least: 64 * 1024 * 1024,
    },
}];

/// Whether a partition with this name and type GUID is one that Instar makes.
pub(super) fn is_ours(label: &str, kind: &uuid::Uuid) -> bool {
    LAYOUT
        .iter()
        .any(|spec| spec.label == label && spec.kind.guid == *kind)
}
