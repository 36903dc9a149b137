//! Keeps the loader in the firmware's boot order, by a plan of the crate `esp`.

use instar_esp::boot_order::{self, BOOT_ORDER, Change};

use super::efi_variables::{self as variables, EfiError};
use crate::disk::EfiPartition;

/// The occasion of writing the firmware's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// An installation: the loader comes first from then on.
    Installing,
    /// Any other boot: the order is written only if an entry is missing. An order that a person chose among all entries stays.
    Missing,
}

/// Makes sure that the firmware has its entries for the loader on this partition. Returns whether a variable was written.
pub fn keep_boot_entries(efi: &EfiPartition, when: When) -> Result<bool, EfiError> {
    let present = variables::all_boot()?;
    let changes = boot_order::plan(&present, &partition(efi));
    let is_missing = changes
        .iter()
        .any(|change| change.name != BOOT_ORDER && change.value.is_some());
    let has_order = present.contains_key(BOOT_ORDER);
    if changes.is_empty() || (when == When::Missing && !is_missing && has_order) {
        return Ok(false);
    }
    carry_out(&changes)?;
    Ok(true)
}

/// Writes and removes variables, in this order.
pub(super) fn carry_out(changes: &[Change]) -> Result<(), EfiError> {
    for change in changes {
        match &change.value {
            Some(value) => variables::write(&change.name, value)?,
            None => variables::remove(&change.name)?,
        }
    }
    Ok(())
}

/// Converts the partition for device paths.
pub(super) fn partition(efi: &EfiPartition) -> boot_order::Partition {
    let EfiPartition { partition, sector } = efi;
    boot_order::Partition {
        number: partition.number,
        first_block: partition.start / sector,
        blocks: partition.length / sector,
        guid: partition.guid.to_bytes_le(),
    }
}
