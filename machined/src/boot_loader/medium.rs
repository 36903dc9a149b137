//! The medium with the running version, a CD or a USB stick with the ISO: the source of an installation without a registry.
//!
//! It is recognized by its contents: a GPT, and in that an EFI system partition with this version. If the firmware says which partition the
//! running UKI came from, only that one counts: another disk may claim the version. The firmware knows no partitions of a CD, and the kernel
//! looks for none there, so the partition of any medium is mounted through a loop device, read-only.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use gpt::GptConfig;
use gpt::disk::LogicalBlockSize;
use gpt::partition_types;
use instar_esp::{
    Asset, Entry, FileDigest, Mounted, NewSystem, NewVersion, State, Volume as _, describe,
    description, enrols_everywhere, install, paths,
};
use loopdev::{LoopControl, LoopDevice};
use uuid::Uuid;

use super::efi_variables::{self as variables, EfiError};
use super::partition::{EspError, MountedEsp};
use crate::base::error_chain::chain;
use crate::disk::DevPath;
use crate::mounts::filesystem::{Filesystem, MountFlags};
use crate::mounts::transient_mount::TransientMount;

/// Mount point, used for nothing else.
const TARGET: &str = "/run/instar/medium";
/// Sector size in an ISO's partition table, whatever the medium's own.
const SECTOR: u64 = 512;
/// Devices that are made of memory or of other devices.
const NOT_A_MEDIUM: [&str; 5] = ["loop", "ram", "zram", "dm-", "md"];

/// Why an installation from a medium failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MediumError {
    #[error("cannot list the disks in {}", path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("cannot mount the partition of {} at {TARGET}", device.display())]
    Mount { device: PathBuf, source: io::Error },
    #[error("cannot read the medium {}", device.display())]
    Read { device: PathBuf, source: io::Error },
    #[error(transparent)]
    Esp(#[from] EspError),
    #[error("it is unknown which partition this machine was started from")]
    Efi(#[from] EfiError),
    #[error(transparent)]
    Refused(#[from] instar_esp::Refused),
}

/// The mounted medium of the running version, which is unmounted when this value is dropped.
pub struct Medium {
    device: PathBuf,
    volume: Mounted,
    entry: Entry,
    // Dropped in this order: the loop device goes with its last user.
    #[expect(dead_code, reason = "held, not used")]
    mount: TransientMount,
    #[expect(dead_code, reason = "held, not used")]
    through: LoopDevice,
}

impl Medium {
    /// Searches the block devices in sysfs for the medium. The modules loop, vfat and nls_* must be loaded, and with UEFI efivarfs.
    ///
    /// # Errors
    /// The devices cannot be listed, or a fitting one cannot be read.
    pub fn find(sysfs: &Path, version: &str) -> Result<Option<Self>, MediumError> {
        let path = sysfs.join("block");
        let failed = |source| MediumError::List {
            path: path.clone(),
            source,
        };
        let started_from = match variables::is_uefi() {
            true => variables::uki_partition()?,
            false => None,
        };
        let mut devices = Vec::new();
        for entry in fs::read_dir(&path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let name = name.to_string_lossy();
            if !NOT_A_MEDIUM.iter().any(|other| name.starts_with(other)) {
                devices.push(DevPath::of_kernel_name(&name).as_path().to_owned());
            }
        }
        first_of(devices.iter().filter_map(|device| {
            // A drive without a medium, or with a foreign one.
            let (start, length) = partition(device, started_from)?;
            Some(Self::with(device, start, length, version))
        }))
    }

    /// Mounts the medium; none if it does not carry this version.
    fn with(
        device: &Path,
        start: u64,
        length: u64,
        version: &str,
    ) -> Result<Option<Self>, MediumError> {
        let mounted = |source| MediumError::Mount {
            device: device.to_owned(),
            source,
        };
        let through = LoopControl::open()
            .and_then(|control| control.next_free())
            .map_err(mounted)?;
        through
            .with()
            .offset(start)
            .size_limit(length)
            .read_only(true)
            .autoclear(true)
            .attach(device)
            .map_err(mounted)?;
        let node = through
            .path()
            .ok_or_else(|| mounted(io::ErrorKind::NotFound.into()))?;
        let filesystem = Filesystem {
            kind: "vfat",
            source: &node,
            flags: MountFlags::RDONLY,
            options: "codepage=437,iocharset=ascii,shortname=mixed",
        };
        // Another system's partition may hold anything, so a failed mount only means that this is not the medium.
        let Ok(mount) = TransientMount::new(filesystem, Path::new(TARGET)) else {
            return Ok(None);
        };
        let volume = Mounted::at(TARGET);
        let state = State::read(&volume).map_err(|source| MediumError::Read {
            device: device.to_owned(),
            source,
        })?;
        let entry = state
            .next_boot()
            .filter(|entry| state.has_loader && entry.name.version.to_string() == version);
        Ok(entry.map(|entry| Self {
            device: device.to_owned(),
            entry: entry.clone(),
            volume,
            mount,
            through,
        }))
    }

    /// Returns the path of its device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// Copies its contents to an empty EFI system partition: the version, the loader, and keys that the loader enrols.
    ///
    /// # Errors
    /// The medium cannot be read or is damaged, or the partition cannot be written.
    pub fn install_to(&self, efi: &Path) -> Result<(), MediumError> {
        let failed = |source| MediumError::Read {
            device: self.device.clone(),
            source,
        };
        let system = self.system().map_err(failed)?;
        let mut esp = MountedEsp::of(efi)?;
        let plan = install(&esp.state()?, &system)?;
        let performed = esp.perform_with(&plan, |asset| self.open(asset));
        performed.map_err(EspError::from)?;
        self.describe_on(&mut esp);
        Ok(())
    }

    /// Copies what the installer image of the version says of itself. The version starts without it: what fails here is logged.
    fn describe_on(&self, esp: &mut MountedEsp) {
        let described = match description(&self.volume) {
            Ok(None) => return,
            Ok(Some(description)) => esp.perform(&describe(description)),
            Err(source) => Err(EspError::Read {
                device: self.device.clone(),
                source,
            }),
        };
        if let Err(error) = described {
            tracing::warn!(
                "keys for upgrades will not judge the version from this medium: {}",
                chain(&error)
            );
        }
    }

    fn system(&self) -> io::Result<NewSystem> {
        let loader = FileDigest::read(self.open(Asset::Loader)?)?;
        let mut keys = Vec::new();
        for (name, _) in self.volume.list(paths::KEYS)? {
            let content = self.volume.read(&format!("{}/{name}", paths::KEYS))?;
            keys.push((name, content));
        }
        let config = self.volume.read(paths::LOADER_CONFIG)?;
        let config = String::from_utf8_lossy(&config);
        Ok(NewSystem {
            version: NewVersion {
                version: self.entry.name.version.clone(),
                uki: self.entry.uki,
            },
            loader,
            keys,
            enrol_everywhere: enrols_everywhere(&config),
        })
    }

    fn open(&self, asset: Asset) -> io::Result<Box<dyn Read>> {
        let path = match asset {
            Asset::Uki => self.entry.slot.uki_path(),
            Asset::Loader => paths::LOADER.to_owned(),
        };
        Ok(Box::new(File::open(Path::new(TARGET).join(path))?))
    }
}

/// Returns the first that was found; the first failure only if none was: a broken disk beside the medium does not keep a machine from being installed.
fn first_of<T, E>(
    searched: impl IntoIterator<Item = Result<Option<T>, E>>,
) -> Result<Option<T>, E> {
    let mut failed = None;
    for found in searched {
        match found {
            Ok(None) => {}
            Ok(medium) => return Ok(medium),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    failed.map_or(Ok(None), Err)
}

/// Returns the EFI system partition of a device, the one with this GUID if one is wanted: start and length in bytes; none without a table or such
/// a partition.
fn partition(device: &Path, wanted: Option<Uuid>) -> Option<(u64, u64)> {
    let file = File::open(device).ok()?;
    let table = GptConfig::new()
        .writable(false)
        .logical_block_size(LogicalBlockSize::Lb512)
        .open_from_device(file)
        .ok()?;
    let mut all = table.partitions().values();
    let esp = all.find(|partition| {
        partition.part_type_guid == partition_types::EFI
            && wanted.is_none_or(|wanted| partition.part_guid == wanted)
    })?;
    let sectors = esp.last_lba.checked_sub(esp.first_lba)?.checked_add(1)?;
    Some((
        esp.first_lba.checked_mul(SECTOR)?,
        sectors.checked_mul(SECTOR)?,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use gpt::mbr::ProtectiveMBR;
    use gpt::partition::Partition;

    use super::*;

    /// A medium with two EFI system partitions, of 64 sectors from these on.
    fn medium(path: &Path, partitions: &[(Uuid, u64)]) {
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        file.set_len(2048 * SECTOR).unwrap();
        let whole = ProtectiveMBR::with_lb_size(2047);
        whole.overwrite_lba0(&mut file).unwrap();
        let config = GptConfig::new().writable(true);
        let config = config.logical_block_size(LogicalBlockSize::Lb512);
        let mut table = config.create_from_device(file, None).unwrap();
        let partitions: BTreeMap<u32, Partition> = (1..)
            .zip(partitions)
            .map(|(number, (guid, first))| {
                let partition = Partition {
                    part_type_guid: partition_types::EFI,
                    part_guid: *guid,
                    first_lba: *first,
                    last_lba: first + 63,
                    flags: 0,
                    name: String::new(),
                };
                (number, partition)
            })
            .collect();
        table.update_partitions(partitions).unwrap();
        table.write().unwrap();
    }

    #[test]
    fn a_medium_is_found_behind_a_broken_disk() {
        let broken = || Err("broken");
        assert_eq!(
            first_of([Ok(None), broken(), Ok(Some("CD"))]),
            Ok(Some("CD"))
        );
        assert_eq!(
            first_of([Ok(None), Err("first"), broken()]),
            Err::<Option<&str>, _>("first")
        );
        assert_eq!(first_of([Ok::<Option<&str>, &str>(None)]), Ok(None));
    }

    /// A disk that was not started from may hold an entry of the same name.
    #[test]
    fn only_the_partition_that_this_machine_was_started_from_is_a_medium() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("medium");
        let [one, two, other] = [1, 2, 3].map(Uuid::from_u128);
        medium(&path, &[(one, 64), (two, 128)]);
        let at = |first: u64| Some((first * SECTOR, 64 * SECTOR));
        assert_eq!(partition(&path, Some(one)), at(64));
        assert_eq!(partition(&path, Some(two)), at(128));
        assert_eq!(partition(&path, Some(other)), None);
        // A CD, or firmware that does not say it.
        assert_eq!(partition(&path, None), at(64));
        fs::write(&path, "no table").unwrap();
        assert_eq!(partition(&path, None), None);
    }
}
