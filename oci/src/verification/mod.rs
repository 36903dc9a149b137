//! Verification: whether the owner's policy allows an image.
//!
//! ```text
//! rules ─ policy ─► no rule, skip ───────────────────────────────► Verified<ResolvedImage> ─ pull ─► VerifiedImage
//!            │ deny ─► refused                                                  ▲                        ▲
//!            └ a key ─► signatures of its digests, at its registries ─► proof ──┘      kept with the image ┘ admitted later
//! ```
//!
//! [`Verified`] can only be made here, and only a [`VerifiedImage`] is run or installed. The [`Proof`] that an image was verified by is kept
//! with it in the store: it is verified again, without a registry, at each start and when the policy changes. Other signatures that came with
//! it in a bundle are kept as well (`unjudged`), for a policy that wants one of them.
//!
//! The decision: signatures by a key that the owner names, in the three places and two forms that cosign writes. A transparency log is not
//! asked: a machine may have no way to it, and a log finds keys that were misused afterwards, while a policy decides beforehand.
//! The rest of a name does not count: the signed name of an image (`docker-reference`) is where it was first pushed, and images are copied to
//! mirrors and other registries. What was signed is a digest.

mod admission;
mod bundle;
mod by_form;
mod findings;
mod kept;
pub(crate) mod listing;
mod offline;
pub(crate) mod pages;
pub(crate) mod places;
mod policy;
pub(crate) mod proof;
mod refusal;
mod search;
mod signature;
mod simple_signing;
#[cfg(test)]
pub(crate) mod test_signing;
pub(crate) mod unjudged;
mod verified;

/// For fuzzing: reads a document as everything that may hold a signature, and returns the digests that it is about.
#[cfg(feature = "fuzzing")]
pub(crate) fn digests_in(document: &[u8]) -> Vec<instar_values::Digest> {
    let bundled = bundle::signatures(document).unwrap_or_default();
    let bundled = bundled
        .iter()
        .filter_map(|signature| signature.subjects().ok());
    let payload = simple_signing::subject(document).ok();
    let kept = proof::read(document).unwrap_or_default();
    let kept = kept.iter().map(Proof::key).collect::<Vec<_>>();
    bundled.flatten().chain(payload).chain(kept).collect()
}
pub use kept::KeptSignatures;
pub use offline::is_signed_by;
pub use policy::{Policy, RuleName, Verdict};
pub use proof::Proof;
pub use refusal::{Refusal, VerificationError};
pub use signature::{NotASignature, Signature};
pub use unjudged::Unjudged;
pub use verified::{Basis, Verified, VerifiedImage};
