//! Unpacks an image of a bundle into the store.

use instar_bundle::VerifiedBundle;

use crate::pull::{Progress, PullError, Source, into_store};
use crate::registry::ResolvedImage;
use crate::store::ImageStore;
use crate::unpack::Limits;
use crate::verification::{Verified, VerifiedImage};

/// Unpacks an image of a bundle into the store under its reference, unless it is there. Its blobs are kept as those of a pull. No registry is
/// asked.
///
/// # Errors
/// The bundle has changed since it was verified, a layer is not taken, or there is no room. Nothing of the image is left then.
pub async fn import(
    bundle: &VerifiedBundle,
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
    limits: &Limits,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<VerifiedImage, PullError> {
    let source = Source::Bundle(bundle);
    let imported = into_store::unpack(source, image, store, limits, progress).await?;
    Ok(image.same_image(imported))
}
