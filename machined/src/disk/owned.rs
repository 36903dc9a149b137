//! The disk that Instar owns: mounts its STATE and EPHEMERAL, or /var in memory on a machine without one.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use serde::Serialize;
use tokio::sync::watch;
use tracing::{info, warn};
use uuid::Uuid;

use crate::base::byte_size::human_short;
use crate::values::DiskSelector;

use super::{
    apply::{apply, partition_path, size_of},
    contents::TAIL,
    discover::discover,
    error::{OwnedDiskError, run_blocking},
    find::{find_owned, is_here, is_owned},
    layout::Label,
    memory::{forget_memory, mount_memory},
    plan::{Action, DiskPlan, Takeover, plan},
    probe::{Content, probe, probe_device},
    readers::Readers,
    selector::select,
    table::Partition,
    tools,
    volume::{Found, Users, Volume, unmount},
    wipe::{Wipe, wipe},
};
use crate::base::blocking_io;

/// Timeout for a wipe: overwriting a large disk that cannot zero by itself takes hours.
const WIPE: Duration = Duration::from_secs(24 * 3600);

use crate::base::mount_table::mounted_at;
use crate::mounts::filesystem::{Filesystem, MountFlags};
use crate::mounts::transient_mount::TransientMount;
use crate::mounts::workload_domain::DOMAIN;

/// Mount point of STATE.
pub const STATE: &str = "/system/state";

/// The directory of machined's own files on EPHEMERAL.
pub const EPHEMERAL_RECORDS: &str = "/var/lib/instar";

/// Mount point of EPHEMERAL while it is not at /var and machined reads or writes its records.
const LOOK: &str = "/run/machined/ephemeral";

/// The machine config's settings of the owned disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSpec {
    /// The disk. None keeps /var in memory, unless the machine was found to have its STATE on a disk.
    pub disk: Option<DiskSelector>,
    /// Whether to take over a disk that holds something else.
    pub takeover: Takeover,
}

/// The directories that the owned disk is mounted at, and those that its code reads.
#[derive(Debug, Clone)]
pub struct Paths {
    /// Mount point of EPHEMERAL.
    pub var: PathBuf,
    /// Mount point of STATE.
    pub state: PathBuf,
    /// A directory that may outlive the generation, for a /var in memory. It may be missing.
    pub domain: PathBuf,
    /// Mount point of sysfs.
    pub sysfs: PathBuf,
    /// Mount point of procfs.
    pub procfs: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            var: "/var".into(),
            state: STATE.into(),
            domain: DOMAIN.into(),
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
        }
    }
}

/// The state of the mounts, for the resource store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnedDiskStatus {
    /// Whether /var is mounted.
    pub var_mounted: bool,
    /// The partition at /var; none if /var is in memory.
    pub var: Option<PathBuf>,
    /// The partition of STATE, while it is mounted.
    pub state: Option<PathBuf>,
    /// The owned disk.
    pub disk: Option<PathBuf>,
    /// The owned disk's EFI system partition; it may be there on a machine that boots from something else.
    pub efi: Option<PathBuf>,
    /// Size of EPHEMERAL, or the limit of /var in memory, in bytes.
    pub size: u64,
    /// Whether the filesystem at /var was made in this boot.
    pub fresh: bool,
    /// Whether the filesystem at /var was mounted unchecked, because containers that live on use it.
    pub unchecked: bool,
    /// One line for a person to read.
    pub description: String,
}

/// The EFI system partition, with the facts that the firmware's device path of it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EfiPartition {
    /// The partition's entry in the table.
    pub partition: Partition,
    /// Bytes of a logical sector of the disk.
    pub sector: u64,
}

/// The owned disk and its state.
#[derive(Debug)]
pub struct OwnedDisk {
    paths: Paths,
    status: watch::Sender<OwnedDiskStatus>,
    readers: Readers,
    /// Whether this is the first generation of the kernel's boot: what is on the disk is another boot's.
    is_first_generation: bool,
    /// Whether the disk that the machine was started from was waited for in vain.
    is_given_up: AtomicBool,
}

impl OwnedDisk {
    /// Creates the owned disk with nothing mounted yet, for the first generation of a boot: each filesystem is checked by e2fsck.
    pub fn new(paths: Paths) -> Self {
        Self {
            is_first_generation: true,
            is_given_up: AtomicBool::new(false),
            paths,
            status: watch::Sender::new(OwnedDiskStatus::default()),
            readers: Readers::default(),
        }
    }

    /// The same for the generation of this number, from 1 on: after the first, a filesystem that the same kernel unmounted cleanly is not checked.
    #[must_use]
    pub fn in_generation(mut self, number: u64) -> Self {
        self.is_first_generation = number <= 1;
        self
    }

    /// Returns a receiver of the state.
    pub fn status(&self) -> watch::Receiver<OwnedDiskStatus> {
        self.status.subscribe()
    }

    /// Returns the callers who read files of the disk.
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Returns the mount point of STATE; none while it is not mounted.
    pub fn state(&self) -> Option<&Path> {
        let mounted = self.status.borrow().state.is_some();
        mounted.then_some(self.paths.state.as_path())
    }

    /// Takes over the mounts of an earlier machined of this generation.
    pub fn adopt(&self) {
        let device = |target: &Path| {
            let mounted = mounted_at(&self.paths.procfs, target)?;
            Some((!mounted.is_in_memory()).then(|| PathBuf::from(mounted.source)))
        };
        let (var, state) = (device(&self.paths.var), device(&self.paths.state));
        self.status.send_modify(|status| {
            status.var_mounted = var.is_some();
            status.description = match var.as_ref().map(Option::as_ref) {
                None => format!("{} is not mounted", self.paths.var.display()),
                Some(None) => format!("{} is in memory", self.paths.var.display()),
                Some(Some(device)) => {
                    format!(
                        "{} is the partition {}",
                        self.paths.var.display(),
                        device.display()
                    )
                }
            };
            status.var = var.flatten();
            status.state = state.flatten();
            let partition = status.var.as_ref().or(status.state.as_ref());
            status.disk = partition.and_then(|it| disk_of(&self.paths.sysfs, it));
            // EFI is the first partition of the layout.
            status.efi = status.disk.as_ref().map(|disk| partition_path(disk, 1));
        });
    }

    /// Returns whether a disk with this partition is here, whatever else is on it. Opens disks for reading only.
    pub async fn is_here(&self, partition: Uuid) -> Result<bool, OwnedDiskError> {
        let sysfs = self.paths.sysfs.clone();
        run_blocking(move || is_here(&sysfs, partition)).await?
    }

    /// Notes that the disk that the machine was started from was waited for in vain.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }

    /// Returns whether the disk that the machine was started from was waited for in vain.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }

    /// Looks for the disk that carries Instar already, and mounts its STATE if that has been used. Makes no filesystem, and opens
    /// disks that are not Instar's for reading only. `started_from`: the EFI system partition that this machine was started from, if known.
    pub async fn find_state(&self, started_from: Option<Uuid>) -> Result<(), OwnedDiskError> {
        if self.state().is_some() {
            return Ok(());
        }
        let sysfs = self.paths.sysfs.clone();
        let find = move || find_owned(&sysfs, started_from);
        let Some(disk) = run_blocking(find).await?? else {
            return Ok(());
        };
        let disk = disk.as_path().to_owned();
        self.status
            .send_modify(|status| status.disk = Some(disk.clone()));
        let spec = DiskSpec {
            disk: Some(DiskSelector::Path(disk)),
            takeover: Takeover::Refuse,
        };
        let Some(plan) = self.dry_run(&spec).await? else {
            return Ok(());
        };
        // Before a partition is mounted: after that the table can no longer be written.
        self.apply(&plan).await?;
        match self.volume(&plan, Label::State) {
            Some(volume) if !volume.is_free().await? => self.mount_state(&volume).await,
            _ => Ok(()),
        }
    }

    /// Returns the plan that [`mount`](Self::mount) would carry out on the owned disk; none if /var is to be in memory. Writes nothing.
    pub async fn dry_run(&self, spec: &DiskSpec) -> Result<Option<DiskPlan>, OwnedDiskError> {
        let found = self.status.borrow().disk.clone();
        let selector = spec.disk.clone().or(found.clone().map(DiskSelector::Path));
        let Some(selector) = selector else {
            return Ok(None);
        };
        let (sysfs, takeover) = (self.paths.sysfs.clone(), spec.takeover);
        let plan = move || make_plan(&sysfs, &selector, takeover, found.as_deref());
        run_blocking(plan).await?.map(Some)
    }

    /// Returns the disk that a selector means now. Writes nothing.
    pub async fn selected(&self, selector: &DiskSelector) -> Result<PathBuf, OwnedDiskError> {
        let (sysfs, selector) = (self.paths.sysfs.clone(), selector.clone());
        let find = move || {
            let disks = discover(&sysfs)?;
            let disk = select(&selector, &disks, is_owned)?;
            Ok(disk.dev_path.as_path().to_owned())
        };
        run_blocking(find).await?
    }

    /// Makes missing partitions and filesystems, and mounts STATE and /var.
    pub async fn mount(&self, spec: &DiskSpec) -> Result<(), OwnedDiskError> {
        match self.dry_run(spec).await? {
            Some(plan) => self.mount_disk(plan).await?,
            None => self.mount_memory().await?,
        }
        info!("{}", self.status.borrow().description);
        Ok(())
    }

    async fn mount_disk(&self, plan: DiskPlan) -> Result<(), OwnedDiskError> {
        let state = self.volume(&plan, Label::State);
        let mounted = self.status.borrow().state.clone();
        if mounted.is_some() && mounted != state.as_ref().map(|it| it.device.clone()) {
            warn!(
                "the config names {}, and not the disk that STATE was found on",
                plan.disk
            );
            self.unmount_state().await?;
        }
        let is_applied = self.apply(&plan).await?;
        if let Some(volume) = state
            && self.state().is_none()
        {
            self.mount_state(&volume).await?;
        }
        let Some(volume) = self.volume(&plan, Label::Ephemeral) else {
            return Ok(());
        };
        let domain = self.paths.domain.clone();
        run_blocking(move || forget_memory(&domain)).await?;
        let found = volume.bring_up().await?;
        let size = match is_applied {
            true => plan.partition(Label::Ephemeral).map_or(0, |it| it.length),
            false => size_of(&self.paths.sysfs, &volume.device).unwrap_or_default(),
        };
        let grows = matches!(plan.action, Action::Reuse { grow: Some(_), .. });
        if grows
            && is_applied
            && found != Found::Nothing
            && let Err(error) = tools::grow_filesystem(&volume.device, size - TAIL).await
        {
            // A filesystem that stays smaller than its partition is no reason not to boot.
            warn!(%error, "the filesystem keeps its old size");
        }
        let how = match found {
            Found::Nothing => "new",
            Found::Filesystem => "reused",
            Found::InUse => "in use, and not checked",
        };
        let description = format!(
            "{} is the partition {} ({}, {how})",
            self.paths.var.display(),
            volume.device.display(),
            human_short(size)
        );
        self.status.send_modify(|status| {
            status.var_mounted = true;
            status.var = Some(volume.device);
            status.size = size;
            status.fresh = found == Found::Nothing;
            status.unchecked = found == Found::InUse;
            status.description = description;
        });
        Ok(())
    }

    /// Calls `look` with two directories of EPHEMERAL, mounted or not: its records and its root. Returns none if EPHEMERAL holds nothing.
    pub async fn look_at_ephemeral<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Path, &Path) -> T + Send + 'static,
    ) -> Result<Option<T>, OwnedDiskError> {
        // Read-only, and without replaying a journal that was left.
        self.at_ephemeral((MountFlags::RDONLY, "noload"), look)
            .await
    }

    /// Calls `write` with the directory of the records on EPHEMERAL, mounted or not. Returns none if EPHEMERAL holds nothing.
    pub async fn write_to_ephemeral<T: Send + 'static>(
        &self,
        write: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> Result<Option<T>, OwnedDiskError> {
        self.at_ephemeral((MountFlags::empty(), ""), |records, _| write(records))
            .await
    }

    async fn at_ephemeral<T: Send + 'static>(
        &self,
        (flags, options): (MountFlags, &'static str),
        work: impl FnOnce(&Path, &Path) -> T + Send + 'static,
    ) -> Result<Option<T>, OwnedDiskError> {
        let records = |root: &Path| root.join("lib/instar");
        let (disk, mounted) = {
            let status = self.status.borrow();
            (
                status.disk.clone(),
                status.var.is_some() && status.var_mounted,
            )
        };
        if mounted {
            let root = self.paths.var.clone();
            return run_blocking(move || Some(work(&records(&root), &root))).await;
        }
        let Some(disk) = disk else {
            return Ok(None);
        };
        let spec = DiskSpec {
            disk: Some(DiskSelector::Path(disk)),
            takeover: Takeover::Refuse,
        };
        let plan = self.dry_run(&spec).await?;
        let there = plan.filter(|plan| {
            let partition = plan.partition(Label::Ephemeral);
            partition.is_some_and(|partition| partition.guid.is_some())
        });
        let Some(volume) = there.and_then(|plan| self.volume(&plan, Label::Ephemeral)) else {
            return Ok(None);
        };
        if volume.is_free().await? {
            return Ok(None);
        }
        run_blocking(move || {
            let filesystem = Filesystem {
                kind: "ext4",
                source: &volume.device,
                flags,
                options,
            };
            let root = Path::new(LOOK);
            let mounted = TransientMount::new(filesystem, root);
            let _mounted = mounted.map_err(|source| OwnedDiskError::Mount {
                what: volume.device.display().to_string(),
                target: root.to_owned(),
                source,
            })?;
            Ok(Some(work(&records(root), root)))
        })
        .await?
    }

    fn volume(&self, plan: &DiskPlan, label: Label) -> Option<Volume> {
        let target = match label {
            Label::Efi => return None,
            Label::State => self.paths.state.clone(),
            Label::Ephemeral => self.paths.var.clone(),
        };
        let number = plan.partition(label)?.number;
        Some(Volume {
            label,
            device: partition_path(plan.disk.as_path(), number),
            target,
            is_checked_always: self.is_first_generation,
        })
    }

    /// Returns whether the plan was carried out whole.
    async fn apply(&self, plan: &DiskPlan) -> Result<bool, OwnedDiskError> {
        info!(%plan, "disk");
        let (plan, sysfs) = (plan.clone(), self.paths.sysfs.clone());
        let disk = plan.disk.as_path().to_owned();
        let efi = plan.partition(Label::Efi).map(|it| it.number);
        let is_applied = run_blocking(move || apply(&plan, &sysfs)).await??;
        if !is_applied {
            warn!(
                "containers that live on use the disk: its table stays as it is until the next boot"
            );
        }
        self.status.send_modify(|status| {
            status.efi = efi.map(|number| partition_path(&disk, number));
            status.disk = Some(disk);
        });
        Ok(is_applied)
    }

    async fn mount_state(&self, volume: &Volume) -> Result<(), OwnedDiskError> {
        volume.bring_up().await?;
        let device = volume.device.clone();
        self.status
            .send_modify(|status| status.state = Some(device));
        Ok(())
    }

    async fn mount_memory(&self) -> Result<(), OwnedDiskError> {
        let information = rustix::system::sysinfo();
        let size = information.totalram * u64::from(information.mem_unit) / 2;
        let (target, domain) = (self.paths.var.clone(), self.paths.domain.clone());
        let found = run_blocking(move || mount_memory(&target, &domain, size)).await??;
        let description = format!(
            "{} is in memory (at most {}) and is lost with a reboot: no disk is named in the config",
            self.paths.var.display(),
            human_short(size)
        );
        self.status.send_modify(|status| {
            *status = OwnedDiskStatus {
                var_mounted: true,
                size,
                fresh: found == Found::Nothing,
                description,
                ..OwnedDiskStatus::default()
            };
        });
        Ok(())
    }

    /// Reads the EFI system partition's entry from the partition table.
    pub async fn efi_partition(&self) -> Result<EfiPartition, OwnedDiskError> {
        let disk = self.status.borrow().disk.clone();
        let disk = disk.ok_or(OwnedDiskError::NoDisk)?;
        let (content, sector) = run_blocking(move || probe_device(&disk)).await??;
        let Content::Ours(table) = content else {
            return Err(OwnedDiskError::NoDisk);
        };
        let mut partitions = table.partitions.into_iter();
        let partition = partitions
            .find(|it| Label::of(&it.label, &it.kind) == Some(Label::Efi))
            .ok_or(OwnedDiskError::NoDisk)?;
        Ok(EfiPartition { partition, sector })
    }

    /// Makes an empty filesystem on the EFI system partition. Call it only while nothing boots from it.
    pub async fn format_efi(&self) -> Result<PathBuf, OwnedDiskError> {
        let efi = self.status.borrow().efi.clone();
        let efi = efi.ok_or(OwnedDiskError::NoDisk)?;
        tools::make_fat_filesystem(&efi, Label::Efi).await?;
        Ok(efi)
    }

    /// Erases the owned disk or partitions of it, none of which may be mounted.
    pub async fn wipe(&self, what: Wipe) -> Result<(), OwnedDiskError> {
        let disk = self.status.borrow().disk.clone();
        let disk = disk.ok_or(OwnedDiskError::NoDisk)?;
        Ok(blocking_io::within(WIPE, move || wipe(&disk, &what)).await??)
    }

    /// Unmounts /var and STATE. If the users of /var must be gone and some are not, the error names them.
    pub async fn unmount(&self, users: Users) -> Result<(), OwnedDiskError> {
        if users == Users::MustBeGone {
            self.readers.end().await;
        }
        let (procfs, var) = (self.paths.procfs.clone(), self.paths.var.clone());
        let unmounted = run_blocking(move || unmount(&procfs, &var, users)).await?;
        // The mount may be gone although a user of it is not.
        if unmounted.is_ok() || mounted_at(&self.paths.procfs, &self.paths.var).is_none() {
            self.status.send_modify(|status| {
                status.var_mounted = false;
                status.description = format!("{} is not mounted", self.paths.var.display());
            });
        }
        unmounted?;
        self.unmount_state().await
    }

    async fn unmount_state(&self) -> Result<(), OwnedDiskError> {
        let (procfs, state) = (self.paths.procfs.clone(), self.paths.state.clone());
        run_blocking(move || unmount(&procfs, &state, Users::MustBeGone)).await??;
        self.status.send_modify(|status| status.state = None);
        Ok(())
    }
}

/// Returns the disk of a partition: its parent in sysfs.
fn disk_of(sysfs: &Path, partition: &Path) -> Option<PathBuf> {
    let link = sysfs.join("class/block").join(partition.file_name()?);
    let folder = link.canonicalize().ok()?;
    Some(Path::new("/dev").join(folder.parent()?.file_name()?))
}

fn make_plan(
    sysfs: &Path,
    selector: &DiskSelector,
    takeover: Takeover,
    found: Option<&Path>,
) -> Result<DiskPlan, OwnedDiskError> {
    let disks = discover(sysfs)?;
    let disk = select(selector, &disks, is_owned)?;
    let content = probe(disk)?;
    // A name such as /dev/sda may mean another disk since a second one is there. What that one holds is another machine's.
    let is_found = |found: &Path| {
        let mut paths = disks.iter().filter(|it| it.dev_path.as_path() == found);
        disk.dev_path.as_path() == found || paths.any(|it| it.is_same_as(disk))
    };
    if let (Content::Ours(_), Some(found)) = (&content, found)
        && !is_found(found)
    {
        return Err(OwnedDiskError::NotThisMachines {
            named: disk.dev_path.clone(),
            own: found.to_owned(),
        });
    }
    Ok(plan(disk, &content, takeover)?)
}
