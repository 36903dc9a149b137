//! Disks, the machine's own volumes, mounts.

use std::path::Path;

use super::{Item, Kind, Namespace, Record, Sensitivity, Source, Value};
use crate::base::byte_size::human_short;
use crate::disk::{Disk, OwnedDiskStatus, STATE, discover};
use crate::statistics::{Mounted, mounted};

/// Disks, without loop devices and the like.
pub(super) const DISKS: Kind = Kind {
    name: "Disks.block.talos.dev",
    singular: "Disk",
    namespace: Namespace::Runtime,
    aliases: &[],
    columns: &[
        ("Size", "{.pretty_size}"),
        ("Read Only", "{.readonly}"),
        ("Transport", "{.transport}"),
        ("Rotational", "{.rotational}"),
        ("WWID", "{.wwid}"),
        ("Model", "{.model}"),
        ("Serial", "{.serial}"),
    ],
    sensitivity: Sensitivity::Open,
    sources: &[Source::Unannounced],
    read: |_| {
        let disks = discover(Path::new("/sys"))?.into_iter();
        Ok(disks.filter(|disk| !disk.software).map(disk).collect())
    },
};

/// The disk that the machine owns.
pub(super) const SYSTEM_DISKS: Kind = Kind {
    name: "SystemDisks.block.talos.dev",
    singular: "SystemDisk",
    columns: &[("Disk", "{.diskID}")],
    sources: &[Source::Disk],
    read: |machine| {
        Ok(system_disk(&machine.disk.status().borrow())
            .into_iter()
            .collect())
    },
    ..DISKS
};

/// The volumes that the machine keeps its data on.
pub(super) const VOLUMES: Kind = Kind {
    name: "VolumeStatuses.block.talos.dev",
    singular: "VolumeStatus",
    aliases: &["volumes"],
    columns: &[
        ("Type", "{.type}"),
        ("Phase", "{.phase}"),
        ("Location", "{.location}"),
        ("Size", "{.prettySize}"),
        ("Mounted", "{.mountLocation}"),
    ],
    sources: &[Source::Disk],
    read: |machine| Ok(volumes(&machine.disk.status().borrow())),
    ..DISKS
};

/// Mounted filesystems, without the kernel's own.
pub(super) const MOUNTS: Kind = Kind {
    name: "MountStatuses.block.talos.dev",
    singular: "MountStatus",
    aliases: &["mounts"],
    columns: &[
        ("Source", "{.source}"),
        ("Target", "{.target}"),
        ("Filesystem", "{.filesystem}"),
        ("Read Only", "{.readOnly}"),
    ],
    sources: &[Source::Unannounced],
    read: |_| Ok(mounted()?.into_iter().map(mount).collect()),
    ..DISKS
};

/// The remark on a filesystem that was not checked when it was mounted.
const UNCHECKED: &str =
    "at the next boot: containers that live on used the filesystem when it was mounted";

fn disk(disk: Disk) -> Item {
    let spec = Record::default()
        .with("size", 1, disk.size)
        .with("sector_size", 3, disk.sector_size)
        .with("readonly", 4, disk.readonly)
        .with("model", 5, disk.model)
        .with("serial", 6, disk.serial)
        .with("modalias", 7, disk.modalias)
        .with("wwid", 8, disk.wwid)
        .with("bus_path", 9, disk.bus_path)
        .with("transport", 11, disk.transport)
        .with("rotational", 12, disk.rotational)
        .with("cdrom", 13, disk.cdrom)
        .with("dev_path", 14, disk.dev_path.to_string())
        .with("pretty_size", 15, human_short(disk.size))
        .with("uuid", 17, disk.uuid)
        .with("symlinks", 18, disk.symlinks.into_iter().collect::<Value>());
    Item::new(disk.name, spec)
}

fn system_disk(status: &OwnedDiskStatus) -> Option<Item> {
    let disk = status.disk.as_ref()?;
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    let spec = Record::default().with("diskID", 1, name.as_ref()).with(
        "devPath",
        2,
        disk.to_string_lossy().as_ref(),
    );
    Some(Item::new("system-disk", spec))
}

fn volumes(status: &OwnedDiskStatus) -> Vec<Item> {
    let parent = status.disk.as_deref().unwrap_or(Path::new(""));
    let volume = |device: Option<&Path>, mounted: &str, size: u64| {
        let kind = match device {
            Some(_) => Value::Word(0, "partition"),
            None => Value::Word(2, "tmpfs"),
        };
        let pretty_size = match size {
            0 => String::new(),
            size => human_short(size),
        };
        let location = device.unwrap_or(Path::new("")).to_string_lossy();
        Record::default()
            .with("phase", 1, Value::Word(6, "ready"))
            .with("location", 2, location.as_ref())
            .with("parentLocation", 7, parent.to_string_lossy().as_ref())
            .with("size", 9, size)
            .with("mountLocation", 11, mounted)
            .with("prettySize", 13, pretty_size)
            .with("type", 16, kind)
    };
    let var = status.var_mounted.then(|| {
        let var = volume(status.var.as_deref(), "/var", status.size);
        match status.unchecked {
            // The field has no number in the contract, so only YAML shows it.
            true => var.with("check", 0, Value::Remark(UNCHECKED.to_owned())),
            false => var,
        }
    });
    let state = status.state.as_deref();
    let efi = status.efi.as_deref();
    [
        ("EFI", efi.map(|device| volume(Some(device), "", 0))),
        ("STATE", state.map(|device| volume(Some(device), STATE, 0))),
        ("EPHEMERAL", var),
    ]
    .into_iter()
    .filter_map(|(id, spec)| Some(Item::new(id, spec?)))
    .collect()
}

fn mount(mount: Mounted) -> Item {
    let filesystem = match mount.filesystem.as_str() {
        "vfat" => Value::Word(2, "vfat"),
        "ext4" => Value::Word(3, "ext4"),
        "iso9660" => Value::Word(4, "iso9660"),
        // Other filesystems have no number in the contract.
        _ => Value::Remark(mount.filesystem),
    };
    let spec = Record::default()
        .with("spec", 1, Record::default())
        .with("target", 2, mount.target.as_str())
        .with("source", 3, mount.source)
        .with("filesystem", 4, filesystem)
        .with("readOnly", 5, mount.read_only)
        .with("projectQuotaSupport", 6, false);
    Item::new(mount.target, spec)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::definitions::block as wire;
    use prost::Message as _;

    use super::*;

    #[test]
    fn volumes_are_where_they_are_mounted() {
        let in_memory = OwnedDiskStatus {
            var_mounted: true,
            size: 64 << 20,
            ..OwnedDiskStatus::default()
        };
        let item = volumes(&in_memory).remove(0);
        let spec = wire::VolumeStatusSpec::decode(item.spec.protobuf().as_slice()).unwrap();
        assert_eq!(
            (item.id.as_str(), spec.r#type, spec.phase),
            ("EPHEMERAL", 2, 6)
        );
        assert!(system_disk(&in_memory).is_none());

        let on_disk = OwnedDiskStatus {
            disk: Some("/dev/vda".into()),
            var: Some("/dev/vda3".into()),
            state: Some("/dev/vda2".into()),
            efi: Some("/dev/vda1".into()),
            unchecked: true,
            ..in_memory
        };
        let items = volumes(&on_disk);
        let ids: Vec<_> = items.iter().map(|item| item.id.as_str()).collect();
        assert_eq!(ids, ["EFI", "STATE", "EPHEMERAL"]);
        let spec = wire::VolumeStatusSpec::decode(items[1].spec.protobuf().as_slice()).unwrap();
        assert_eq!(
            (spec.location.as_str(), spec.mount_location.as_str()),
            ("/dev/vda2", STATE)
        );
        let yaml = items[2].spec.yaml();
        assert!(yaml.contains("check: \"at the next boot: "), "{yaml}");
        let item = system_disk(&on_disk).unwrap();
        let spec = wire::SystemDiskSpec::decode(item.spec.protobuf().as_slice()).unwrap();
        assert_eq!(
            (spec.disk_id.as_str(), spec.dev_path.as_str()),
            ("vda", "/dev/vda")
        );
    }

    #[test]
    fn mounts_name_their_filesystem() {
        let item = |filesystem: &str| {
            mount(Mounted {
                source: "/dev/vda3".to_owned(),
                target: "/var".to_owned(),
                filesystem: filesystem.to_owned(),
                read_only: true,
            })
        };
        let decoded =
            |item: &Item| wire::MountStatusSpec::decode(item.spec.protobuf().as_slice()).unwrap();
        let ext4 = decoded(&item("ext4"));
        assert_eq!(
            (ext4.target.as_str(), ext4.filesystem, ext4.read_only),
            ("/var", 3, true)
        );
        assert!(ext4.spec.is_some());
        let squashfs = item("squashfs");
        assert_eq!(decoded(&squashfs).filesystem, 0);
        assert!(squashfs.spec.yaml().contains("filesystem: squashfs"));
    }
}
