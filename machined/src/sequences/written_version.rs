//! A version that is written already, judged by the rules for images and the keys for upgrades of a config: one that waits for its start, or the
//! one that a rollback leads to. Its installer's image may be gone, so what is on record of it decides.
//!
//! ```text
//! a rule for its image      │ what is known                                        │ the version
//! ──────────────────────────┼──────────────────────────────────────────────────────┼───────────────────────────────────────────
//! none, or one that skips   │                                                      │ is allowed
//! denies                    │                                                      │ is refused
//! wants a key's signature   │ the record, the store or the registry has it         │ is allowed
//!                           │ the registry has none, or says nothing               │ is refused: nobody can tell that it is allowed
//! ──────────────────────────┼──────────────────────────────────────────────────────┼───────────────────────────────────────────
//! keys for upgrades         │ the record of its image: signed by one of them       │ is allowed
//!                           │ signed by none of them, or nothing on record         │ is refused
//! ```

use std::time::Duration;

use tokio::time::timeout;

use super::steps::admit;
use crate::base::error_chain::chain;
use crate::containers::ImageDigests;
use crate::intent;
use crate::machine::{Configured, Machine};
use crate::oci::verification::Verdict;
use crate::oci::{PullError, Puller};
use crate::upgrade::{PendingUpgrade, RootfsTrust, Starts, Untrusted};
use crate::values::{Digest, ImageReference};

/// Time limit for a registry to give a signature that is not kept with the image, and for the firmware to name its keys.
const ASK: Duration = Duration::from_secs(10);

/// A version that is written, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WrittenVersion {
    /// The version.
    pub(super) version: String,
    /// The upgrade that brought it; none if nothing is on record.
    pub(super) upgrade: Option<PendingUpgrade>,
    /// The name of its installer's image, and its digests; none if the record does not tell.
    pub(super) image: Option<(ImageReference, ImageDigests)>,
}

/// Why a version is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// A rule may deny its image, and nobody knows which one that is.
    #[error("its record does not name its installer's image, which a rule for images may deny")]
    NoImage,
    /// A rule denies its image.
    #[error("the rules for images do not allow its installer {image} ({digest}) any more: {why}")]
    Denied {
        image: Box<ImageReference>,
        digest: Digest,
        why: String,
    },
    /// No signature that its rule wants was found.
    #[error(
        "the rules for images do not allow its installer {image} ({digest}) any more: no signature by the key {wanted} was found: {why}"
    )]
    Unsigned {
        image: Box<ImageReference>,
        digest: Digest,
        /// The key, and the rule that wants it.
        wanted: String,
        why: String,
    },
    /// No key for upgrades that the machine trusts has signed it.
    #[error("{0}")]
    Untrusted(String),
    /// The firmware did not say which keys it trusts.
    #[error("nobody can tell whether a key of UpgradeTrustConfig has signed it: {0}")]
    KeysUnknown(String),
}

impl Refused {
    /// Whether it may be allowed as it is, once a registry or the firmware answers, or more is on record.
    pub(super) fn is_unproven(&self) -> bool {
        match self {
            Refused::NoImage | Refused::Unsigned { .. } | Refused::KeysUnknown(_) => true,
            Refused::Denied { .. } | Refused::Untrusted(_) => false,
        }
    }
}

impl WrittenVersion {
    /// The version of an upgrade, by its record.
    pub(super) fn of_upgrade(upgrade: PendingUpgrade) -> Self {
        let image = upgrade.image.parse().ok().zip(upgrade.digests());
        WrittenVersion {
            version: upgrade.to.clone(),
            upgrade: Some(upgrade),
            image,
        }
    }

    /// Asks the rules about its image: by its record, with what the store keeps, and else by its registry, which may be anybody's. Its silence
    /// allows nothing.
    pub(super) async fn ask_rules(
        &self,
        machine: &Machine,
        by: Option<&Configured>,
    ) -> Result<(), Refused> {
        let Some(by) = by.filter(|by| !by.config.image_rules.is_empty()) else {
            return Ok(());
        };
        let (image, digests) = self.image.as_ref().ok_or(Refused::NoImage)?;
        let (puller, digest) = (intent::puller(Some(by)), digests.digest);
        if let Err(denied) = puller.needs_signature(image) {
            return Err(Refused::Denied {
                image: Box::new(image.clone()),
                digest,
                why: chain(&denied),
            });
        }
        let Verdict::SignedBy(rule, key) = puller.policy().verdict(image) else {
            return Ok(());
        };
        let key = key.fingerprint();
        if self.is_recorded(&puller, (image, digest), key)
            || machine.upgrades.is_signed(digest, key)
        {
            return Ok(());
        }
        let why = match timeout(ASK, find_signature(machine, &puller, image, digests)).await {
            Ok(Ok(())) => {
                machine.upgrades.note_signed(digest, key);
                return Ok(());
            }
            Ok(Err(error)) => chain(&error),
            Err(_) => format!("no answer within {} s", ASK.as_secs()),
        };
        Err(Refused::Unsigned {
            image: Box::new(image.clone()),
            digest,
            wanted: format!("{key}, which {rule} of ImageVerificationConfig wants,"),
            why,
        })
    }

    /// Whether its record shows that this key has signed its image: a rule has found that, or the signatures that were kept show it.
    fn is_recorded(
        &self,
        puller: &Puller,
        (image, digest): (&ImageReference, Digest),
        key: Digest,
    ) -> bool {
        let recorded = self.upgrade.as_ref().filter(|upgrade| {
            let known = upgrade.digests();
            known.is_some_and(|known| known.digest == digest)
        });
        recorded.is_some_and(|upgrade| {
            let mut kept = upgrade.evidence.signatures.iter();
            upgrade.evidence.signed_by == Some(key)
                || kept.any(|kept| puller.policy().allows(image, digest, kept).is_ok())
        })
    }
}

/// Has a version checked by the keys of its config and of the firmware; returns how it may start.
pub(super) async fn ask_keys(
    by: Option<&Configured>,
    check: impl FnOnce(&RootfsTrust) -> Result<Starts, Untrusted>,
) -> Result<Starts, Refused> {
    let has_keys = by.is_some_and(|by| !by.config.upgrade_keys.is_empty());
    let why = match timeout(ASK, admit::trust(by)).await {
        Ok(Ok(trust)) => return check(&trust).map_err(|error| Refused::Untrusted(chain(&error))),
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => format!("the firmware gave no answer within {} s", ASK.as_secs()),
    };
    match has_keys {
        true => Err(Refused::KeysUnknown(why)),
        // It judges the version itself if it has to.
        false => Ok(Starts::ThroughFirmware),
    }
}

/// Finds a signature that a rule demands: in the store, and else at the registry.
async fn find_signature(
    machine: &Machine,
    puller: &Puller,
    image: &ImageReference,
    digests: &ImageDigests,
) -> Result<(), PullError> {
    match machine.images.get(digests.digest) {
        Some(here) => {
            let known = ImageDigests::of_pulled(&here, Some(*digests));
            known.admit(puller, image, here, &machine.images).await?;
        }
        None => {
            let resolved = digests.resolve(puller, image).await?;
            puller.verify(resolved).await?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod for_tests;
