//! Compares an image with its seal, and completes the records of older versions.

use instar_base::lock::Lock as _;
use instar_values::Digest;

use super::ImageStore;
use super::image::PulledImage;
use super::record::{Record, read};
use super::sealed::{self, Files};
use crate::local_image;
use crate::store_error::StoreError;

/// Whether an image of the store can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wholeness {
    /// Its files are as they were unpacked.
    Whole,
    /// Its files or its record have changed on the disk: how.
    Damaged(String),
    /// It is not in the store.
    Absent,
}

impl ImageStore {
    /// Compares an image's files with its seal, unless that was done in this boot; then it is whole if it is there. A store in memory has no
    /// seals. Blocks for as long as all its files take to be read.
    pub fn check(&self, digest: Digest) -> Wholeness {
        let place = self.place(digest);
        if !place.exists() {
            return Wholeness::Absent;
        }
        let Some(record) = read(&place).filter(|record| record.digest == digest) else {
            return Wholeness::Damaged("its record cannot be read".to_owned());
        };
        let _checking = self.shared.checking.locked();
        if self.blobs().is_none() {
            return Wholeness::Whole;
        }
        if self.shared.state().checked.contains(&digest) {
            // Perhaps by an older version, in this boot.
            self.note_layers_of_blobs(&record);
            return Wholeness::Whole;
        }
        let sealed = match sealed::check(&place) {
            Files::Whole => Ok(()),
            // Sealed as it is, its files would be trusted whatever the disk has made of them.
            Files::Unsealed if record.sealed => {
                return Wholeness::Damaged("its seal is gone".to_owned());
            }
            Files::Unsealed => {
                tracing::info!("the image {digest} gets a seal: its version had none");
                sealed::seal_old(&place)
            }
            Files::Damaged(how) => return Wholeness::Damaged(how),
        };
        // A full disk keeps no image from running.
        if let Err(error) = sealed.and_then(|()| self.complete_record(&record)) {
            tracing::warn!(
                "the image {digest} has no seal yet, or a record that knows none: {error}"
            );
        }
        self.note_layers_of_blobs(&record);
        self.shared.state().checked.insert(digest);
        Wholeness::Whole
    }

    /// Notes in a record that an older version wrote which layers the image has, by the documents that are kept with it.
    fn note_layers_of_blobs(&self, record: &Record) {
        if !record.config.layers.is_empty() {
            return;
        }
        let layers = local_image::layers_of(&self.shared.blobs, record.digest);
        let noted = self
            .get(record.digest)
            .map(|image| self.note_layers(image, &layers));
        if let Some(Err(error)) = noted {
            tracing::warn!(
                "the layers of the image {} are not noted: {error}",
                record.digest
            );
        }
    }

    /// Notes in a record that an older version wrote which layers the image has.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(crate) fn note_layers(
        &self,
        image: PulledImage,
        layers: &[Digest],
    ) -> Result<PulledImage, StoreError> {
        if layers.is_empty() || !image.record.config.layers.is_empty() {
            return Ok(image);
        }
        let note = |record: &mut Record| record.config.layers = layers.to_vec();
        let noted = self.change_record(image.digest(), note)?;
        Ok(noted.unwrap_or(image))
    }

    /// Notes in a record that an older version wrote that the image is sealed, and which blobs it was made from.
    fn complete_record(&self, record: &Record) -> Result<(), StoreError> {
        if record.sealed {
            return Ok(());
        }
        let named = local_image::blobs_named_by(&self.shared.blobs, record.digest)?;
        let note = |record: &mut Record| {
            record.sealed = true;
            record.blobs.extend(named);
        };
        self.change_record(record.digest, note).map(drop)
    }
}
