//! Looks an image up: at its registry, and in the store if that is away.

use std::time::Duration;

use tokio::time::timeout;

use crate::base::error_chain::chain;
use crate::containers::ImageDigests;
use crate::image_collection;
use crate::machine::Machine;
use crate::oci::verification::Basis;
use crate::oci::{
    ImageConfig, ImageStore, PullError, PulledImage, Puller, ResolvedImage, StoreError, Unjudged,
    Verified, VerifiedImage,
};
use crate::upgrade::{Evidence, WrittenImage};
use crate::values::{Digest, ImageReference};

/// Timeout for a registry whose image is in the store already.
const LOOK_UP: Duration = Duration::from_secs(10);
/// Size limit of the signatures that the record of a version keeps, in bytes: eight usual ones have 10 KiB.
const MOST_SIGNATURES: usize = 64 << 10;

/// A verified image, and where it is.
pub enum Offer {
    /// At its registry; it is not pulled yet.
    AtRegistry(Verified<ResolvedImage>),
    /// In the store. Its registry is away, or could say nothing else.
    Here(VerifiedImage),
}

impl Offer {
    /// The digest of its manifest.
    pub fn digest(&self) -> Digest {
        match self {
            Offer::AtRegistry(image) => image.digest(),
            Offer::Here(image) => image.digest(),
        }
    }

    /// The digests by which a record knows it.
    pub fn digests(&self) -> ImageDigests {
        match self {
            Offer::AtRegistry(image) => ImageDigests::of_resolved(image),
            Offer::Here(image) => ImageDigests::of_pulled(image, None),
        }
    }

    /// Why the rules allow it.
    pub fn basis(&self) -> &Basis {
        match self {
            Offer::AtRegistry(image) => image.basis(),
            Offer::Here(image) => image.basis(),
        }
    }

    /// The fingerprint of the key by whose signature a rule allows it.
    fn signed_by(&self) -> Option<Digest> {
        match self.basis() {
            Basis::Signed { key, .. } => Some(*key),
            Basis::NoRule | Basis::Skipped(_) | Basis::OfFile => None,
        }
    }

    /// What the record of a version keeps of it, for rules and keys of later.
    pub async fn evidence(&self, puller: &Puller) -> Evidence {
        let signatures = self.signatures(puller).await;
        Evidence {
            index: self.digests().index,
            written: WrittenImage::of(self.config()),
            signed_by: self.signed_by(),
            signatures: Some(signatures).filter(|it| !it.is_empty()),
        }
    }

    /// Its signatures, whatever the rules want, for the record of a version: a rule that names another key later judges by them, when the image
    /// is gone and its registry away.
    async fn signatures(&self, puller: &Puller) -> Unjudged {
        let resolved = match self {
            Offer::Here(image) => return PulledImage::signatures(image).within(MOST_SIGNATURES),
            Offer::AtRegistry(resolved) => resolved,
        };
        let mut known = resolved.signatures();
        match timeout(LOOK_UP, puller.signatures(resolved)).await {
            Ok(found) => _ = known.add(&found),
            Err(_) => tracing::warn!(
                "{}: its registry named no more signatures within {} s; rules of later may have to ask it again",
                resolved.reference,
                LOOK_UP.as_secs()
            ),
        }
        known.within(MOST_SIGNATURES)
    }

    /// Its settings and labels.
    pub fn config(&self) -> &ImageConfig {
        match self {
            Offer::AtRegistry(image) => &image.config,
            Offer::Here(image) => image.config(),
        }
    }
}

/// Looks the name up at its registry. If that is unreachable, the image of this name in the store is taken, as a bundle or a pull has brought
/// it; the rules decide about it by the signatures that are kept with it.
///
/// # Errors
/// The registry does not give the image, or the rules do not allow it.
pub async fn offer(
    machine: &Machine,
    puller: &Puller,
    reference: &ImageReference,
) -> Result<Offer, PullError> {
    // Held: it is not collected meanwhile.
    let Some(here) = machine.images.find(reference) else {
        return Ok(Offer::AtRegistry(puller.look_up(reference).await?));
    };
    let digest = here.digest();
    // A digest of an image that stays: its registry could say nothing else, except for a signature that is not kept.
    if reference.digest().is_some()
        && image_collection::is_needed(machine, digest)
        && let Ok(image) = of_store(&machine.images, puller, reference, digest).await
        // An older version noted none, and kept no document that names them: its registry has it.
        && !image.config().layers.is_empty()
    {
        return Ok(Offer::Here(image));
    }
    let away = match timeout(LOOK_UP, puller.look_up(reference)).await {
        Ok(Ok(resolved)) => return Ok(Offer::AtRegistry(resolved)),
        Ok(Err(error)) if error.is_unreachable() => chain(&error),
        Ok(Err(error)) => return Err(error),
        Err(_) => format!("no answer within {} s", LOOK_UP.as_secs()),
    };
    let image = of_store(&machine.images, puller, reference, digest).await?;
    tracing::warn!("{reference}: its registry is away, {digest} is used, which is here: {away}");
    Ok(Offer::Here(image))
}

/// The image of this digest in the store, if it is whole and the rules allow it.
async fn of_store(
    store: &ImageStore,
    puller: &Puller,
    reference: &ImageReference,
    digest: Digest,
) -> Result<VerifiedImage, PullError> {
    let whole = puller.whole(reference, digest, store).await?;
    let image = whole.ok_or_else(|| PullError::Store {
        reference: reference.clone(),
        source: StoreError::Unknown(digest),
    })?;
    Ok(puller.policy().admit(reference, image)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::registry_for_tests::{Pushed, SignedRegistry};
    use crate::oci::Limits;
    use crate::sequences::image_pins::machine_for_tests::unbooted;

    async fn pulled(machine: &Machine, puller: &Puller, image: &Pushed) {
        let resolved = puller.look_up(&image.name).await.unwrap();
        let limits = Limits::default();
        let pulled = puller.pull(&resolved, &machine.images, &limits).await;
        pulled.unwrap();
    }

    #[tokio::test]
    async fn an_image_of_the_store_is_offered_while_its_registry_is_silent() {
        let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
        let (puller, machine) = (registry.puller(), unbooted(directory.path()).await);
        let web = registry.push("web:v1", "web");
        pulled(&machine, &puller, &web).await;
        let newer = registry.push("web:v1", "newer");
        let offered = offer(&machine, &puller, &web.name).await.unwrap();
        assert!(matches!(offered, Offer::AtRegistry(_)));
        assert_eq!(offered.digest(), newer.manifest);

        registry.fall_silent();
        tokio::time::pause();
        let tagged = format!("{}@{}", web.name, web.index).parse().unwrap();
        for name in [
            web.name.clone(),
            web.name.at(web.manifest),
            web.name.at(web.index),
            tagged,
        ] {
            let offered = offer(&machine, &puller, &name).await.unwrap();
            assert!(matches!(offered, Offer::Here(_)), "{name}");
            assert_eq!(offered.digest(), web.manifest);
        }
        // The rules of another owner.
        let other = SignedRegistry::start();
        other.fall_silent();
        let refused = offer(&machine, &other.puller(), &web.name).await;
        assert!(matches!(refused, Err(PullError::NotVerified(_))));
    }
}
