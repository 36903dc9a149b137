//! Removes images, and the blobs and shared files that no other image needs.
//!
//! An image leaves the store in one step, by its name; then its files go, and last its blobs. After a power cut in between the next sweep
//! and the next collection remove the rest.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use instar_base::blocking_io;
use instar_base::mount_table;
use instar_values::Digest;

use super::collection::{BlobFacts, Urgency};
use super::image::PulledImage;
use super::sweep::remove_tree;
use super::{ImageStore, REMOVED};
use crate::local_image;
use crate::store_error::{StoreError, failed};

impl ImageStore {
    /// Removes an image even if it is held, and the blobs that no other image needs. Containers that run from it must be gone.
    pub async fn remove(&self, digest: Digest) -> Result<(), StoreError> {
        let blobs = self.blobs_of(digest);
        let removed = self.put_away(digest)?;
        self.remove_for_good(removed, blobs).await
    }

    /// Removes an image, and the blobs that no other image needs, unless it is held or a container is mounted from it; returns whether it is
    /// gone.
    pub async fn remove_unused(&self, digest: Digest) -> Result<bool, StoreError> {
        let blobs = self.blobs_of(digest);
        let removed = {
            // A caller that wants to hold the image waits here, and finds nothing. A start holds it until its container's file system is
            // mounted.
            let state = self.shared.state();
            if state.held.contains_key(&digest) || self.is_mounted(digest)? {
                return Ok(false);
            }
            self.put_away(digest)?
        };
        self.remove_for_good(removed, blobs).await?;
        Ok(true)
    }

    /// Removes a damaged image. Its proofs stay for the image that is made in its place, and its files for containers that run from it, until
    /// the next boot.
    pub(crate) async fn remove_damaged(&self, digest: Digest) -> Result<(), StoreError> {
        let mut blobs = self.blobs_of(digest);
        if blobs.is_empty() {
            // Without its manifest it is not made again from blobs.
            blobs = self.blobs_by_manifest(digest).unwrap_or_default();
        }
        let proofs = &self.shared.left_proofs;
        if let Err(error) = proofs.take_over(digest, &self.place(digest), &blobs) {
            // Then its registry has to be asked for them, and for its layers if it is not made again within the hour.
            tracing::warn!("the signatures of the image {digest} are lost with it: {error}");
        }
        let is_mounted = self.is_mounted(digest)?;
        let removed = self.put_away(digest)?;
        match is_mounted {
            true => Ok(()),
            // The image is made again from its blobs.
            false => self.remove_for_good(removed, BTreeSet::new()).await,
        }
    }

    /// Removes blobs and shared files that no image of the store needs; returns their bytes. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// The file system failed. What is left is removed by the next call.
    pub fn collect_surplus(&self, urgency: Urgency) -> Result<u64, StoreError> {
        let blobs = &self.shared.blobs;
        // Listed before the images: a blob that comes later is not in the list.
        let (whole, partial) = (blobs.list()?, blobs.list_partial()?);
        let facts = BlobFacts {
            blobs: whole,
            partial,
            needed: self.needed_blobs(urgency)?,
            now: SystemTime::now(),
            urgency,
        };
        let surplus = facts.surplus();
        let mut bytes = 0;
        for file in &facts.blobs {
            if surplus.blobs.contains(&file.digest) && blobs.remove_unless_held(file.digest)? {
                bytes += file.bytes;
            }
        }
        for digest in surplus.partial {
            blobs.remove_partial(digest)?;
        }
        self.shared.left_proofs.collect()?;
        Ok(bytes + self.shared.objects.collect()?)
    }

    /// Moves an image out of the store in one step.
    pub(super) fn put_away(&self, digest: Digest) -> Result<PathBuf, StoreError> {
        let place = self.place(digest);
        let removed = self.temporary(REMOVED, digest);
        match fs::rename(&place, &removed) {
            Ok(()) => Ok(removed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::Unknown(digest))
            }
            Err(error) => Err(failed("removing", &place)(error)),
        }
    }

    /// Removes an image that was put away, and those of its blobs that no other image needs.
    async fn remove_for_good(
        &self,
        removed: PathBuf,
        blobs: BTreeSet<Digest>,
    ) -> Result<(), StoreError> {
        let (store, path) = (self.clone(), removed.clone());
        let work = blocking_io::within(blocking_io::ANSWER, move || {
            remove_tree(&path).map_err(failed("removing", &path))?;
            let needed = match blobs.is_empty() {
                true => BTreeSet::new(),
                false => store.needed_blobs(Urgency::Usual)?,
            };
            for blob in blobs.difference(&needed) {
                store.shared.blobs.remove_unless_held(*blob)?;
            }
            Ok(())
        });
        let done = work.await;
        done.unwrap_or_else(|error| Err(failed("removing", &removed)(io::Error::other(error))))
    }

    /// The blobs that an image was made from. None if they cannot be told any more: then the collection removes them.
    fn blobs_of(&self, digest: Digest) -> BTreeSet<Digest> {
        let image = self.get(digest);
        let blobs = image.map(|image| self.blobs_of_image(&image));
        blobs.and_then(Result::ok).unwrap_or_default()
    }

    /// The blobs that an image was made from: by its record, since a manifest that was damaged would leave its layers to the collection; by its
    /// manifest if an older version wrote the record.
    fn blobs_of_image(&self, image: &PulledImage) -> Result<BTreeSet<Digest>, StoreError> {
        let documents = [image.digest(), image.named_digest()];
        let mut blobs = match image.noted_blobs().is_empty() {
            true => local_image::blobs_named_by(&self.shared.blobs, image.digest())?,
            false => image.noted_blobs().clone(),
        };
        blobs.extend(documents);
        Ok(blobs)
    }

    /// The blobs that an image was made from whose record cannot be read, as far as its manifest says it.
    pub(super) fn blobs_by_manifest(&self, digest: Digest) -> Result<BTreeSet<Digest>, StoreError> {
        if self.blobs().is_none() {
            return Ok(BTreeSet::new());
        }
        let mut blobs = local_image::blobs_named_by(&self.shared.blobs, digest)?;
        blobs.insert(digest);
        Ok(blobs)
    }

    /// The blobs that the images of the store were made from, and those of damaged images that are to be made again.
    fn needed_blobs(&self, urgency: Urgency) -> Result<BTreeSet<Digest>, StoreError> {
        let mut needed = self.shared.left_proofs.blobs(urgency)?;
        for digest in self.digests()? {
            needed.extend(match self.get(digest) {
                Some(image) => self.blobs_of_image(&image)?,
                // One byte of a record must not cost the layers, which nobody may be able to fetch again.
                None => self.blobs_by_manifest(digest)?,
            });
        }
        Ok(needed)
    }

    /// Whether an overlay is mounted over it: of a running container, or a leftover.
    fn is_mounted(&self, digest: Digest) -> Result<bool, StoreError> {
        Ok(self.mounted()?.contains(&digest))
    }

    /// The images that overlays are mounted over. A running container has its root in a mount namespace of its own, and nowhere else.
    pub(super) fn mounted(&self) -> Result<BTreeSet<Digest>, StoreError> {
        let procfs = Path::new("/proc");
        let (images, mut mounted) = (self.images(), BTreeSet::new());
        let look = |table: &str| mounted.extend(lower_images(table, &images));
        mount_table::in_all_namespaces(procfs, look).map_err(failed("reading", procfs))?;
        Ok(mounted)
    }
}

/// The images of this directory that are below overlay mounts.
pub(super) fn lower_images(mountinfo: &str, images: &Path) -> BTreeSet<Digest> {
    let overlays = mount_table::mounts(mountinfo).filter(|mount| mount.kind == "overlay");
    let lower = overlays.flat_map(|mount| {
        // Newer kernels show a directory that was given alone as `lowerdir+`.
        let names = ["lowerdir", "lowerdir+"];
        let lower = names.map(|name| mount.values(name).collect::<Vec<_>>());
        lower.into_iter().flatten()
    });
    let image = lower.filter_map(|path| {
        let inside = Path::new(&path).strip_prefix(images).ok()?;
        let first = inside.components().next()?;
        Digest::from_hex(first.as_os_str().to_str()?).ok()
    });
    image.collect()
}
