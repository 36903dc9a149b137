//! Manifests and indexes of signatures, as registries and their clients write them. Both kinds are kept under the same names.
//!
//! A list may name documents of others beside signatures, by a digest algorithm that is not known here: they are left out, and hide no
//! signature. A manifest is taken as a whole: with a layer by such a digest it is none. Some servers write `null` for an empty list.

use std::collections::BTreeMap;

use instar_values::Digest;
use serde::{Deserialize, Deserializer};

use super::places;

/// A manifest with signatures as layers, or an index of such manifests.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Listing {
    #[serde(default, deserialize_with = "known")]
    pub(crate) manifests: Vec<Entry>,
    #[serde(default, deserialize_with = "known_one")]
    pub(crate) config: Option<Entry>,
    #[serde(default, deserialize_with = "all")]
    pub(crate) layers: Vec<Entry>,
}

/// The description of a document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry<D = Digest> {
    #[serde(default)]
    pub(crate) media_type: String,
    #[serde(default)]
    pub(crate) artifact_type: Option<String>,
    pub(crate) digest: D,
    pub(crate) size: u64,
    #[serde(default)]
    pub(crate) annotations: Option<BTreeMap<String, String>>,
}

impl Entry {
    /// Whether the manifest may hold bundles, by its type.
    pub(crate) fn may_hold_bundle(&self) -> bool {
        places::may_hold_bundle(self.artifact_type.as_deref())
    }

    /// Whether the blob is a bundle, by its type.
    pub(crate) fn is_bundle(&self) -> bool {
        places::is_bundle(&self.media_type)
    }
}

impl Entry<String> {
    /// The same, if its digest is known here.
    fn known(self) -> Option<Entry> {
        Some(Entry {
            digest: self.digest.parse().ok()?,
            media_type: self.media_type,
            artifact_type: self.artifact_type,
            size: self.size,
            annotations: self.annotations,
        })
    }
}

/// Reads the entries whose digests are known here.
fn known<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<Entry>, D::Error> {
    let entries: Option<Vec<Entry<String>>> = Option::deserialize(list)?;
    let entries = entries.unwrap_or_default().into_iter();
    Ok(entries.filter_map(Entry::known).collect())
}

/// Reads an entry, if its digest is known here.
fn known_one<'de, D: Deserializer<'de>>(entry: D) -> Result<Option<Entry>, D::Error> {
    let entry: Option<Entry<String>> = Option::deserialize(entry)?;
    Ok(entry.and_then(Entry::known))
}

/// Reads all entries.
fn all<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<Entry>, D::Error> {
    let entries: Option<Vec<Entry>> = Option::deserialize(list)?;
    Ok(entries.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn read(listing: &serde_json::Value) -> Result<Listing, serde_json::Error> {
        serde_json::from_value(listing.clone())
    }

    #[test]
    fn a_document_by_another_digest_hides_no_signature() {
        let signature = Digest::of(b"signature");
        let entry = |digest: &str| json!({"mediaType": "m", "digest": digest, "size": 7});
        let sha512 = format!("sha512:{}", "0".repeat(128));
        let both = [entry(&sha512), entry(&signature.to_string())];
        let listing = read(&json!({"schemaVersion": 2, "manifests": both})).unwrap();
        let found: Vec<_> = listing.manifests.iter().map(|it| it.digest).collect();
        assert_eq!(found, [signature]);
        // A manifest that names what cannot be checked would be kept in part.
        read(&json!({"schemaVersion": 2, "layers": both})).unwrap_err();
    }

    #[test]
    fn null_is_an_empty_list() {
        let listing = json!({"schemaVersion": 2, "manifests": null, "layers": null});
        let listing = read(&listing).unwrap();
        assert!(listing.manifests.is_empty() && listing.layers.is_empty());
        assert!(read(&json!({})).unwrap().manifests.is_empty());
        read(&json!({"manifests": "x"})).unwrap_err();
    }
}
