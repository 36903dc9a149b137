//! The digests by which a record knows an image, and how its registry is asked for that image again.
//!
//! The digest of the manifest for this machine is the key in the store. Where the name pointed to an index, people sign that one
//! (`cosign sign IMAGE@DIGEST`): whoever asks for the manifest alone looks for signatures of it, and finds none. So a record keeps both, and
//! the index is what is asked for.

use crate::oci::registry::RequestError;
use crate::oci::{
    ImageStore, Limits, PullError, PulledImage, Puller, ResolvedImage, VerifiedImage,
};
use crate::values::{Digest, ImageReference};

/// The digests of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageDigests {
    /// That of the manifest for this machine.
    pub digest: Digest,
    /// That of the index that the name pointed to, if it pointed to one, and it is known: records of older versions do not have it.
    pub index: Option<Digest>,
}

impl ImageDigests {
    /// The digests of an image at a registry.
    pub fn of_resolved(image: &ResolvedImage) -> Self {
        ImageDigests::new(image.digest(), image.named_digest)
    }

    /// The digests of an image in the store. An index that a record knows of it comes first: the store keeps the one of the first pull.
    pub fn of_pulled(image: &PulledImage, known: Option<Self>) -> Self {
        let stored = ImageDigests::new(image.digest(), image.named_digest());
        let known = known.filter(|known| known.digest == stored.digest);
        known.map_or(stored, |known| known.or_index_of(Some(stored)))
    }

    fn new(digest: Digest, named: Digest) -> Self {
        ImageDigests {
            digest,
            index: Some(named).filter(|named| *named != digest),
        }
    }

    /// The digest of the document that the name pointed to, which is the one that is signed.
    pub fn named(&self) -> Digest {
        self.index.unwrap_or(self.digest)
    }

    /// Returns the index, also one by which the image is named and that a record of an older version does not have.
    fn index_of(&self, name: &ImageReference) -> Option<Digest> {
        let index = self.index.or_else(|| name.digest());
        index.filter(|index| *index != self.digest)
    }

    /// The same, with the index that was known before of this image if none is known now.
    #[must_use]
    pub fn or_index_of(self, before: Option<Self>) -> Self {
        let before = before.filter(|before| before.digest == self.digest);
        ImageDigests {
            index: self.index.or(before.and_then(|before| before.index)),
            ..self
        }
    }

    /// Resolves this image at its registry, under this name. An index that is gone there, or has another image for this machine by now,
    /// leaves the manifest.
    ///
    /// # Errors
    /// The registry does not give it.
    pub async fn resolve(
        &self,
        puller: &Puller,
        name: &ImageReference,
    ) -> Result<ResolvedImage, PullError> {
        let by_index = match self.index_of(name) {
            Some(index) => match puller.resolve(&name.at(index)).await {
                Ok(image) => Some(image).filter(|image| image.digest() == self.digest),
                Err(error) if !is_absent(&error) => return Err(error),
                Err(_) => None,
            },
            None => None,
        };
        let image = match by_index {
            Some(image) => image,
            None => puller.resolve(&name.at(self.digest)).await?,
        };
        Ok(ResolvedImage {
            reference: name.clone(),
            ..image
        })
    }

    /// Admits this image, which the store has, as [`Puller::admit`] does; also by a signature of the index, where the store does not know
    /// that it came by one.
    ///
    /// # Errors
    /// The errors of [`Puller::admit`].
    pub async fn admit(
        &self,
        puller: &Puller,
        name: &ImageReference,
        image: PulledImage,
        store: &ImageStore,
    ) -> Result<VerifiedImage, PullError> {
        let in_store = image.named_digest();
        let refusal = match puller.admit(name, image, store).await {
            Err(refusal @ PullError::NotVerified(_)) if !refusal.is_unreachable() => refusal,
            other => return other,
        };
        let Some(index) = self.index_of(name).filter(|index| *index != in_store) else {
            return Err(refusal);
        };
        let image = ImageDigests {
            index: Some(index),
            ..*self
        };
        // A tag may be another image's in the store by now, and stays that one's.
        let resolved = image.resolve(puller, &name.at(self.digest)).await?;
        let verified = puller.verify(resolved).await?;
        // It is here: nothing is transferred, and the signature is kept with it.
        puller.pull(&verified, store, &Limits::default()).await
    }
}

/// Whether an endpoint has answered that it does not have the document.
fn is_absent(error: &PullError) -> bool {
    let PullError::Resolve(error) = error else {
        return false;
    };
    let mut errors = error.tried.0.iter();
    errors.any(|(_, error)| matches!(error, RequestError::NotFound { .. }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::registry_for_tests::{Pushed, SignedRegistry};
    use crate::oci::Keeps;

    fn digests(image: &Pushed) -> ImageDigests {
        ImageDigests {
            digest: image.manifest,
            index: Some(image.index),
        }
    }

    #[tokio::test]
    async fn an_image_is_asked_for_by_its_index_and_else_by_its_manifest() {
        let registry = SignedRegistry::start();
        let (puller, web) = (registry.puller(), registry.push("web:v1", "web"));
        let (known, other) = (digests(&web), registry.push("web:v2", "other"));
        let without = ImageDigests {
            index: None,
            ..known
        };
        let by_index = web.name.at(web.index);
        let elsewhere = ImageDigests {
            index: Some(other.index),
            ..known
        };
        for (known, name, index) in [
            (known, &web.name, Some(web.index)),
            // A record of an older version.
            (without, &web.name, None),
            (without, &by_index, Some(web.index)),
            (elsewhere, &web.name, None),
        ] {
            let resolved = known.resolve(&puller, name).await.unwrap();
            assert_eq!(resolved.reference, *name);
            let found = ImageDigests::of_resolved(&resolved);
            assert_eq!((found.digest, found.index), (web.manifest, index));
            // Only the index is signed.
            let verified = puller.verify(resolved).await;
            assert_eq!(verified.is_ok(), index.is_some());
        }
        registry.forget(&web, web.index);
        let resolved = known.resolve(&puller, &web.name).await.unwrap();
        assert_eq!(ImageDigests::of_resolved(&resolved), without);
        registry.forget(&web, web.manifest);
        assert!(known.resolve(&puller, &web.name).await.is_err());
    }

    /// It was pulled by its manifest, by a rule that wanted no signature.
    #[tokio::test]
    async fn an_image_of_the_store_is_admitted_by_a_signature_of_the_index_that_a_record_knows() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned(), Keeps::ImagesAlone);
        let registry = SignedRegistry::start();
        let web = registry.push("web:v1", "web");
        let (known, free) = (digests(&web), registry.puller_without_rules());
        let by_manifest = free.look_up(&web.name.at(web.manifest)).await.unwrap();
        let pulled = free.pull(&by_manifest, &store, &Limits::default()).await;
        let image = pulled.unwrap().into_inner();
        let without = ImageDigests::of_pulled(&image, None);
        assert_eq!(without.index, None);
        assert_eq!(ImageDigests::of_pulled(&image, Some(known)), known);

        let puller = registry.puller();
        let refused = without.admit(&puller, &web.name, image.clone(), &store);
        assert!(matches!(refused.await, Err(PullError::NotVerified(_))));
        let admitted = known.admit(&puller, &web.name, image.clone(), &store).await;
        assert_eq!(admitted.unwrap().digest(), web.manifest);
        // The signature is kept: no registry is needed from now on.
        drop(registry);
        puller.policy().admit(&web.name, image).unwrap();
    }
}
