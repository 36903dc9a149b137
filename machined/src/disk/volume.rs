//! A partition with an ext4 filesystem, and its mount point.

use std::{
    fs::File,
    io::{self, Seek as _, SeekFrom},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{major, minor};

use crate::mounts::filesystem::{self, Filesystem, MountFlags, UnmountFlags};
use tracing::{info, warn};

use super::{
    apply::open_exclusively,
    clean::is_clean,
    contents::{Backup, Contents, TAIL, examine, mark, unmark},
    error::{OwnedDiskError, run_blocking},
    holders::{self, holders},
    layout::Label,
    tools,
};
use crate::base::mount_table::mounted_at;

/// No programs, setuid programs or device nodes of the disk take effect: nothing of the system lives there, and containers see
/// their files through an overlay mount with flags of its own.
pub(super) const FLAGS: MountFlags = MountFlags::NOSUID
    .union(MountFlags::NODEV)
    .union(MountFlags::NOEXEC);

/// Whether a filesystem may have users when it is unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Users {
    /// The users must be gone: the next step needs the filesystem for itself.
    MustBeGone,
    /// The users may stay: they have mounts of their own.
    MayStay,
}

/// The volume STATE or EPHEMERAL.
#[derive(Debug, Clone)]
pub(super) struct Volume {
    pub(super) label: Label,
    pub(super) device: PathBuf,
    pub(super) target: PathBuf,
    /// Whether e2fsck runs before the mount even if the filesystem says that it is clean.
    pub(super) is_checked_always: bool,
}

/// The contents of the partition before the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The partition was free; a filesystem was made.
    Nothing,
    /// The partition had its filesystem.
    Filesystem,
    /// The partition had its filesystem, and it is in use elsewhere, so it was not checked.
    InUse,
}

impl Volume {
    /// Returns whether the partition holds nothing that has to be kept.
    pub(super) async fn is_free(&self) -> Result<bool, OwnedDiskError> {
        Ok(self.examine().await? == Contents::Free)
    }

    async fn examine(&self) -> Result<Contents, OwnedDiskError> {
        let device = self.device.clone();
        Ok(run_blocking(move || examine(&device)).await??)
    }

    /// Mounts the partition: makes the filesystem on a free one, checks an existing one. A partition with any other contents is
    /// left as it is.
    pub(super) async fn bring_up(&self) -> Result<Found, OwnedDiskError> {
        let found = match self.examine().await? {
            Contents::Filesystem { .. } if self.is_in_use().await? => {
                info!(device = %self.device.display(), "containers that live on use the filesystem: it is checked at the next boot");
                Found::InUse
            }
            Contents::Filesystem { marked } => {
                if marked {
                    self.write(unmark).await?;
                }
                self.check().await?;
                Found::Filesystem
            }
            Contents::Free => {
                let size = self.write(mark).await?;
                tools::make_filesystem(&self.device, self.label, size - TAIL).await?;
                self.write(unmark).await?;
                Found::Nothing
            }
            Contents::Foreign(found) => {
                return Err(OwnedDiskError::Content {
                    label: self.label,
                    device: self.device.clone(),
                    found,
                });
            }
            Contents::Damaged(backups) => {
                self.restore(backups).await?;
                Found::Filesystem
            }
        };
        match self.mount().await {
            // No repair: it would change the filesystem under those that use it.
            Err(OwnedDiskError::Mount {
                what,
                target,
                source,
            }) if found == Found::InUse => {
                return Err(OwnedDiskError::MountInUse {
                    what,
                    target,
                    holders: self.users().await?,
                    source,
                });
            }
            // The filesystem was marked as clean and so was not checked, and the kernel found damage.
            Err(error) if error.is_damage() => {
                let device = self.device.display();
                warn!(%error, %device, "the filesystem is damaged, repairing it");
                tools::repair_filesystem(&self.device).await?;
                self.mount().await?;
            }
            done => done?,
        }
        Ok(found)
    }

    /// Checks the filesystem, unless its own word is enough.
    async fn check(&self) -> Result<(), OwnedDiskError> {
        let device = self.device.clone();
        // One whose superblock cannot be read is e2fsck's matter.
        let is_clean = run_blocking(move || is_clean(&device).unwrap_or(false)).await?;
        if is_clean && !self.is_checked_always {
            let device = self.device.display();
            info!(%device, "the filesystem is clean: this kernel unmounted it");
            return Ok(());
        }
        Ok(tools::check_filesystem(&self.device).await?)
    }

    /// Returns whether the filesystem is mounted. It may be in no table of mounts: an overlay hides its lower filesystems.
    async fn is_in_use(&self) -> Result<bool, OwnedDiskError> {
        let device = self.device.clone();
        run_blocking(move || open_exclusively(&device).is_err_and(|error| error.is_busy())).await
    }

    /// Names the processes whose mounts show the filesystem.
    async fn users(&self) -> Result<String, OwnedDiskError> {
        let device = self.device.clone();
        run_blocking(move || {
            let number = std::fs::metadata(&device).map(|it| it.rdev());
            let shown = number.map(|it| format!("{}:{}", major(it), minor(it)));
            let users = shown.map(|it| holders::still_mounted(Path::new("/proc"), &it));
            holders::list(&users.unwrap_or_default())
        })
        .await
    }

    /// Repairs a filesystem without a superblock by the first copy that works.
    async fn restore(&self, backups: Vec<Backup>) -> Result<(), OwnedDiskError> {
        let device = self.device.display();
        let mut why = "there is no copy of one".to_owned();
        for backup in backups {
            warn!(%device, block = backup.block, "the superblock is gone, repairing the filesystem by a copy");
            match tools::repair_by_backup(&self.device, backup).await {
                Ok(()) => return Ok(()),
                Err(error) => why = format!("its copies do not serve ({error})"),
            }
        }
        Err(OwnedDiskError::Damaged {
            label: self.label,
            device: self.device.clone(),
            why,
        })
    }

    /// Calls `write` with the partition and its size, and flushes. Returns the size.
    async fn write(&self, write: fn(&File, u64) -> io::Result<()>) -> Result<u64, OwnedDiskError> {
        let Self { label, device, .. } = self.clone();
        run_blocking(move || {
            let mut file = open_exclusively(&device)?;
            let written = file
                .seek(SeekFrom::End(0))
                .and_then(|size| write(&file, size).map(|()| size))
                .and_then(|size| file.sync_all().map(|()| size));
            written.map_err(|source| OwnedDiskError::Write {
                label,
                device,
                source,
            })
        })
        .await?
    }

    async fn mount(&self) -> Result<(), OwnedDiskError> {
        let (device, target) = (self.device.clone(), self.target.clone());
        run_blocking(move || {
            let filesystem = Filesystem {
                kind: "ext4",
                source: &device,
                flags: FLAGS,
                options: "",
            };
            let mounted = filesystem.mount(&target);
            mounted.map_err(|source| OwnedDiskError::Mount {
                what: device.display().to_string(),
                target,
                source,
            })
        })
        .await?
    }
}

/// Unmounts `target` if it is mounted. Users that must be gone and are not are named in the error.
pub(super) fn unmount(procfs: &Path, target: &Path, users: Users) -> Result<(), OwnedDiskError> {
    let Some(mounted) = mounted_at(procfs, target) else {
        return Ok(());
    };
    let flags = match users {
        Users::MustBeGone => UnmountFlags::empty(),
        // Nor need machined's own users be gone, such as a pull or a caller that reads slowly: they end with machined.
        Users::MayStay => UnmountFlags::DETACH,
    };
    filesystem::unmount(target, flags).map_err(|source| match source.kind() {
        io::ErrorKind::ResourceBusy => OwnedDiskError::Busy {
            target: target.to_owned(),
            holders: holders::list(&holders(procfs, target)),
        },
        _ => OwnedDiskError::Unmount {
            target: target.to_owned(),
            source,
        },
    })?;
    let left = if mounted.is_in_memory() || users == Users::MayStay {
        Vec::new()
    } else {
        holders::still_mounted(procfs, &mounted.device)
    };
    match left.is_empty() {
        true => Ok(()),
        false => Err(OwnedDiskError::StillHeld {
            target: target.to_owned(),
            holders: holders::list(&left),
        }),
    }
}
