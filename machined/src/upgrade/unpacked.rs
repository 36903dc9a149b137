//! An installer's image, unpacked: under /var, or in memory of its own where /var has no room.
//!
//! /var is what containers fill. Whatever they do, an upgrade has to be possible, so its image does not depend on it.

use std::error::Error;
use std::io;
use std::path::Path;

use anyhow::Context as _;

use super::check::Room;
use super::error::UpgradeError;
use crate::mounts::filesystem::{Filesystem, MountFlags};
use crate::mounts::transient_mount::TransientMount;
use crate::oci::{ImageStore, Limits, PullError, PulledImage, Puller, ResolvedImage, StoreError};

/// Where memory is mounted for it.
const MEMORY: &str = "/run/machined/installer";
/// A file system's own needs: pages of files that don't fill them, directories, the container's writable layer.
const OVERHEAD: u64 = 8 << 20;

/// The image, and the store that it is in.
#[derive(Debug)]
pub struct Unpacked {
    /// The image.
    pub image: PulledImage,
    /// Where its container's layer goes, too.
    pub store: ImageStore,
    /// Unmounted, and so given back, when this goes.
    _memory: Option<TransientMount>,
}

/// Whether an image was not stored because its place was full.
pub fn is_full(error: &PullError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        cause = match error.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::StorageFull => return true,
            // Its `source` leaves out the error that it was made of.
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    false
}

impl Unpacked {
    /// Pulls it to where there is room. `images` is the store under /var.
    ///
    /// # Errors
    /// Nothing of it is left.
    pub async fn pull(
        puller: &Puller,
        resolved: &ResolvedImage,
        limits: &Limits,
        images: &ImageStore,
        room: Room,
    ) -> Result<Self, UpgradeError> {
        let (store, memory) = match room {
            Room::Var => (images.clone(), None),
            Room::Memory => {
                let memory = mount(limits.unpacked_bytes.saturating_add(OVERHEAD))
                    .context("mount memory for the installer's image")
                    .map_err(UpgradeError::Machine)?;
                (ImageStore::new(MEMORY.into()), Some(memory))
            }
        };
        let image = puller.pull(resolved, &store, limits).await?;
        Ok(Unpacked {
            image,
            store,
            _memory: memory,
        })
    }

    /// Removes it: the root filesystem that it has handed over is all that is needed from here on.
    ///
    /// # Errors
    /// The disk.
    pub async fn remove(&self) -> Result<(), StoreError> {
        self.store.remove(self.image.digest()).await
    }
}

fn mount(size: u64) -> io::Result<TransientMount> {
    let options = format!("size={size},mode=0700");
    let filesystem = Filesystem {
        kind: "tmpfs",
        source: Path::new("tmpfs"),
        flags: MountFlags::empty(),
        options: &options,
    };
    TransientMount::new(filesystem, Path::new(MEMORY))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_full_place_is_known_at_any_depth() {
        let failed = |kind: io::ErrorKind| PullError::Store {
            reference: "r.io/a:v1".parse().unwrap(),
            source: StoreError::Io {
                step: "writing",
                path: "/var/lib/instar".into(),
                source: io::Error::other(io::Error::from(kind)),
            },
        };
        assert!(is_full(&failed(io::ErrorKind::StorageFull)));
        assert!(!is_full(&failed(io::ErrorKind::NotFound)));
    }
}
