//! The names of the store's images, and what else changes in their records: one change at a time.

use std::sync::MutexGuard;

use instar_base::lock::Lock as _;
use instar_values::{Digest, ImageReference};

use super::ImageStore;
use super::image::PulledImage;
use super::record::{Record, now, write};
use crate::store_error::StoreError;

impl ImageStore {
    /// Gives an image of the store a name, and takes the name from all others. `named` is the digest of the document that the name points
    /// to: the image is known by that index from now on, unless it is known by another one. Blocks until it is on the disk.
    ///
    /// # Errors
    /// The file system failed. Then no image may have the name.
    pub fn add_name(
        &self,
        image: PulledImage,
        name: &ImageReference,
        named: Digest,
    ) -> Result<PulledImage, StoreError> {
        let _naming = self.naming();
        self.give_name(image, name, named)
    }

    /// As `add_name`, for those who have locked the names.
    pub(super) fn give_name(
        &self,
        mut image: PulledImage,
        name: &ImageReference,
        named: Digest,
    ) -> Result<PulledImage, StoreError> {
        self.take_name(name, image.digest())?;
        let record = &mut image.record;
        let index = record.index.or(index_of(record.digest, named));
        let is_known = record.index == index;
        record.index = index;
        if record.names.insert(name.clone()) || !is_known {
            write(&image.directory, record)?;
        }
        Ok(image)
    }

    pub(super) fn naming(&self) -> MutexGuard<'_, ()> {
        self.shared.naming.locked()
    }

    /// Whether another image than this one has a name.
    ///
    /// # Errors
    /// The images cannot be listed.
    pub(crate) fn is_name_of_another(
        &self,
        name: &ImageReference,
        image: Digest,
    ) -> Result<bool, StoreError> {
        let others = self.list()?;
        let mut others = others.iter().filter(|other| other.digest() != image);
        Ok(others.any(|other| other.names().contains(name)))
    }

    /// Takes a name from all other images, before the new one gets it: after a power cut no image has it rather than two.
    pub(super) fn take_name(&self, name: &ImageReference, but: Digest) -> Result<(), StoreError> {
        for mut image in self.list()? {
            let record = &mut image.record;
            if record.digest == but || !record.names.remove(name) {
                continue;
            }
            if record.names.is_empty() {
                record.names.insert(name.at(record.digest));
            }
            write(&image.directory, record)?;
        }
        Ok(())
    }

    /// Notes that a caller asks for an image now.
    pub fn note_asked_for(&self, image: &PulledImage) -> Result<(), StoreError> {
        let note = |record: &mut Record| record.asked_for_at = Some(now());
        self.change_record(image.digest(), note).map(drop)
    }

    /// Changes the record of an image as it is now: its names may be others than when it was looked up. None if the image is gone.
    pub(super) fn change_record(
        &self,
        digest: Digest,
        change: impl FnOnce(&mut Record),
    ) -> Result<Option<PulledImage>, StoreError> {
        let _naming = self.naming();
        let Some(mut image) = self.get(digest) else {
            return Ok(None);
        };
        change(&mut image.record);
        write(&image.directory, &image.record)?;
        Ok(Some(image))
    }
}

/// The digest of the document that a name points to, if that is the image's index and not its manifest.
pub(super) fn index_of(image: Digest, named: Digest) -> Option<Digest> {
    Some(named).filter(|&named| named != image)
}
