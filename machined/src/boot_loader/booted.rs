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
    let (loader, uki) = (variables::loader_partition()?, variables::uki_partition()?);
    let Some(partition) = by_the_loader(loader, uki) else {
        return Ok(None);
    };
    Ok(Some(Booted {
        entry: variables::selected_entry()?,
        partition: Some(partition),
    }))
}

/// The loader's partition, where the UKI that runs comes from there too. Where the firmware refused all that the loader started, and
/// took another way in the end, such as the network, the loader's variables are still there, and tell of something else.
fn by_the_loader(loader: Option<Uuid>, uki: Option<Uuid>) -> Option<Uuid> {
    loader.filter(|loader| uki == Some(*loader))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_from_elsewhere_was_not_started_by_the_loader() {
        let (disk, stick) = (Uuid::from_u128(1), Uuid::from_u128(2));
        assert_eq!(by_the_loader(Some(disk), Some(disk)), Some(disk));
        assert_eq!(by_the_loader(Some(disk), None), None);
        assert_eq!(by_the_loader(Some(disk), Some(stick)), None);
        assert_eq!(by_the_loader(None, Some(stick)), None);
    }
}
