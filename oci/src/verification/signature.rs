//! A signature over a statement about an image, in one of the two forms that cosign writes.

use serde::{Deserialize, Serialize};

/// The form of the signed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Form {
    /// The payload itself is signed: cosign's older form.
    SimpleSigning,
    /// The payload is an in-toto statement in a DSSE envelope of a bundle.
    Statement,
}

/// A signature, its signed payload, and nothing that is not signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Signature {
    pub(super) form: Form,
    #[serde(with = "base64_text")]
    pub(super) payload: Vec<u8>,
    #[serde(with = "base64_text")]
    pub(super) signature: Vec<u8>,
}

/// Why a document is no signature of an image.
#[derive(Debug, thiserror::Error)]
pub enum NotASignature {
    /// The document is not JSON, or lacks fields.
    #[error("the {what} cannot be read")]
    Json {
        /// The document: `bundle`, `statement` or `payload`.
        what: &'static str,
        /// The error with its position.
        source: serde_json::Error,
    },
    /// The document is of another type.
    #[error("the {what} is of the type {found:?}, not {wanted:?}")]
    Type {
        /// The document.
        what: &'static str,
        /// Its type.
        found: String,
        /// The type of a signature.
        wanted: &'static str,
    },
    /// The bundle signs a file instead of a statement about an image.
    #[error("the bundle holds no DSSE envelope: it signs a file, not an image")]
    NoEnvelope,
    /// The layer has no signature beside its payload.
    #[error("the payload has no signature beside it")]
    Bare,
    /// The document is larger than the limit.
    #[error("it has {size} bytes; at most {limit} are taken")]
    TooLarge {
        /// Size in bytes.
        size: u64,
        /// The limit, in bytes.
        limit: u64,
    },
}

#[cfg(test)]
impl Signature {
    /// The signed bytes, without the type that is signed with them.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload
    }
}

/// Shortens a text of a registry for an error.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Bytes as base64 in JSON.
pub(super) mod base64_text {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&BASE64_STANDARD.encode(bytes))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        BASE64_STANDARD
            .decode(text.as_bytes())
            .map_err(D::Error::custom)
    }
}
