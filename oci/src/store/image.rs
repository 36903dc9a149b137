//! An image of the store as a value: what its record says, and the hold that keeps it from being collected.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use instar_values::{Digest, ImageReference};

use super::record::Record;
use super::{Shared, kept_proofs};
use crate::manifest::ImageConfig;
use crate::verification::proof::{Proof, Proofs};
use crate::verification::unjudged::Unjudged;

/// An image in the store. It is not collected while this value exists.
#[derive(Debug, Clone)]
pub struct PulledImage {
    pub(super) record: Record,
    pub(super) directory: PathBuf,
    pub(super) _hold: Arc<Hold>,
}

impl PartialEq for PulledImage {
    fn eq(&self, other: &Self) -> bool {
        (&self.record, &self.directory) == (&other.record, &other.directory)
    }
}

impl Eq for PulledImage {}

/// Keeps an image from being collected while it exists.
pub(super) struct Hold {
    shared: Arc<Shared>,
    digest: Digest,
}

impl Hold {
    pub(super) fn new(shared: &Arc<Shared>, digest: Digest) -> Self {
        *shared.state().held.entry(digest).or_default() += 1;
        Hold {
            shared: shared.clone(),
            digest,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(count) = state.held.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                state.held.remove(&self.digest);
            }
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hold({})", self.digest)
    }
}

impl PulledImage {
    /// The blobs that its record says it was made from.
    pub(crate) fn noted_blobs(&self) -> &BTreeSet<Digest> {
        &self.record.blobs
    }

    /// The digest of its manifest.
    pub fn digest(&self) -> Digest {
        self.record.digest
    }

    /// The digest of the document that its name pointed to when it was pulled: an index, or its manifest.
    pub fn named_digest(&self) -> Digest {
        self.record.index.unwrap_or(self.record.digest)
    }

    /// The names that it was pulled by.
    pub fn names(&self) -> &BTreeSet<ImageReference> {
        &self.record.names
    }

    /// Whether a reference means this image: it was pulled by that name, or the reference has its digest or that of its index.
    pub fn is_named(&self, reference: &ImageReference) -> bool {
        self.names().contains(reference)
            || reference
                .digest()
                .is_some_and(|digest| [self.digest(), self.named_digest()].contains(&digest))
    }

    /// The settings for running it, and its labels.
    pub fn config(&self) -> &ImageConfig {
        &self.record.config
    }

    /// Size of the download, in bytes.
    pub fn download_bytes(&self) -> u64 {
        self.record.download_bytes
    }

    /// Size of its unpacked layers, in bytes.
    pub fn unpacked_bytes(&self) -> u64 {
        self.record.unpacked_bytes
    }

    /// The time of the pull.
    pub fn pulled_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(self.record.pulled_at)
    }

    /// The last time that a caller of the API asked for it, if ever.
    pub fn asked_for_at(&self) -> Option<SystemTime> {
        let at = self.record.asked_for_at?;
        Some(UNIX_EPOCH + Duration::from_secs(at))
    }

    /// The signatures that it was verified by, as they are kept. A record that cannot be read is none.
    pub(crate) fn proofs(&self) -> Proofs {
        kept_proofs::read(&self.directory)
    }

    /// The signatures that came with it and that no rule has asked for. A record that cannot be read is none.
    pub(crate) fn unjudged(&self) -> Unjudged {
        kept_proofs::read_unjudged(&self.directory)
    }

    /// All signatures that are kept with it, those that it was verified by first. Waits for the disk.
    pub fn signatures(&self) -> Unjudged {
        let mut all = Unjudged::default();
        for proof in self.proofs().iter() {
            all.add(&Unjudged::of_proof(proof));
        }
        all.add(&self.unjudged());
        all
    }

    /// The fingerprints of the keys that it was verified by, newest first. Only [`Policy::admit`](crate::Policy::admit) says
    /// whether a signature holds.
    pub fn signed_by(&self) -> Vec<Digest> {
        self.proofs().iter().map(Proof::key).collect()
    }

    /// The directory of its merged layers. Not to be written to.
    pub fn rootfs(&self) -> PathBuf {
        self.directory.join("rootfs")
    }
}
