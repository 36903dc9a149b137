//! /var: the EPHEMERAL partition of the owned disk, or memory.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Serialize;
use sys_mount::{Mount, MountFlags, UnmountFlags};
use tokio::sync::watch;
use tracing::{info, warn};

use super::{
    apply::{ApplyError, apply, partition_path},
    discover::{DiscoverError, Disk, discover, human},
    holders,
    layout::LAYOUT,
    plan::{Action, DiskPlan, DiskWish, PlanError, plan},
    probe::{Content, ProbeError, Signature, probe, probe_partition},
    selector::{DiskSelector, SelectError},
    tools::{self, ToolError},
};

/// What the config says about /var.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EphemeralWish {
    /// The owned disk; none keeps /var in memory.
    pub disk: Option<DiskSelector>,
    /// Take the disk over even when something else is on it.
    pub wipe: bool,
}

/// Where things are.
#[derive(Debug, Clone)]
pub struct Places {
    /// Where EPHEMERAL is mounted.
    pub target: PathBuf,
    /// The mounted sysfs.
    pub sysfs: PathBuf,
    /// The mounted procfs.
    pub procfs: PathBuf,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            target: "/var".into(),
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
        }
    }
}

/// The state of /var, for the resource store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralStatus {
    /// It is mounted.
    pub mounted: bool,
    /// The partition; none when it is in memory.
    pub device: Option<String>,
    /// The owned disk.
    pub disk: Option<String>,
    /// Bytes of the partition, or the limit in memory.
    pub size: u64,
    /// The filesystem was made in this boot.
    pub fresh: bool,
    /// One line for people.
    pub description: String,
}

/// Why /var is not there, or does not go away.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum EphemeralError {
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    #[error(transparent)]
    Select(#[from] SelectError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The owned disk holds something else where EPHEMERAL should be.
    #[error(
        "the EPHEMERAL partition {device} holds {found} instead of ext4; wipe the disk to make it anew"
    )]
    Content { device: String, found: Signature },
    #[error("cannot mount {what} at {target}")]
    Mount {
        what: String,
        target: PathBuf,
        source: io::Error,
    },
    #[error("cannot unmount {target}: {holders}; stop that first")]
    Busy { target: PathBuf, holders: String },
    #[error("cannot unmount {target}")]
    Unmount { target: PathBuf, source: io::Error },
    #[error("{target} is unmounted here, but {holders}; stop that first")]
    StillHeld { target: PathBuf, holders: String },
    #[error("the disk work was interrupted because machined is stopping")]
    Interrupted,
}

impl EphemeralError {
    /// Whether the kernel refused to mount because of what it found in the filesystem.
    fn is_damage(&self) -> bool {
        let damage = rustix::io::Errno::UCLEAN.raw_os_error();
        matches!(self, Self::Mount { source, .. } if source.raw_os_error() == Some(damage))
    }
}

/// /var and its state.
#[derive(Debug)]
pub struct Ephemeral {
    places: Places,
    status: watch::Sender<EphemeralStatus>,
}

impl Ephemeral {
    /// Nothing is mounted yet.
    pub fn new(places: Places) -> Self {
        Self {
            places,
            status: watch::Sender::new(EphemeralStatus::default()),
        }
    }

    /// The state, to be watched.
    pub fn status(&self) -> watch::Receiver<EphemeralStatus> {
        self.status.subscribe()
    }

    /// What [`mount`](Self::mount) would do to the owned disk; none when /var is to be in memory. Writes nothing.
    pub async fn dry_run(&self, wish: &EphemeralWish) -> Result<Option<DiskPlan>, EphemeralError> {
        let Some(selector) = wish.disk.clone() else {
            return Ok(None);
        };
        let (sysfs, wipe) = (self.places.sysfs.clone(), wish.wipe);
        run_blocking(move || make_plan(&sysfs, &selector, wipe))
            .await?
            .map(Some)
    }

    /// Makes what is missing and mounts /var.
    pub async fn mount(&self, wish: &EphemeralWish) -> Result<(), EphemeralError> {
        let status = match self.dry_run(wish).await? {
            Some(plan) => self.mount_disk(plan).await?,
            None => self.mount_memory().await?,
        };
        info!("{}", status.description);
        self.status.send_replace(status);
        Ok(())
    }

    /// Finds /var as an earlier machined of this generation left it.
    pub fn adopt(&self) {
        let Some(mount) = holders::mounted(&self.places.procfs, &self.places.target) else {
            return;
        };
        let target = self.places.target.display();
        // Anonymous devices (tmpfs) have major number 0.
        let device = (!mount.device.starts_with("0:")).then(|| mount.source.display().to_string());
        let description = match &device {
            Some(device) => format!("{target} is the partition {device} (adopted)"),
            None => format!("{target} is in memory and is lost with a reboot (adopted)"),
        };
        let size = rustix::fs::statvfs(&self.places.target)
            .map_or(0, |facts| facts.f_blocks.saturating_mul(facts.f_frsize));
        self.status.send_replace(EphemeralStatus {
            mounted: true,
            device,
            disk: None,
            size,
            fresh: false,
            description,
        });
    }

    async fn mount_disk(&self, plan: DiskPlan) -> Result<EphemeralStatus, EphemeralError> {
        info!(%plan, "disk");
        let (disk, size) = (
            plan.disk.to_string(),
            plan.ephemeral().map_or(0, |partition| partition.length),
        );
        let number = plan.ephemeral().map_or(1, |partition| partition.number);
        let grows = matches!(plan.action, Action::Reuse { grow: Some(_), .. });
        let device = partition_path(&plan, number);
        let sysfs = self.places.sysfs.clone();
        run_blocking(move || apply(&plan, &sysfs)).await??;

        let name = device.display().to_string();
        let probed = device.clone();
        let fresh = match run_blocking(move || probe_partition(&probed)).await?? {
            Some(Signature::Ext) => {
                tools::check_filesystem(&device).await?;
                false
            }
            // No filesystem: a new partition, or the power went before mkfs was through.
            None => {
                tools::make_filesystem(&device).await?;
                true
            }
            Some(found) => {
                return Err(EphemeralError::Content {
                    device: name,
                    found,
                });
            }
        };
        match self.mount_ext4(&device).await {
            // It says that it is clean, so it was not looked at, and the kernel found out.
            Err(error) if error.is_damage() => {
                warn!(%error, device = name, "the filesystem is damaged, repairing it");
                tools::repair_filesystem(&device).await?;
                self.mount_ext4(&device).await?;
            }
            done => done?,
        }
        if grows
            && !fresh
            && let Err(error) = tools::grow_filesystem(&device).await
        {
            // Smaller than it could be is no reason not to boot.
            warn!(%error, "the filesystem keeps its old size");
        }
        let how = if fresh { "new" } else { "reused" };
        let description = format!(
            "{} is the partition {name} ({}, {how})",
            self.places.target.display(),
            human(size)
        );
        Ok(EphemeralStatus {
            mounted: true,
            device: Some(name),
            disk: Some(disk),
            size,
            fresh,
            description,
        })
    }

    async fn mount_ext4(&self, device: &Path) -> Result<(), EphemeralError> {
        let (source, target) = (device.to_owned(), self.places.target.clone());
        run_blocking(move || mount_ext4(&source, &target)).await?
    }

    async fn mount_memory(&self) -> Result<EphemeralStatus, EphemeralError> {
        let information = rustix::system::sysinfo();
        let size = information.totalram * u64::from(information.mem_unit) / 2;
        let target = self.places.target.clone();
        run_blocking(move || mount_tmpfs(&target, size)).await??;
        let description = format!(
            "{} is in memory (at most {}) and is lost with a reboot: no disk is named in the config",
            self.places.target.display(),
            human(size)
        );
        Ok(EphemeralStatus {
            mounted: true,
            device: None,
            disk: None,
            size,
            fresh: true,
            description,
        })
    }

    /// Unmounts /var. Its users must be gone; those that are not are named in the error.
    pub async fn unmount(&self) -> Result<(), EphemeralError> {
        let places = self.places.clone();
        run_blocking(move || unmount(&places)).await??;
        self.status.send_modify(|status| {
            status.mounted = false;
            status.description = format!("{} is not mounted", self.places.target.display());
        });
        Ok(())
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, EphemeralError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| EphemeralError::Interrupted)
}

fn make_plan(
    sysfs: &Path,
    selector: &DiskSelector,
    wipe: bool,
) -> Result<DiskPlan, EphemeralError> {
    let disks = discover(sysfs)?;
    let disk = selector.select(&disks, is_system_disk)?;
    let content = probe(disk)?;
    Ok(plan(
        disk,
        &content,
        &DiskWish {
            layout: LAYOUT,
            wipe,
        },
    )?)
}

/// The disk that carries Instar already. One that cannot be read carries nothing.
fn is_system_disk(disk: &Disk) -> bool {
    matches!(probe(disk), Ok(Content::Ours(_)))
}

/// No setuid programs and no device nodes from the disk take effect: nothing of the system lives there, and containers
/// see their files through an overlay mount with flags of its own. Programs may run: user volumes and unpacked images
/// are made of them.
fn mount_ext4(device: &Path, target: &Path) -> Result<(), EphemeralError> {
    Mount::builder()
        .fstype("ext4")
        .flags(MountFlags::NOSUID | MountFlags::NODEV)
        .mount(device, target)
        .map(drop)
        .map_err(|source| EphemeralError::Mount {
            what: device.display().to_string(),
            target: target.to_owned(),
            source,
        })
}

fn mount_tmpfs(target: &Path, size: u64) -> Result<(), EphemeralError> {
    Mount::builder()
        .fstype("tmpfs")
        .flags(MountFlags::NOSUID | MountFlags::NODEV)
        .data(&format!("size={size},mode=0755"))
        .mount("tmpfs", target)
        .map(drop)
        .map_err(|source| EphemeralError::Mount {
            what: "a tmpfs".to_owned(),
            target: target.to_owned(),
            source,
        })
}

fn unmount(places: &Places) -> Result<(), EphemeralError> {
    let target = &places.target;
    let Some(device) = holders::mounted(&places.procfs, target).map(|mount| mount.device) else {
        return Ok(());
    };
    sys_mount::unmount(target, UnmountFlags::empty()).map_err(|source| match source.kind() {
        io::ErrorKind::ResourceBusy => EphemeralError::Busy {
            target: target.clone(),
            holders: holders::list(&holders(&places.procfs, target)),
        },
        _ => EphemeralError::Unmount {
            target: target.clone(),
            source,
        },
    })?;
    // Anonymous devices (tmpfs) have major number 0 and keep nothing busy.
    let left = if device.starts_with("0:") {
        Vec::new()
    } else {
        holders::still_mounted(&places.procfs, &device)
    };
    match left.is_empty() {
        true => Ok(()),
        false => Err(EphemeralError::StillHeld {
            target: target.clone(),
            holders: holders::list(&left),
        }),
    }
}
