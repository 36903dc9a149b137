//! The documents at the roots of a bundle: those that index.json names.

use instar_values::Digest;

/// A document at the root of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Document {
    /// Its digest.
    pub digest: Digest,
    /// Its size in bytes.
    pub size: u64,
    /// Its media type.
    pub media_type: String,
}
