//! An image on its way into the store: unpacked beside its place, synced, and renamed into it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;

use instar_values::{Digest, ImageReference};

use super::image::{Hold, PulledImage};
use super::names::index_of;
use super::record::{Record, now, write};
use super::sweep::remove_tree;
use super::{INCOMING, ImageStore, kept_proofs, sealed};
use crate::blobs::PartialBlob;
use crate::manifest::ImageConfig;
use crate::objects::NewObjects;
use crate::store_error::{StoreError, failed};
use crate::verification::proof::{Proof, Proofs};
use crate::verification::unjudged::Unjudged;

/// The facts about an image that comes into the store.
pub struct NewImage {
    /// Its name.
    pub name: ImageReference,
    /// The digest of the document that the name points to.
    pub named_digest: Digest,
    /// The settings for running it, and its labels.
    pub config: ImageConfig,
    /// Size of the download, in bytes.
    pub download_bytes: u64,
    /// Size of its unpacked layers, in bytes.
    pub unpacked_bytes: u64,
    /// The blobs that the store keeps for it.
    pub blobs: BTreeSet<Digest>,
}

/// An image that is being unpacked. Unless it is committed, dropping it removes it.
pub struct Incoming {
    store: ImageStore,
    digest: Digest,
    directory: PathBuf,
    is_sealed: bool,
    /// Complete blobs that become the store's with it.
    blobs: Vec<PartialBlob>,
    /// Files that other images may share from then on.
    objects: NewObjects,
}

impl ImageStore {
    /// Makes a place for an image that is about to be unpacked.
    pub fn incoming(&self, digest: Digest) -> Result<Incoming, StoreError> {
        self.prepare()?;
        let directory = self.temporary(INCOMING, digest);
        let rootfs = directory.join("rootfs");
        fs::create_dir_all(&rootfs).map_err(failed("creating", &rootfs))?;
        Ok(Incoming {
            store: self.clone(),
            digest,
            directory,
            is_sealed: false,
            blobs: Vec::new(),
            objects: NewObjects::default(),
        })
    }
}

impl Incoming {
    /// The directory for its layers.
    pub fn rootfs(&self) -> PathBuf {
        self.directory.join("rootfs")
    }

    /// Keeps the signature that the image was verified by. To be called before it is committed, so that it is never in the store without.
    pub(crate) fn keep_proof(&self, proof: &Proof) -> Result<(), StoreError> {
        let mut proofs = Proofs::default();
        proofs.add(proof);
        kept_proofs::write(&self.directory, &proofs)
    }

    /// Keeps signatures that came with the image, for rules of later.
    pub(crate) fn keep_unjudged(&self, unjudged: &Unjudged) -> Result<(), StoreError> {
        match unjudged.is_empty() {
            true => Ok(()),
            false => kept_proofs::write_unjudged(&self.directory, unjudged),
        }
    }

    /// Seals its files, and shares those that other images have already. To be called when all layers are unpacked, on a disk only.
    pub(crate) fn seal(&mut self) -> Result<(), StoreError> {
        self.objects = sealed::seal(&self.directory, &self.store.shared.objects)?;
        self.is_sealed = true;
        Ok(())
    }

    /// Keeps blobs that it was made from. They are complete, and their content was compared with their digests.
    pub(crate) fn keep_blobs(&mut self, blobs: impl IntoIterator<Item = PartialBlob>) {
        self.blobs.extend(blobs);
    }

    /// Makes it an image of the store. Blocks until it is on the disk.
    pub fn commit(self, image: NewImage) -> Result<PulledImage, StoreError> {
        let name = &image.name;
        let record = Record {
            digest: self.digest,
            index: index_of(self.digest, image.named_digest),
            names: BTreeSet::from([name.clone()]),
            config: image.config,
            download_bytes: image.download_bytes,
            unpacked_bytes: image.unpacked_bytes,
            pulled_at: now(),
            asked_for_at: None,
            blobs: image.blobs,
            sealed: self.is_sealed,
        };
        write(&self.directory, &record)?;
        // One sync for all files of the image instead of one for each.
        let directory = File::open(&self.directory).map_err(failed("opening", &self.directory))?;
        rustix::fs::syncfs(&directory)
            .map_err(|errno| failed("syncing", &self.directory)(errno.into()))?;
        // Before the image: an image without its blobs could not be made again without a registry.
        self.store.shared.blobs.keep(&self.blobs)?;
        // Held from the moment at which it appears, so that it cannot be collected.
        let _hold = Hold::new(&self.store.shared, self.digest);
        let place = self.store.place(self.digest);
        {
            let _naming = self.store.naming();
            self.store.take_name(name, self.digest)?;
        }
        match fs::rename(&self.directory, &place) {
            Ok(()) if self.is_sealed => {
                self.store.shared.state().checked.insert(self.digest);
            }
            Ok(()) => {}
            // Another pull of the same image was faster.
            Err(_) if self.store.get(self.digest).is_some() => {}
            Err(error) => return Err(failed("creating", &place)(error)),
        }
        let images = self.store.images();
        File::open(&images)
            .and_then(|images| images.sync_all())
            .map_err(failed("syncing", &images))?;
        // After the sync: no power cut leaves an object without its data. Without objects the image is whole all the same.
        if let Err(error) = self
            .store
            .shared
            .objects
            .publish(&place.join("rootfs"), &self.objects)
        {
            tracing::warn!("files of {} are not shared: {error}", self.digest);
        }
        if let Err(error) = self.store.shared.left_proofs.forget_blobs(self.digest) {
            tracing::warn!("{} keeps blobs that nothing may need: {error}", self.digest);
        }
        match self.store.get(self.digest) {
            Some(stored) => self.store.add_name(stored, name, image.named_digest),
            None => Err(StoreError::Unknown(self.digest)),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // After a commit there is nothing left. Files that cannot be removed now are removed after the next start.
        if let Err(error) = remove_tree(&self.directory) {
            tracing::warn!("{} could not be removed: {error}", self.directory.display());
        }
    }
}
