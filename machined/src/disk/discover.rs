//! Lists the disks of the machine from sysfs. Nothing here opens a disk.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// The path of a block device, for example `/dev/vda`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct DevPath(PathBuf);

impl DevPath {
    /// Returns the path of a device by its kernel name.
    pub fn of_kernel_name(name: &str) -> Self {
        // The kernel writes a slash in a name (cciss/c0d0) as an exclamation mark.
        Self(Path::new("/dev").join(name.replace('!', "/")))
    }

    /// Returns the path.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for DevPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// A whole disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Disk {
    /// The device's path.
    pub dev_path: DevPath,
    /// The kernel's name, for example `vda`.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Logical sector size in bytes.
    pub sector_size: u64,
    /// Model, as the device reports it, trimmed.
    pub model: String,
    /// Serial number, as the device reports it, trimmed.
    pub serial: String,
    /// World-wide name, for example `naa.5000…` or `eui.0025…`.
    pub wwid: String,
    /// NVMe namespace UUID.
    pub uuid: String,
    /// The device's modalias in sysfs.
    pub modalias: String,
    /// `nvme`, `virtio`, `sata`, `scsi`, `usb`, `mmc` or `xen`; empty for any other.
    pub transport: String,
    /// Whether it has a spinning platter.
    pub rotational: bool,
    /// Whether it is read-only.
    pub readonly: bool,
    /// Whether it is a CD or DVD drive.
    pub cdrom: bool,
    /// Place on the bus, below /sys/devices, for example `/pci0000:00/0000:00:02.0/virtio1`.
    pub bus_path: String,
    /// Names that udev would give it below /dev/disk/by-id, so that configs written for other systems fit.
    pub symlinks: Vec<String>,
    /// Whether software made it: loop, device-mapper, zram. An NVMe disk with several paths is none of these, although sysfs calls it virtual.
    pub software: bool,
}

impl Disk {
    /// Whether both are paths to one disk, which is attached twice. Some devices share their names with others of their kind, so all names that are
    /// meant to be unique have to be equal.
    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        let names = |disk: &Self| (disk.wwid.clone(), disk.serial.clone(), disk.size);
        let is_named = ["naa.", "eui."]
            .iter()
            .any(|kind| self.wwid.starts_with(kind));
        is_named && !self.serial.is_empty() && names(self) == names(other)
    }
}

/// Why sysfs could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot list the disks in {path}; is sysfs mounted?")]
pub struct DiscoverError {
    path: PathBuf,
    source: io::Error,
}

/// Lists all whole disks below `sysfs` (`/sys`), sorted by name. Empty drives (size 0) are left out, and what only belongs to a disk: a single
/// path of one with several, and the boot areas of an eMMC.
pub fn discover(sysfs: &Path) -> Result<Vec<Disk>, DiscoverError> {
    let path = sysfs.join("class/block");
    let entries = fs::read_dir(&path).map_err(|source| DiscoverError {
        path: path.clone(),
        source,
    })?;
    let mut disks: Vec<Disk> = entries
        .flatten()
        .filter(|entry| !entry.path().join("partition").exists())
        .filter(|entry| !belongs_to_a_disk(&entry.path(), &entry.file_name().to_string_lossy()))
        .filter_map(|entry| read_disk(&path, &entry.file_name().to_string_lossy()))
        .filter(|disk| disk.size > 0)
        .collect();
    disks.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(disks)
}

/// Whether this is no disk, but a path to one (`nvme0c0n1`, which has no node in /dev), or an area of one that holds firmware's data.
fn belongs_to_a_disk(node: &Path, name: &str) -> bool {
    let is_hidden = fs::read_to_string(node.join("hidden")).is_ok_and(|text| text.trim() == "1");
    let is_boot_area =
        name.starts_with("mmcblk") && (name.contains("boot") || name.ends_with("rpmb"));
    is_hidden || is_boot_area
}

/// Reads one disk; none if the device vanished meanwhile.
fn read_disk(class: &Path, name: &str) -> Option<Disk> {
    let node = class.join(name);
    let attribute = |file: &str| {
        fs::read_to_string(node.join(file))
            .map(|text| text.trim().to_owned())
            .unwrap_or_default()
    };
    let first = |files: &[&str]| {
        files
            .iter()
            .map(|file| attribute(file))
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    };
    // The kernel counts in units of 512 bytes here, whatever the disk's sector size.
    let size = attribute("size").parse::<u64>().ok()?.checked_mul(512)?;
    let real = fs::canonicalize(&node)
        .unwrap_or_else(|_| node.clone())
        .to_string_lossy()
        .into_owned();
    let device = real.split_once("/devices/").map_or("", |(_, rest)| rest);
    let is_virtual = device.starts_with("virtual/");
    let bus_path = match device
        .split_once("/block/")
        .or_else(|| device.rsplit_once('/'))
    {
        Some((bus, _)) if !is_virtual => format!("/{bus}"),
        _ => String::new(),
    };
    let mut disk = Disk {
        dev_path: DevPath::of_kernel_name(name),
        name: name.to_owned(),
        size,
        sector_size: attribute("queue/logical_block_size").parse().unwrap_or(512),
        model: first(&["device/model", "device/name"]),
        serial: first(&["serial", "device/serial"]),
        wwid: first(&["wwid", "device/wwid"]),
        uuid: attribute("uuid"),
        modalias: first(&["device/modalias", "device/device/modalias"]),
        transport: transport(name, device).to_owned(),
        rotational: attribute("queue/rotational") == "1",
        readonly: attribute("ro") == "1",
        cdrom: name.starts_with("sr"),
        bus_path,
        symlinks: Vec::new(),
        // The disk that several paths lead to hangs on a subsystem, and not on one of its controllers.
        software: is_virtual && !name.starts_with("nvme"),
    };
    if disk.serial.is_empty() {
        disk.serial = scsi_serial(&node);
    }
    disk.symlinks = symlinks(&disk);
    Some(disk)
}

/// Reads the serial number of a SCSI disk from a page of binary data: four bytes of header, then text.
fn scsi_serial(node: &Path) -> String {
    let page = fs::read(node.join("device/vpd_pg80")).unwrap_or_default();
    String::from_utf8_lossy(page.get(4..).unwrap_or_default())
        .trim_matches(['\0', ' '])
        .to_owned()
}

fn transport(name: &str, device: &str) -> &'static str {
    let on = |bus: &str| {
        device.split('/').any(|part| {
            part.starts_with(bus) && part[bus.len()..].starts_with(|c: char| c.is_ascii_digit())
        })
    };
    match () {
        () if device.starts_with("virtual/") && !name.starts_with("nvme") => "",
        () if name.starts_with("nvme") => "nvme",
        () if name.starts_with("mmcblk") => "mmc",
        () if name.starts_with("xvd") => "xen",
        () if on("usb") => "usb",
        () if on("ata") => "sata",
        // A SCSI disk of a virtio controller is a SCSI disk.
        () if on("host") => "scsi",
        () if on("virtio") => "virtio",
        () => "",
    }
}

fn symlinks(disk: &Disk) -> Vec<String> {
    let clean = |text: &str| text.split_whitespace().collect::<Vec<_>>().join("_");
    let (model, serial) = (clean(&disk.model), clean(&disk.serial));
    let mut ids = Vec::new();
    match disk.transport.as_str() {
        "virtio" if !serial.is_empty() => ids.push(format!("virtio-{serial}")),
        "nvme" if !serial.is_empty() => ids.push(format!("nvme-{model}_{serial}")),
        "sata" if !serial.is_empty() => ids.push(format!("ata-{model}_{serial}")),
        "mmc" if !serial.is_empty() => ids.push(format!("mmc-{model}_{serial}")),
        _ => {}
    }
    if let Some(naa) = disk.wwid.strip_prefix("naa.") {
        ids.push(format!("wwn-0x{naa}"));
    } else if disk.transport == "nvme" && !disk.wwid.is_empty() {
        ids.push(format!("nvme-{}", disk.wwid));
    }
    ids.iter()
        .map(|id| format!("/dev/disk/by-id/{id}"))
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    /// Makes a sysfs with the given files; a directory `class/block/NAME` links to each device.
    pub(crate) fn fixture(devices: &[(&str, &[(&str, &str)])]) -> tempfile::TempDir {
        let sys = tempfile::tempdir().unwrap();
        fs::create_dir_all(sys.path().join("class/block")).unwrap();
        for (device, files) in devices {
            let node = sys.path().join("devices").join(device);
            for (file, text) in *files {
                let path = node.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{text}\n")).unwrap();
            }
            let name = device.rsplit('/').next().unwrap();
            std::os::unix::fs::symlink(&node, sys.path().join("class/block").join(name)).unwrap();
        }
        sys
    }

    pub(crate) fn machine() -> tempfile::TempDir {
        fixture(&[
            (
                "pci0000:00/0000:00:02.0/virtio1/block/vda",
                &[
                    ("size", "67108864"),
                    ("serial", "root disk"),
                    ("queue/rotational", "1"),
                    ("ro", "0"),
                    ("queue/logical_block_size", "512"),
                ],
            ),
            (
                "pci0000:00/0000:00:02.0/virtio1/block/vda/vda1",
                &[("size", "2048"), ("partition", "1")],
            ),
            (
                "pci0000:00/0000:00:05.0/nvme/nvme0/nvme0n1",
                &[
                    ("size", "1953525168"),
                    ("wwid", "eui.0025385b21404321"),
                    ("uuid", "c4d2"),
                    ("device/model", "Samsung SSD 980"),
                    ("device/serial", "S64DNF0R"),
                    ("queue/rotational", "0"),
                    ("queue/logical_block_size", "4096"),
                ],
            ),
            (
                "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0/block/sda",
                &[
                    ("size", "3907029168"),
                    ("device/model", "WDC WD20EZRX"),
                    ("device/wwid", "naa.50014ee2"),
                    ("queue/rotational", "1"),
                ],
            ),
            (
                "pci0000:00/0000:00:1f.2/ata2/host1/target1:0:0/1:0:0:0/block/sr0",
                &[("size", "0")],
            ),
            ("virtual/block/loop0", &[("size", "2048")]),
        ])
    }

    #[test]
    fn disks_are_described() {
        let sys = machine();
        let disks = discover(sys.path()).unwrap();
        let names: Vec<_> = disks.iter().map(|disk| disk.name.as_str()).collect();
        assert_eq!(
            names,
            ["loop0", "nvme0n1", "sda", "vda"],
            "no partitions, no empty drives"
        );
        let [loop0, nvme, sda, vda] = disks.as_slice() else {
            panic!("{disks:?}")
        };
        assert!(loop0.software && loop0.bus_path.is_empty());
        assert_eq!(
            (nvme.transport.as_str(), nvme.sector_size, nvme.rotational),
            ("nvme", 4096, false)
        );
        assert_eq!(
            nvme.symlinks,
            [
                "/dev/disk/by-id/nvme-Samsung_SSD_980_S64DNF0R",
                "/dev/disk/by-id/nvme-eui.0025385b21404321"
            ]
        );
        assert_eq!(
            (sda.transport.as_str(), sda.symlinks.as_slice()),
            ("sata", &["/dev/disk/by-id/wwn-0x50014ee2".to_owned()][..])
        );
        assert_eq!((vda.transport.as_str(), vda.size), ("virtio", 32 << 30));
        assert_eq!(vda.bus_path, "/pci0000:00/0000:00:02.0/virtio1");
        assert_eq!(vda.symlinks, ["/dev/disk/by-id/virtio-root_disk"]);
    }

    #[test]
    fn a_disk_with_several_paths_or_with_boot_areas_is_one_disk() {
        let emmc = "pci0000:00/0000:00:1a.0/mmc_host/mmc0/mmc0:0001/block/mmcblk0";
        let boot_area = format!("{emmc}/mmcblk0boot0");
        let sys = fixture(&[
            (
                "virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
                &[
                    ("size", "1953525168"),
                    ("hidden", "0"),
                    ("wwid", "eui.0025385b21404321"),
                    ("device/serial", "S64DNF0R"),
                ],
            ),
            (
                "pci0000:00/0000:00:05.0/nvme/nvme0/nvme0c0n1",
                &[("size", "1953525168"), ("hidden", "1")],
            ),
            (emmc, &[("size", "61071360")]),
            (&boot_area, &[("size", "8192")]),
        ]);
        let disks = discover(sys.path()).unwrap();
        let [emmc, nvme] = disks.as_slice() else {
            panic!("{disks:?}")
        };
        assert_eq!(
            (emmc.name.as_str(), nvme.name.as_str()),
            ("mmcblk0", "nvme0n1")
        );
        assert!(!nvme.software, "a selector may take it");
        assert_eq!(
            (nvme.transport.as_str(), nvme.serial.as_str()),
            ("nvme", "S64DNF0R")
        );
    }

    #[test]
    fn no_sysfs_is_an_error() {
        assert!(
            discover(Path::new("/nonexistent"))
                .unwrap_err()
                .to_string()
                .contains("/nonexistent/class/block")
        );
    }
}
