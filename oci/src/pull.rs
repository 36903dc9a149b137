//! Pulls an image: from its name to an unpacked root filesystem in the store.
//!
//! Two steps, so that labels can be checked before any layer is transferred.
//!
//! ```text
//! registry ──► partial blob ──► unpacking, which compares size and digest ──► image, and the blobs that it came from
//!          3 layers at once     one layer after the other, follows the growing file
//! ```
//!
//! A store in memory keeps no blobs: a layer goes from the network straight into the unpacking. In both cases memory stays at some hundred
//! KiB for each transfer, whatever the image's size.
//!
//! A layer that came from old bytes (a blob of the store, a partial blob of an earlier pull) and is not taken is removed and fetched once
//! more from its beginning: a disk may have damaged it, a power cut may have torn it.

mod attempt;
mod error;
pub(crate) mod into_store;
mod layers;
mod lost_blobs;
mod rebuild;
mod source;

use std::sync::Arc;

use tokio::time::timeout;

use crate::registries::Registries;
use crate::registry::{Pace, RegistryClient, ResolvedImage, Retries};
use crate::store::{ImageStore, PulledImage};
use crate::unpack::Limits;
use crate::verification::{Policy, Refusal, Unjudged, VerificationError, Verified, VerifiedImage};
use error::LONGEST_PULL;
pub use error::PullError;
use instar_http_client::HttpError;
use instar_values::{Digest, ImageReference};
pub use into_store::{import, room_for_all};
pub(crate) use source::Source;

/// Pulls images that a policy allows. It holds tokens and certificates: make one when it is needed.
pub struct Puller {
    client: RegistryClient,
    policy: Policy,
}

/// The progress of a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that are here.
    pub bytes: u64,
    /// Bytes in total.
    pub total: u64,
}

impl Puller {
    /// A puller with these settings and the usual retries.
    pub fn new(registries: Arc<Registries>, policy: Policy) -> Self {
        Puller::with_retries(registries, policy, Retries::default())
    }

    /// A puller with other retries.
    pub fn with_retries(registries: Arc<Registries>, policy: Policy, retries: Retries) -> Self {
        Puller {
            client: RegistryClient::new(registries, retries),
            policy,
        }
    }

    /// The same puller with a limit on the bandwidth of its downloads.
    #[must_use]
    pub fn at_pace(self, pace: Arc<Pace>) -> Self {
        Puller {
            client: self.client.at_pace(pace),
            ..self
        }
    }

    /// The owner's policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Checks that the settings of all registries in the machine config can be used.
    ///
    /// # Errors
    /// The first host with invalid settings.
    pub fn check_settings(&self) -> Result<(), HttpError> {
        self.client.check_settings()
    }

    /// Resolves a name: digest, config and labels. No layer is transferred. The registry is not asked for images that the policy denies.
    pub async fn resolve(&self, reference: &ImageReference) -> Result<ResolvedImage, PullError> {
        self.policy.refuse_denied(reference)?;
        Ok(self.client.resolve(reference).await?)
    }

    /// Whether an image of this name is allowed by a signature alone. No registry is asked.
    ///
    /// # Errors
    /// The policy denies the name.
    pub fn needs_signature(&self, name: &ImageReference) -> Result<bool, Box<Refusal>> {
        self.policy.needs_signature(name)
    }

    /// Verifies a resolved image as the policy says. Its registry is asked for signatures.
    pub async fn verify(&self, image: ResolvedImage) -> Result<Verified<ResolvedImage>, PullError> {
        Ok(self.policy.verify(&self.client, image).await?)
    }

    /// The signatures of an image at its registry, by whomever: for rules of later. A registry that is away has none.
    pub async fn signatures(&self, image: &ResolvedImage) -> Unjudged {
        // In a box: the requests of a search are large, and every upgrade has this future in itself.
        Box::pin(self.client.find_signatures(image)).await
    }

    /// Resolves a name, and verifies the image.
    pub async fn look_up(
        &self,
        reference: &ImageReference,
    ) -> Result<Verified<ResolvedImage>, PullError> {
        self.verify(self.resolve(reference).await?).await
    }

    /// Admits an image of the store that is to be used by this name: by the signatures that are kept with it; if these are not enough, by
    /// those at its registry, and these are kept from then on.
    ///
    /// # Errors
    /// The policy's refusal, also if the registry cannot be asked.
    pub async fn admit(
        &self,
        name: &ImageReference,
        image: PulledImage,
        store: &ImageStore,
    ) -> Result<VerifiedImage, PullError> {
        let refusal = match self.policy.admit(name, image.clone()) {
            Ok(verified) => return Ok(verified),
            Err(refusal) => refusal,
        };
        let Refusal::NotSigned { rule, key, .. } = &*refusal else {
            return Err(refusal.into());
        };
        // The document that the name pointed to at the pull is signed more often than the image in it.
        let named = name.at(image.named_digest());
        let resolved = self.client.resolve(&named).await;
        let resolved = resolved.map_err(|source| {
            Box::new(VerificationError::Registry {
                rule: rule.clone(),
                key: *key,
                source,
            })
        })?;
        if resolved.digest() != image.digest() {
            return Err(refusal.into());
        }
        let verified = self.verify(resolved).await?.same_image(image);
        let kept = verified
            .proof()
            .map(|proof| store.keep_proof(&verified, proof));
        kept.transpose().map_err(|source| PullError::Store {
            reference: name.clone(),
            source,
        })?;
        Ok(verified)
    }

    /// Returns an image of the store once its files are known to be as they were unpacked, which is looked at once in a boot. A damaged image
    /// is removed and made again from its blobs, without a registry. `None` if it is not in the store, or cannot be made from blobs: then
    /// it is to be pulled.
    ///
    /// # Errors
    /// The store failed.
    pub async fn whole(
        &self,
        name: &ImageReference,
        digest: Digest,
        store: &ImageStore,
    ) -> Result<Option<PulledImage>, PullError> {
        let before = store.get(digest);
        let keeps_blobs = store.blobs().is_some();
        if let Some(image) = into_store::usable(name, digest, store).await? {
            return Ok(Some(image));
        }
        if !keeps_blobs {
            return Ok(None);
        }
        match rebuild::from_blobs(&self.policy, name, digest, before, store).await {
            Ok(image) => {
                tracing::info!(
                    "{name}: the image {digest} is made again from the blobs of the store"
                );
                Ok(Some(image))
            }
            Err(why) => {
                tracing::info!(
                    "{name}: the image {digest} cannot be made from the blobs of the store: {why}"
                );
                Ok(None)
            }
        }
    }

    /// Pulls a resolved image into the store, unless it is there.
    pub async fn pull(
        &self,
        image: &Verified<ResolvedImage>,
        store: &ImageStore,
        limits: &Limits,
    ) -> Result<VerifiedImage, PullError> {
        self.pull_with_progress(image, store, limits, &|_| {}).await
    }

    /// The same, and reports each piece that arrives. Dropping the future ends the pull; partial blobs stay for the next one.
    pub async fn pull_with_progress(
        &self,
        image: &Verified<ResolvedImage>,
        store: &ImageStore,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<VerifiedImage, PullError> {
        let late = PullError::Late {
            reference: image.reference.clone(),
        };
        let pulled = timeout(LONGEST_PULL, self.transfer(image, store, limits, progress))
            .await
            .unwrap_or(Err(late))?;
        Ok(image.same_image(pulled))
    }

    async fn transfer(
        &self,
        image: &Verified<ResolvedImage>,
        store: &ImageStore,
        limits: &Limits,
        progress: &(dyn Fn(Progress) + Send + Sync),
    ) -> Result<PulledImage, PullError> {
        into_store::unpack(
            Source::Registry(&self.client),
            image,
            store,
            limits,
            progress,
        )
        .await
    }
}
