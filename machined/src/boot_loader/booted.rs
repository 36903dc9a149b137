//! What this kernel was started from.

use instar_esp::EntryName;
use uuid::Uuid;

use super::efi_variables::{self as variables, EfiError};
use super::kexec;

/// What started this kernel, where it came from a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booted {
    /// The boot entry, with its tries where they are counted; none where it was none of ours.
    pub entry: Option<EntryName>,
    /// The loader's partition; none where the version before started this kernel, from the disk that it ran on.
    pub partition: Option<Uuid>,
}

/// What started this kernel; none where it did not come from a disk. The module efivarfs must be loaded where there is UEFI.
pub fn booted() -> Result<Option<Booted>, EfiError> {
    // First: past the loader, its variables tell of the boot before.
    if let Some(entry) = kexec::entry() {
        return Ok(Some(Booted {
            entry: Some(entry),
            partition: None,
        }));
    }
    if !variables::is_uefi() {
        return Ok(None);
    }
    let Some(partition) = variables::loader_partition()? else {
        return Ok(None);
    };
    Ok(Some(Booted {
        entry: variables::selected_entry()?,
        partition: Some(partition),
    }))
}
