//! The record of an image, image.json.
//!
//! ```text
//! {"check":"<64 hex digits>","digest":"sha256:…",…}
//! ```
//!
//! `check` is the blake3 hash of all bytes behind it, so that a flipped byte is found. Versions before it ignore the key, and leave it out when
//! they write the record; a record without it counts as it is.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::manifest::ImageConfig;
use crate::store_error::{StoreError, failed};
use instar_base::whole_file;
use instar_values::{Digest, ImageReference};

const NAME: &str = "image.json";
const CHECK: &[u8] = b"{\"check\":\"";
const WITHOUT_CHECK: &[u8] = b"{\"digest\":";
const HEX: usize = 64;

/// The record of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Record {
    pub(super) digest: Digest,
    /// The digest of the document that its name pointed to, if that was an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<Digest>,
    pub(super) names: BTreeSet<ImageReference>,
    pub(super) config: ImageConfig,
    pub(super) download_bytes: u64,
    pub(super) unpacked_bytes: u64,
    /// The time of the pull, in seconds since 1970.
    pub(super) pulled_at: u64,
    /// The last time that a caller of the API asked for it, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) asked_for_at: Option<u64>,
    /// The blobs that it was made from and that the store keeps for it; none if it keeps none, or if an older version wrote the record. Then
    /// its manifest says it.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(super) blobs: BTreeSet<Digest>,
    /// Whether its files have a seal; false if an older version wrote the record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) sealed: bool,
}

/// The time for a record, in seconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// Reads the record of the image in this directory; `None` if it is missing or damaged.
pub(super) fn read(directory: &Path) -> Option<Record> {
    parse(&fs::read(directory.join(NAME)).ok()?)
}

fn parse(bytes: &[u8]) -> Option<Record> {
    match bytes.strip_prefix(CHECK) {
        Some(checked) => {
            let (check, rest) = checked.split_at_checked(HEX)?;
            let actual = blake3::hash(rest).to_hex();
            if check != actual.as_bytes() {
                return None;
            }
        }
        // Anything but the beginning of an older version's record is a damaged `check`.
        None if !bytes.starts_with(WITHOUT_CHECK) => return None,
        None => {}
    }
    serde_json::from_slice(bytes).ok()
}

/// Writes the record of the image in this directory.
pub(super) fn write(directory: &Path, record: &Record) -> Result<(), StoreError> {
    let path = directory.join(NAME);
    let bytes = format(record).map_err(|error| failed("writing", &path)(error.into()))?;
    whole_file::replace(&path, 0o644, &bytes).map_err(failed("writing", &path))
}

fn format(record: &Record) -> serde_json::Result<Vec<u8>> {
    let json = serde_json::to_vec(record)?;
    // The fields follow the key `check`, in the place of their opening brace.
    let rest = [b"\",", json.get(1..).unwrap_or_default()].concat();
    let check = blake3::hash(&rest).to_hex();
    Ok([CHECK, check.as_bytes(), &rest].concat())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn record() -> Record {
        Record {
            digest: Digest::of(b"image"),
            index: None,
            names: BTreeSet::from(["r.io/app:v1".parse().unwrap()]),
            config: ImageConfig {
                entrypoint: vec!["/app".into()],
                ..ImageConfig::default()
            },
            download_bytes: 5,
            unpacked_bytes: 10,
            pulled_at: 7,
            asked_for_at: None,
            blobs: BTreeSet::from([Digest::of(b"layer")]),
            sealed: true,
        }
    }

    #[test]
    fn no_flipped_byte_makes_another_record() {
        let bytes = format(&record()).unwrap();
        assert_eq!(parse(&bytes), Some(record()));
        for position in 0..bytes.len() {
            for bit in [1, 0x20] {
                let mut flipped = bytes.clone();
                flipped[position] ^= bit;
                let read = parse(&flipped);
                assert_eq!(read, None, "{position}");
            }
        }
    }

    #[test]
    fn versions_before_the_check_read_it_and_are_read() {
        let bytes = format(&record()).unwrap();
        // Their reading: any JSON with these fields.
        let read: Record = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(read, record());
        let written = serde_json::to_vec(&record()).unwrap();
        assert_eq!(parse(&written), Some(record()));
        // They know neither blobs nor seals.
        let older = Record {
            blobs: BTreeSet::new(),
            sealed: false,
            ..record()
        };
        let written = String::from_utf8(serde_json::to_vec(&older).unwrap()).unwrap();
        assert!(!written.contains("blobs") && !written.contains("sealed"));
        assert_eq!(parse(written.as_bytes()), Some(older));
    }
}
