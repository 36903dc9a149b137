//! Unpacks an image of a bundle into the store.

use instar_base::blocking_io;
use instar_bundle::VerifiedBundle;

use crate::pull::{Progress, PullError, Source, into_store};
use crate::registry::ResolvedImage;
use crate::store::{ImageStore, PulledImage};
use crate::unpack::Limits;
use crate::verification::{Verified, VerifiedImage};

/// Whether an image takes its name from another image of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// It does, as with a pull.
    Moves,
    /// It does if it is newer by its date. Else it is in the store by its digest alone.
    MovesToNewer,
}

/// Unpacks an image of a bundle into the store under its reference, unless it is there. Its blobs are kept as those of a pull. No registry is
/// asked.
///
/// # Errors
/// The bundle has changed since it was verified, a layer is not taken, or there is no room. Nothing of the image is left then.
pub async fn import(
    bundle: &VerifiedBundle,
    image: &Verified<ResolvedImage>,
    naming: Naming,
    store: &ImageStore,
    limits: &Limits,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<VerifiedImage, PullError> {
    let source = Source::Bundle(bundle);
    let name = &image.reference;
    let by_digest = name.at(image.digest());
    if naming == Naming::Moves || name.digest().is_some() {
        let imported = into_store::unpack(source, image, store, limits, progress).await?;
        return Ok(image.same_image(imported));
    }
    let is_new = |image: &PulledImage| !image.names().contains(&by_digest);
    let is_new = store.get(image.digest()).as_ref().is_none_or(is_new);
    let nameless = image.same_image(ResolvedImage {
        reference: by_digest.clone(),
        ..ResolvedImage::clone(image)
    });
    let imported = into_store::unpack(source, &nameless, store, limits, progress).await?;
    // Only now: another image may have got the name meanwhile.
    let surplus = is_new.then_some(by_digest);
    let (named_digest, naming) = (image.named_digest, (store.clone(), name.clone()));
    let named = blocking_io::to_its_end(move || {
        let (store, name) = naming;
        store.add_name_if_newer(imported, &name, named_digest, surplus.as_ref())
    });
    let named = named.await.map_err(|source| PullError::Interrupted {
        reference: name.clone(),
        source,
    })?;
    let named = named.map_err(|source| PullError::Store {
        reference: name.clone(),
        source,
    })?;
    Ok(image.same_image(named))
}
