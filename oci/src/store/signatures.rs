//! The signatures that the store keeps with its images, and those that damaged images have left to their successors.

use instar_values::Digest;

use super::image::PulledImage;
use super::{ImageStore, kept_proofs};
use crate::store_error::StoreError;
use crate::verification::proof::{Proof, Proofs};
use crate::verification::unjudged::Unjudged;

impl ImageStore {
    /// The proofs that a damaged image has left, and its other signatures.
    pub(crate) fn left_proofs(&self, digest: Digest) -> (Proofs, Unjudged) {
        self.shared.left_proofs.read(digest)
    }

    /// Gives an image that was made in the place of a damaged one the proofs that this has left.
    pub(crate) fn inherit_proofs(&self, image: &PulledImage) -> Result<(), StoreError> {
        let (proofs, unjudged) = self.left_proofs(image.digest());
        for proof in proofs.iter() {
            self.keep_proof(image, proof)?;
        }
        self.keep_unjudged(image, &unjudged)?;
        self.shared.left_proofs.remove(image.digest())
    }

    /// Keeps the signature that an image was verified by.
    pub(crate) fn keep_proof(&self, image: &PulledImage, proof: &Proof) -> Result<(), StoreError> {
        let _naming = self.naming();
        let mut proofs = image.proofs();
        match proofs.add(proof) {
            true => kept_proofs::write(&image.directory, &proofs),
            false => Ok(()),
        }
    }

    /// Keeps signatures that came with an image, for rules of later.
    pub(crate) fn keep_unjudged(
        &self,
        image: &PulledImage,
        newer: &Unjudged,
    ) -> Result<(), StoreError> {
        let _naming = self.naming();
        let mut unjudged = image.unjudged();
        match unjudged.add(newer) {
            true => kept_proofs::write_unjudged(&image.directory, &unjudged),
            false => Ok(()),
        }
    }
}
