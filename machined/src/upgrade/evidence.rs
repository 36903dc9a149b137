//! What is kept of a version's image for rules and keys of later: the image itself may be gone by then, and its registry away.
//!
//! It goes with the version: in the record of its upgrade, and from its commit on in the table of the versions on the disk. Both have its keys
//! among their own.

use serde::{Deserialize, Serialize};

use super::other_form::if_readable;
use super::written::WrittenImage;
use crate::oci::Unjudged;
use crate::values::Digest;

/// What rules and keys judge a version by. Everything may be missing: a version before may have written the record.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Digest of the index that the image's name pointed to, if it pointed to one: people sign that one.
    #[serde(
        default,
        deserialize_with = "if_readable",
        skip_serializing_if = "Option::is_none"
    )]
    pub index: Option<Digest>,
    /// What the image says of itself.
    #[serde(
        default,
        deserialize_with = "if_readable",
        skip_serializing_if = "Option::is_none"
    )]
    pub written: Option<WrittenImage>,
    /// The fingerprint of the key by whose signature a rule allowed the image; none if no rule asked for a signature.
    #[serde(
        default,
        deserialize_with = "if_readable",
        skip_serializing_if = "Option::is_none"
    )]
    pub signed_by: Option<Digest>,
    /// The signatures of the image, whatever the rules wanted.
    #[serde(
        default,
        deserialize_with = "if_readable",
        skip_serializing_if = "Option::is_none"
    )]
    pub signatures: Option<Unjudged>,
}
