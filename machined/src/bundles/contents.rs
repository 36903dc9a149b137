//! What is in a bundle, as far as it is known: its images with their versions, and who allows them.

use serde::Serialize;

use crate::values::Digest;

/// An image of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FoundImage {
    /// Its reference.
    pub reference: String,
    /// The version by its labels, once its config was verified.
    pub version: Option<String>,
    /// Whether the machine may use it.
    pub approval: Approval,
}

/// Whether an image may be used, and who says so.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Approval {
    /// Its signatures are not judged yet.
    NotJudged,
    /// Nobody whom the config trusts has said yes.
    Nobody,
    /// The caller of the API who brought it, who may pull images.
    Caller,
    /// The key of a rule of `ImageVerificationConfig` has signed it.
    Signature {
        /// The rule's pattern.
        rule: String,
        /// The key's fingerprint.
        key: Digest,
    },
    /// `BundleConfig` approves the bundle's digest.
    Config,
    /// A person at the machine has approved the bundle.
    Person,
}

/// Support data that are written onto a stick.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Support {
    /// They are being written.
    Writing,
    /// They are on the stick.
    Written {
        /// The file's path on the stick.
        file: String,
        /// Its size.
        bytes: u64,
    },
    /// They were not written, for this reason.
    Failed(String),
}
