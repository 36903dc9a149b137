//! Makes a bundle of images of the store, for another machine: from its blobs, and from the signatures that are kept with its images. A file
//! of an extension that a bundle has brought is named by the image that keeps it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use instar_bundle::{
    BundledFile, Document, EMPTY_CONFIG, Fault, Image, Index, NotAnIndex, Plan, Platform,
    Signature, WriteError, Writer, archive_bytes,
};
use instar_values::{Digest, ImageReference};

use super::keep_file::kept_files;
use crate::blobs::Blobs;
use crate::local_image::{self, LocalImageError};
use crate::store::{ImageStore, PulledImage};
use crate::store_error::StoreError;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Why images of the store make no bundle.
#[derive(Debug, thiserror::Error)]
pub enum StoredBundleError {
    /// The store is in memory.
    #[error("this machine keeps no blobs of images: its store is in memory")]
    NoBlobs,
    /// The image is not here.
    #[error("{0} is not in the store")]
    Absent(Box<ImageReference>),
    /// Not all blobs of an image are here.
    #[error("{reference} is here, but not as it was pulled")]
    Image {
        /// The image.
        reference: Box<ImageReference>,
        /// The error of the look at its documents.
        #[source]
        source: LocalImageError,
    },
    /// The images contradict each other.
    #[error("these images make no bundle")]
    Index(#[from] Box<NotAnIndex>),
    /// Their documents contradict each other.
    #[error("these images make no bundle")]
    Plan(#[from] Box<Fault>),
}

/// Why a bundle of images of the store is not written to its end.
#[derive(Debug, thiserror::Error)]
pub enum StoredWriteError {
    /// A blob of an image is gone, or damaged: then it is removed from the store.
    #[error("{reference} is here, but not as it was pulled")]
    Blob {
        /// The image.
        reference: Box<ImageReference>,
        /// The error of the blob.
        #[source]
        source: WriteError,
    },
    /// The sink takes no more, or the images are more than they seemed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// A bundle of images of the store, which is not written yet. Its images are not collected while it exists.
pub struct StoredBundle {
    index: Index,
    plan: Plan,
    documents: BTreeMap<Digest, Vec<u8>>,
    blobs: Blobs,
    /// The image that each blob is of.
    owners: BTreeMap<Digest, ImageReference>,
    _images: Vec<PulledImage>,
}

/// The parts of a bundle.
#[derive(Default)]
struct Parts {
    images: Vec<Image>,
    indexes: Vec<Document>,
    signatures: Vec<Signature>,
    files: Vec<BundledFile>,
    documents: BTreeMap<Digest, Vec<u8>>,
    owners: BTreeMap<Digest, ImageReference>,
}

impl Parts {
    /// Adds a document, and describes it.
    fn add(&mut self, bytes: Vec<u8>, media_type: &str) -> Document {
        let document = Document {
            digest: Digest::of(&bytes),
            size: bytes.len() as u64,
            media_type: media_type.to_owned(),
        };
        self.documents.insert(document.digest, bytes);
        document
    }

    /// Adds an image under a reference, with its signatures.
    fn image(
        &mut self,
        blobs: &Blobs,
        image: &PulledImage,
        reference: &ImageReference,
    ) -> Result<(), LocalImageError> {
        let resolved = local_image::resolve(blobs, reference, image.named_digest())
            .or_else(|_| local_image::resolve(blobs, reference, image.digest()))?;
        for layer in &resolved.layers {
            self.owners.insert(layer.digest, reference.clone());
        }
        let manifest = self.add(resolved.manifest, MANIFEST);
        self.add(resolved.config_document, "");
        let mut index = resolved.index.map(|bytes| self.add(bytes, INDEX));
        for proof in image.proofs().iter() {
            let (subject, signed_index) = proof.subject(image.digest());
            if let Some(bytes) = signed_index {
                index = Some(self.add(bytes.to_vec(), INDEX));
            }
            self.signature(subject, reference, proof.as_documents());
        }
        self.images.push(Image {
            reference: reference.clone(),
            platform: Platform {
                architecture: resolved.config.architecture,
                os: resolved.config.os,
            },
            manifest,
            index: index.as_ref().map(|index| index.digest),
        });
        self.indexes.extend(index);
        Ok(())
    }

    /// Adds the file that an image keeps; false if it is no such image.
    fn file(
        &mut self,
        store: &ImageStore,
        image: &PulledImage,
        reference: &ImageReference,
    ) -> bool {
        let kept = kept_files(store, &BTreeSet::from([image.digest()]));
        for file in &kept {
            self.owners.insert(file.digest(), reference.clone());
            self.add(file.manifest_bytes(), MANIFEST);
            self.add(EMPTY_CONFIG.to_vec(), "");
        }
        let is_one = !kept.is_empty();
        self.files.extend(kept);
        is_one
    }

    fn signature(&mut self, subject: Digest, reference: &ImageReference, mut all: Vec<Vec<u8>>) {
        let Some(manifest) = all.pop() else { return };
        let manifest = self.add(manifest, MANIFEST);
        for document in all {
            self.add(document, "");
        }
        self.signatures.push(Signature {
            subject,
            found_at: reference.at(manifest.digest),
            manifest,
        });
    }
}

impl StoredBundle {
    /// A bundle of these images. Waits for the disk.
    ///
    /// # Errors
    /// An image is not here as it was pulled, or the images contradict each other.
    pub fn new(
        store: &ImageStore,
        references: &[ImageReference],
    ) -> Result<Self, StoredBundleError> {
        let blobs = store.blobs().ok_or(StoredBundleError::NoBlobs)?;
        let (mut parts, mut images) = (Parts::default(), Vec::new());
        for reference in references {
            let named = || Box::new(reference.clone());
            let image = store.find(reference);
            let image = image.ok_or_else(|| StoredBundleError::Absent(named()))?;
            if !parts.file(store, &image, reference) {
                let added = parts.image(&blobs, &image, reference);
                added.map_err(|source| StoredBundleError::Image {
                    reference: named(),
                    source,
                })?;
            }
            images.push(image);
        }
        let index = Index::new(parts.images, parts.indexes, parts.signatures, parts.files);
        let index = index.map_err(Box::new)?;
        let plan = Plan::new(&index, &parts.documents).map_err(Box::new)?;
        Ok(StoredBundle {
            index,
            plan,
            documents: parts.documents,
            blobs,
            owners: parts.owners,
            _images: images,
        })
    }

    /// Its digest.
    pub fn digest(&self) -> Digest {
        self.index.digest()
    }

    /// The size of its archive, in bytes.
    pub fn bytes(&self) -> u64 {
        archive_bytes(&self.index, &self.plan)
    }

    /// Writes its archive. Waits for the disk and for the sink.
    ///
    /// # Errors
    /// A blob is gone or damaged, or the sink takes no more.
    pub fn write(self, sink: Box<dyn Write + Send>) -> Result<(), StoredWriteError> {
        let mut writer = Writer::stream(sink, &self.index, self.plan)?;
        while let Some(blob) = writer.next_blob() {
            let digest = blob.digest;
            if let Some(document) = self.documents.get(&digest) {
                writer.blob(&mut document.as_slice())?;
                continue;
            }
            let written = write_blob(&self.blobs, digest, &mut writer);
            written.map_err(|error| of_image(self.owners.get(&digest), error))?;
        }
        writer.finish()?;
        Ok(())
    }
}

fn write_blob(blobs: &Blobs, digest: Digest, writer: &mut Writer) -> Result<(), WriteError> {
    let gone = |source| WriteError::Source { digest, source };
    let opened = blobs.open(digest).map_err(into_io).map_err(gone)?;
    let missing = || gone(io::ErrorKind::NotFound.into());
    writer.blob(&mut opened.ok_or_else(missing)?.checked())
}

/// The error with the image that the blob is of, if it is about the blob.
fn of_image(owner: Option<&ImageReference>, error: WriteError) -> StoredWriteError {
    match (owner, error) {
        (Some(owner), source @ (WriteError::Source { .. } | WriteError::Content { .. })) => {
            let reference = Box::new(owner.clone());
            StoredWriteError::Blob { reference, source }
        }
        (_, error) => StoredWriteError::Write(error),
    }
}

fn into_io(error: StoreError) -> io::Error {
    io::Error::other(error)
}
