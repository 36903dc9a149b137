//! The boot entry and the partition that this kernel was started from.

use instar_esp::EntryName;
use uuid::Uuid;

use super::efi_variables::{self as variables, EfiError};
use super::kexec;

/// The origin of this kernel, if it came from a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Booted {
    /// The boot entry, with its tries if they are counted; none if it is not one of ours.
    pub entry: Option<EntryName>,
    /// The loader's partition; none if the previous version started this kernel by kexec, from the disk that it ran on.
    pub partition: Option<Uuid>,
}

/// Returns the origin of this kernel; none if it did not come from a disk. With UEFI, the module efivarfs must be loaded.
pub fn booted() -> Result<Option<Booted>, EfiError> {
    // This comes first, because after a kexec the loader's variables describe the boot before.
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

/// Returns the partition of the loader that started this machine; none if it did not come from a disk, or nobody can tell which. After a kexec the
/// loader's variables describe the boot before, which was from the same disk. With UEFI, the module efivarfs must be loaded.
pub fn started_from() -> Result<Option<Uuid>, EfiError> {
    match booted()? {
        Some(Booted {
            partition: None, ..
        }) if variables::is_uefi() => variables::loader_partition(),
        found => Ok(found.and_then(|it| it.partition)),
    }
}

/// Returns the loader's partition, if the running UKI comes from there too. If the firmware refused everything that the loader
/// started, and booted in another way in the end, for example from the network, the loader's variables still exist and describe a
/// failed start.
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
