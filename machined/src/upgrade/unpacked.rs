//! An unpacked installer image: under /var, or in memory if /var has no room.
//!
//! Containers fill /var. An upgrade has to be possible whatever they do, so its image does not depend on /var.

use std::error::Error;
use std::io;
use std::path::Path;

use anyhow::Context as _;

use super::check::Room;
use super::error::UpgradeError;
use crate::mounts::filesystem::{Filesystem, MountFlags};
use crate::mounts::transient_mount::TransientMount;
use crate::oci::{
    ImageStore, Keeps, Limits, PullError, Puller, ResolvedImage, StoreError, Verified,
    VerifiedImage,
};
use crate::values::Digest;

/// The mount point of the filesystem in memory.
const MEMORY: &str = "/run/machined/installer";
/// Bytes that a filesystem itself needs: pages that files do not fill, directories, the container's writable layer.
const OVERHEAD: u64 = 8 << 20;

/// An unpacked image, and its store.
#[derive(Debug)]
pub struct Unpacked {
    /// The image.
    pub image: VerifiedImage,
    /// The store; the container's layer goes there, too.
    pub store: ImageStore,
    /// Whether it was in the store under /var before the upgrade: it stays, as whoever brought it wants it, and its registry may be away.
    was_here: bool,
    /// The filesystem in memory; dropping it unmounts and frees it.
    memory: Option<TransientMount>,
}

/// Whether an image was not stored because the filesystem is full.
pub fn is_full(error: &PullError) -> bool {
    if matches!(error, PullError::NoRoom { .. }) {
        return true;
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        cause = match error.downcast_ref::<io::Error>() {
            Some(error) if error.kind() == io::ErrorKind::StorageFull => return true,
            // Its `source` leaves out the inner error.
            Some(error) => error.get_ref().map(|inner| inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    false
}

impl Unpacked {
    /// Pulls the image to where there is room. `images` is the store under /var.
    ///
    /// # Errors
    /// Nothing of the image is left.
    pub async fn pull(
        puller: &Puller,
        resolved: &Verified<ResolvedImage>,
        limits: &Limits,
        images: &ImageStore,
        room: Room,
    ) -> Result<Self, UpgradeError> {
        let (store, memory) = match room {
            Room::Var => (images.for_upgrade(), None),
            Room::Memory => {
                let memory = mount(limits.unpacked_bytes.saturating_add(OVERHEAD))
                    .context("mount memory for the installer's image")
                    .map_err(UpgradeError::Machine)?;
                let store = ImageStore::new(MEMORY.into(), Keeps::ImagesAlone);
                (store, Some(memory))
            }
        };
        // The one in memory goes with its filesystem.
        let was_here = memory.is_none() && store.get(resolved.digest()).is_some();
        let image = puller.pull(resolved, &store, limits).await?;
        Ok(Unpacked {
            image,
            store,
            was_here,
            memory,
        })
    }

    /// An image that was in the store before the upgrade. It stays there.
    pub fn of_store(image: VerifiedImage, images: &ImageStore) -> Self {
        Unpacked {
            image,
            store: images.clone(),
            was_here: true,
            memory: None,
        }
    }

    /// Removes the image, unless it was there before: from here on only the root filesystem that it handed over is needed. `is_needed` is
    /// asked at this moment: an image under /var may have been pinned since it was pulled.
    ///
    /// # Errors
    /// The disk failed.
    pub async fn remove(&self, is_needed: impl FnOnce(Digest) -> bool) -> Result<(), StoreError> {
        let digest = self.image.digest();
        let is_under_var = self.memory.is_none();
        match self.was_here || (is_under_var && is_needed(digest)) {
            true => Ok(()),
            false => self.store.remove(digest).await,
        }
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
    use crate::containers::registry_for_tests::SignedRegistry;

    #[tokio::test]
    async fn an_image_that_was_pinned_since_its_pull_stays() {
        let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
        let images = ImageStore::new(directory.path().to_owned(), Keeps::ImagesAlone);
        let (puller, limits) = (registry.puller(), Limits::default());
        let pushed = registry.push("installer:v1", "installer");
        let resolved = puller.look_up(&pushed.name).await.unwrap();
        let pulled = Unpacked::pull(&puller, &resolved, &limits, &images, Room::Var).await;
        let pulled = pulled.unwrap();
        pulled
            .remove(|digest| digest == pushed.manifest)
            .await
            .unwrap();
        assert!(images.get(pushed.manifest).is_some(), "it was removed");
        pulled.remove(|_| false).await.unwrap();
        assert!(images.get(pushed.manifest).is_none(), "it was left");
    }

    /// A caller has pulled it, and may begin the upgrade again within a day.
    #[tokio::test]
    async fn an_image_that_was_here_before_the_upgrade_stays() {
        let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
        let images = ImageStore::new(directory.path().to_owned(), Keeps::ImagesAlone);
        let (puller, limits) = (registry.puller(), Limits::default());
        let pushed = registry.push("installer:v1", "installer");
        let resolved = puller.look_up(&pushed.name).await.unwrap();
        puller.pull(&resolved, &images, &limits).await.unwrap();
        let pulled = Unpacked::pull(&puller, &resolved, &limits, &images, Room::Var).await;
        pulled.unwrap().remove(|_| false).await.unwrap();
        assert!(images.get(pushed.manifest).is_some(), "it was removed");
    }

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
