//! Finds the disk that carries Instar.
//!
//! A machine owns one disk. If several carry Instar's partitions, for example one of a machine that is gone beside the machine's own, the one
//! counts that the firmware started the machine from. Nothing on the disks tells them apart: each of them says that it is the machine's.

use std::fs::File;
use std::path::Path;

use uuid::Uuid;

use super::discover::{DevPath, Disk, discover};
use super::error::OwnedDiskError;
use super::layout::Label;
use super::probe::{Content, block_size, probe};
use super::table::{self, Table};

/// Returns the disk that carries Instar, if there is one. `started_from`: the EFI system partition that this machine was started from, if known.
pub(super) fn find_owned(
    sysfs: &Path,
    started_from: Option<Uuid>,
) -> Result<Option<DevPath>, OwnedDiskError> {
    let disks = discover(sysfs)?.into_iter();
    let owned = disks.filter_map(|disk| Some((table_of(&disk)?, disk)));
    choose(owned.collect(), started_from)
}

/// Returns whether a disk with this partition is here. Reads the tables alone.
pub(super) fn is_here(sysfs: &Path, partition: Uuid) -> Result<bool, OwnedDiskError> {
    let disks = discover(sysfs)?;
    Ok(disks.iter().any(|disk| has_partition(disk, partition)))
}

fn has_partition(disk: &Disk, partition: Uuid) -> bool {
    let table = block_size(disk.sector_size).and_then(|_| {
        let mut file = File::open(disk.dev_path.as_path()).ok()?;
        table::read(&mut file, disk.size, disk.sector_size).ok()?
    });
    table.is_some_and(|table| table.partitions.iter().any(|it| it.guid == partition))
}

/// Returns whether the disk carries Instar already. A disk that cannot be read does not.
pub(super) fn is_owned(disk: &Disk) -> bool {
    table_of(disk).is_some()
}

fn table_of(disk: &Disk) -> Option<Table> {
    match probe(disk) {
        Ok(Content::Ours(table)) => Some(table),
        _ => None,
    }
}

fn choose(
    mut owned: Vec<(Table, Disk)>,
    started_from: Option<Uuid>,
) -> Result<Option<DevPath>, OwnedDiskError> {
    let was_started = |(table, _): &(Table, Disk)| has_efi(table, started_from);
    // A disk that is attached twice is one disk.
    if let Some((_, first)) = owned.first().cloned()
        && owned.iter().all(|(_, disk)| first.is_same_as(disk))
    {
        owned.truncate(1);
    }
    // A copy of a disk has its GUIDs as well: then nobody can tell.
    if owned.len() > 1 && owned.iter().filter(|&it| was_started(it)).count() == 1 {
        owned.retain(was_started);
    }
    let mut disks: Vec<DevPath> = owned.into_iter().map(|(_, disk)| disk.dev_path).collect();
    match disks.len() {
        0 | 1 => Ok(disks.pop()),
        _ => Err(OwnedDiskError::Several(disks)),
    }
}

/// Returns whether the table has this EFI system partition.
fn has_efi(table: &Table, guid: Option<Uuid>) -> bool {
    table
        .partitions
        .iter()
        .any(|it| Some(it.guid) == guid && Label::of(&it.label, &it.kind) == Some(Label::Efi))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use gpt::disk::LogicalBlockSize;

    use super::super::discover::tests::fixture;
    use super::super::table::Partition;
    use super::super::write_table::{Entry, write};
    use super::*;

    /// A disk with an EFI system partition of this GUID, and with this name from its maker.
    fn disk(name: &str, efi: u128, wwid: &str) -> (Table, Disk) {
        let device = format!("pci0000:00/block/{name}");
        let sys = fixture(&[(
            &device,
            &[("size", "131072"), ("serial", "S64"), ("wwid", wwid)],
        )]);
        let disk = discover(sys.path()).unwrap().remove(0);
        let efi = Partition {
            number: 1,
            label: Label::Efi.as_str().to_owned(),
            kind: Label::Efi.spec().kind.guid,
            guid: Uuid::from_u128(efi),
            start: 1 << 20,
            length: 128 << 20,
        };
        let table = Table {
            guid: Uuid::from_u128(0),
            partitions: vec![efi],
            needs_repair: false,
        };
        (table, disk)
    }

    #[test]
    fn of_several_disks_the_one_that_was_started_is_the_machines() {
        let started = Some(Uuid::from_u128(2));
        let chosen = |disks, started| {
            let chosen = choose(disks, started).map_err(|error| error.to_string());
            chosen.map(|disk| disk.map(|disk| disk.to_string()))
        };
        let one = || vec![disk("vda", 1, "")];
        let two = || vec![disk("vda", 1, ""), disk("vdb", 2, "")];
        assert_eq!(chosen(Vec::new(), started), Ok(None));
        // Firmware may have started another disk, or the network, beside the only one.
        assert_eq!(chosen(one(), started), Ok(Some("/dev/vda".to_owned())));
        assert_eq!(chosen(two(), started), Ok(Some("/dev/vdb".to_owned())));
        let copies = || vec![disk("vda", 2, ""), disk("vdb", 2, "")];
        for refused in [
            chosen(two(), None),
            chosen(two(), Some(Uuid::from_u128(3))),
            chosen(copies(), started),
        ] {
            let said = refused.unwrap_err();
            assert!(said.contains("/dev/vda and /dev/vdb"), "{said}");
        }
        let paths = vec![
            disk("vda", 2, "naa.5000c500"),
            disk("vdb", 2, "naa.5000c500"),
        ];
        assert_eq!(chosen(paths, None), Ok(Some("/dev/vda".to_owned())));
    }

    #[test]
    fn a_disk_is_here_once_its_table_has_the_partition() {
        let size = 64 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(size).unwrap();
        let sys = fixture(&[("pci0000:00/block/vda", &[("size", "131072")])]);
        let mut disk = discover(sys.path()).unwrap().remove(0);
        disk.dev_path = DevPath::of_kernel_name(file.path().to_str().unwrap());
        let [disk_guid, own, other] = [1, 2, 3].map(Uuid::from_u128);
        assert!(!has_partition(&disk, own), "it is blank");
        let entry = Entry {
            number: 1,
            label: "anything".to_owned(),
            kind: Label::Efi.spec().kind.clone(),
            guid: own,
            start: 1 << 20,
            length: 8 << 20,
        };
        let sectors = LogicalBlockSize::Lb512;
        write(file.as_file(), size, sectors, disk_guid, &[entry]).unwrap();
        assert!(has_partition(&disk, own) && !has_partition(&disk, other));
    }
}
