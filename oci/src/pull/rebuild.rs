//! Makes a damaged or lost image again from the blobs of the store, without its registry.

use super::error::PullError;
use super::into_store::import;
use crate::local_image::{self, LocalImageError};
use crate::registry::ResolvedImage;
use crate::store::{ImageStore, PulledImage};
use crate::store_error::StoreError;
use crate::unpack::Limits;
use crate::verification::{Policy, Refusal};
use instar_base::blocking_io::{self, NoAnswer};
use instar_base::error_chain::chain;
use instar_values::{Digest, ImageReference};

/// Why an image cannot be made from blobs.
#[derive(Debug, thiserror::Error)]
pub(super) enum RebuildError {
    #[error("the store keeps no blobs")]
    NoBlobs,
    #[error("{}", chain(.0))]
    Blobs(#[from] LocalImageError),
    #[error("{}", chain(&**.0))]
    NotAllowed(#[from] Box<Refusal>),
    #[error("{}", chain(.0))]
    Import(#[from] PullError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Interrupted(#[from] NoAnswer),
}

/// Makes the image of this digest. It gets the names and the proofs of the one before, and has to be as trusted as it was. A name that another image
/// has by now stays that one's: a pull or a bundle has brought it since.
pub(super) async fn from_blobs(
    policy: &Policy,
    name: &ImageReference,
    digest: Digest,
    before: Option<PulledImage>,
    store: &ImageStore,
) -> Result<PulledImage, RebuildError> {
    let named_digest = before.as_ref().map_or(digest, PulledImage::named_digest);
    let resolved = {
        let (blobs, name) = (store.blobs().ok_or(RebuildError::NoBlobs)?, name.clone());
        blocking_io::to_its_end(move || {
            let by_index = local_image::resolve(&blobs, &name, named_digest)
                .ok()
                .filter(|resolved| resolved.digest() == digest);
            match by_index {
                Some(resolved) => Ok(resolved),
                None => local_image::resolve(&blobs, &name, digest),
            }
        })
        .await??
    };
    let resolved = ResolvedImage {
        named_digest,
        ..resolved
    };
    let verified = policy.admit_resolved(resolved, &store.left_proofs(digest))?;
    let own = match store.is_name_of_another(name, digest)? {
        true => name.at(digest),
        false => name.clone(),
    };
    // The rules are those for the name that was asked for.
    let named = verified.same_image(ResolvedImage {
        reference: own.clone(),
        ..ResolvedImage::clone(&verified)
    });
    let mut image = import(&named, store, &Limits::default())
        .await?
        .into_inner();
    let names = before.iter().flat_map(|before| before.names());
    for other in names.filter(|other| **other != own) {
        image = store.add_name(image, other, named_digest)?;
    }
    Ok(image)
}
