//! Erases disks and partitions that are not Instar's.
//!
//! A device that the machine uses is refused: first by its holders in sysfs, and in the end by the kernel, which opens a device
//! exclusively only while nothing of it is mounted, mapped or swapped to. All devices are checked and opened before the first is erased.

use std::{
    fs::{self, File},
    io::{self, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

use tracing::info;

use super::{
    discover::DevPath,
    table::{self, WholeCopy},
    wipe::{Opened, WipeError},
};
use crate::sys;

/// The method of erasing a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WipeMethod {
    /// Erases a MiB at both ends, where the marks of tables, filesystems and volumes are. The rest can still be read.
    Fast,
    /// Overwrites every byte with zero.
    Zeroes,
}

/// A device to erase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WipeOrder {
    /// The kernel's name of the device: `vdb`, `vdb1`.
    pub device: String,
    /// How to erase it.
    pub method: WipeMethod,
    /// Whether to remove the partition from its disk's table as well.
    pub drop_partition: bool,
}

/// Why a device was not erased, or not all of it.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum WipeOtherError {
    #[error(
        "there is no block device {0:?}; `disks` lists those that there are (name them without /dev/)"
    )]
    Unknown(String),
    #[error("{0} is neither a disk nor a partition of one")]
    Unsupported(DevPath),
    #[error("{0} is read-only")]
    ReadOnly(DevPath),
    #[error("{0} is a CD-ROM")]
    Cdrom(DevPath),
    #[error("{0} belongs to this machine; `reset` erases it")]
    Owned(DevPath),
    #[error("{device} is in use by {by}")]
    InUse { device: DevPath, by: String },
    #[error("{0} is a whole disk; only a partition can be dropped from a table")]
    NoPartition(DevPath),
    #[error("{disk} has no GPT with partition {number}; wipe the partition, or the whole disk")]
    NoEntry { disk: DevPath, number: u32 },
    #[error(transparent)]
    Wipe(#[from] WipeError),
    #[error("cannot change the partition table of {disk}")]
    Table { disk: DevPath, source: io::Error },
    #[error("{device} is erased, but the kernel still shows its partitions")]
    Forget { device: DevPath, source: io::Error },
}

/// A device that may be erased, as sysfs describes it.
struct Device {
    dev_path: DevPath,
    /// Numbers of the partitions of a disk; empty for a partition.
    partitions: Vec<u32>,
    /// For a partition: its disk, and its number there.
    part_of: Option<(DevPath, u32)>,
}

/// Erases devices; `owned` is the disk that the machine owns, which is refused.
pub fn wipe_others(
    sysfs: &Path,
    owned: Option<&Path>,
    orders: &[WipeOrder],
) -> Result<(), WipeOtherError> {
    let mut opened = Vec::new();
    for order in orders {
        let device = look_at(sysfs, owned, &order.device)?;
        let table = match order.drop_partition {
            true => Some(TableOf::open(&device)?),
            false => None,
        };
        let file = Opened::of(device.dev_path.as_path().to_owned())?;
        opened.push((order.method, device, file, table));
    }
    for (method, device, file, table) in opened {
        info!(
            "erasing {}, which is not this machine's own",
            device.dev_path
        );
        match method {
            WipeMethod::Fast => file.erase_ends()?,
            WipeMethod::Zeroes => file.erase_all()?,
        }
        for number in &device.partitions {
            forget(&device.dev_path, file.file(), *number)?;
        }
        // The kernel does not drop a partition that is open.
        drop(file);
        if let Some(table) = table {
            table.drop_partition()?;
        }
    }
    Ok(())
}

/// Removes a partition from the kernel's list.
fn forget(disk: &DevPath, file: &File, number: u32) -> Result<(), WipeOtherError> {
    sys::block::delete_partition(file, number).map_err(|source| WipeOtherError::Forget {
        device: disk.clone(),
        source,
    })
}

/// The table that a partition is removed from.
struct TableOf {
    disk: DevPath,
    file: File,
    number: u32,
}

impl TableOf {
    /// Opens the disk without claiming it: other partitions of it may be in use.
    fn open(device: &Device) -> Result<Self, WipeOtherError> {
        let Some((disk, number)) = device.part_of.clone() else {
            return Err(WipeOtherError::NoPartition(device.dev_path.clone()));
        };
        let file = File::options()
            .read(true)
            .write(true)
            .open(disk.as_path())
            .map_err(|source| WipeOtherError::Table {
                disk: disk.clone(),
                source,
            })?;
        let table = Self { disk, file, number };
        table.copies()?;
        Ok(table)
    }

    fn failed(&self, source: io::Error) -> WipeOtherError {
        let disk = self.disk.clone();
        WipeOtherError::Table { disk, source }
    }

    /// Reads the copies of the table that have the partition. They are read anew each time, because another partition may have
    /// been dropped meanwhile.
    fn copies(&self) -> Result<Vec<WholeCopy>, WipeOtherError> {
        let read = || {
            let sector = sys::block::logical_sector(&self.file)?;
            let size = (&self.file).seek(SeekFrom::End(0))?;
            table::whole_copies(&mut self.file.try_clone()?, size, sector)
        };
        let mut copies = read().map_err(|source| self.failed(source))?;
        copies.retain(|copy| copy.has(self.number));
        match copies.is_empty() {
            true => Err(WipeOtherError::NoEntry {
                disk: self.disk.clone(),
                number: self.number,
            }),
            false => Ok(copies),
        }
    }

    fn drop_partition(&self) -> Result<(), WipeOtherError> {
        info!("dropping partition {} of {}", self.number, self.disk);
        for mut copy in self.copies()? {
            copy.remove(self.number);
            copy.write(&self.file)
                .map_err(|source| self.failed(source))?;
        }
        forget(&self.disk, &self.file, self.number)
    }
}

fn look_at(sysfs: &Path, owned: Option<&Path>, name: &str) -> Result<Device, WipeOtherError> {
    let unknown = || WipeOtherError::Unknown(name.to_owned());
    let node = sysfs.join("class/block").join(name);
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return Err(unknown());
    }
    let real: PathBuf = fs::canonicalize(&node).map_err(|_| unknown())?;
    let dev_path = DevPath::of_kernel_name(name);
    let read =
        |folder: &Path, file: &str| fs::read_to_string(folder.join(file)).unwrap_or_default();
    let own_number = read(&node, "partition").trim().parse().ok();
    let is_partition = own_number.is_some();
    let disk = match is_partition {
        true => real.parent().ok_or_else(unknown)?.to_owned(),
        false => real,
    };
    let disk_name = disk.file_name().and_then(|name| name.to_str());
    let disk_name = disk_name.ok_or_else(unknown)?.to_owned();
    // A virtual disk (loop device, device-mapper, memory) belongs to the program or the device that it is made of.
    if disk.components().any(|part| part.as_os_str() == "virtual") && !disk_name.starts_with("nvme")
    {
        return Err(WipeOtherError::Unsupported(dev_path));
    }
    if disk_name.starts_with("sr") {
        return Err(WipeOtherError::Cdrom(dev_path));
    }
    if [&disk, &node]
        .iter()
        .any(|folder| read(folder, "ro").trim() == "1")
    {
        return Err(WipeOtherError::ReadOnly(dev_path));
    }
    if owned == Some(DevPath::of_kernel_name(&disk_name).as_path()) {
        return Err(WipeOtherError::Owned(dev_path));
    }
    let mut partitions = Vec::new();
    let mut folders = vec![node.clone()];
    if !is_partition {
        for entry in fs::read_dir(&node).into_iter().flatten().flatten() {
            if let Ok(number) = read(&entry.path(), "partition").trim().parse() {
                partitions.push(number);
                folders.push(entry.path());
            }
        }
    }
    for folder in folders {
        let holders = fs::read_dir(folder.join("holders"))
            .into_iter()
            .flatten()
            .flatten();
        let holders: Vec<String> = holders
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        if !holders.is_empty() {
            return Err(WipeOtherError::InUse {
                device: dev_path,
                by: holders.join(", "),
            });
        }
    }
    Ok(Device {
        dev_path,
        partitions,
        part_of: own_number.map(|number| (DevPath::of_kernel_name(&disk_name), number)),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::disk::discover::tests::fixture;

    #[test]
    fn only_what_nobody_uses_is_erased() {
        let pci = |name: &str| format!("pci0000:00/block/{name}");
        let [own, own_part, other, other_part, read_only, held, cd] =
            ["vda", "vda/vda1", "vdb", "vdb/vdb2", "vdc", "vdd", "sr0"].map(pci);
        let sys = fixture(&[
            (&own, &[("ro", "0")]),
            (&own_part, &[("partition", "1")]),
            (&other, &[("ro", "0")]),
            (&other_part, &[("partition", "2")]),
            (&read_only, &[("ro", "1")]),
            (&held, &[("holders/dm-0/name", "lvm")]),
            (&cd, &[("ro", "0")]),
            ("virtual/block/loop0", &[("ro", "0")]),
        ]);
        let owned = Some(Path::new("/dev/vda"));
        for (name, says) in [
            ("vda", "belongs to this machine"),
            ("vda1", "belongs to this machine"),
            ("vdc", "read-only"),
            ("vdd", "in use by dm-0"),
            ("sr0", "CD-ROM"),
            ("loop0", "neither a disk"),
            ("vdz", "no block device"),
            ("../vdb", "no block device"),
            ("/dev/vdb", "no block device"),
            ("", "no block device"),
        ] {
            let error = look_at(sys.path(), owned, name).err().unwrap().to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
        let disk = look_at(sys.path(), owned, "vdb").unwrap();
        assert_eq!(disk.partitions, [2]);
        assert!(disk.part_of.is_none());
        let partition = look_at(sys.path(), owned, "vdb2").unwrap();
        assert_eq!(partition.dev_path.to_string(), "/dev/vdb2");
        assert!(partition.partitions.is_empty());
        let (of, number) = partition.part_of.unwrap();
        assert_eq!((of.to_string().as_str(), number), ("/dev/vdb", 2));
        assert!(look_at(sys.path(), None, "vda").is_ok(), "it owns no disk");
    }
}
