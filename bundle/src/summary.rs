//! The file `instar-bundle.json`: what a person or a machine wants to know before it reads the rest.

use std::collections::BTreeSet;

use instar_values::Digest;
use serde::{Deserialize, Serialize};

use crate::FORMAT;
use crate::fault::Fault;
use crate::index::Index;

/// The content of `instar-bundle.json`, which follows from index.json and the sizes of the blobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The version of the format.
    pub format: u64,
    /// The digest of index.json, which names the bundle.
    pub digest: Digest,
    /// Number of blobs.
    pub blobs: u64,
    /// Bytes of all blobs.
    pub bytes: u64,
    /// The architectures of the images.
    pub architectures: BTreeSet<String>,
}

impl Summary {
    /// The summary of a bundle with this index, and this number and size of blobs.
    pub(crate) fn new(index: &Index, blobs: u64, bytes: u64) -> Self {
        let images = index.images().iter();
        Summary {
            format: FORMAT,
            digest: index.digest(),
            blobs,
            bytes,
            architectures: images.map(|it| it.platform.architecture.clone()).collect(),
        }
    }

    /// The bytes of the file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // A struct of numbers and texts cannot fail to be written.
        let mut bytes = serde_json::to_vec(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    /// Reads the file. Only the bytes that would be written are read.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        #[derive(Deserialize)]
        struct Version {
            format: u64,
        }
        let json = |source| Fault::Json {
            what: "summary",
            source,
        };
        let version: Version = serde_json::from_slice(bytes).map_err(json)?;
        if version.format != FORMAT {
            return Err(Fault::Format(version.format));
        }
        let summary: Summary = serde_json::from_slice(bytes).map_err(json)?;
        match summary.to_bytes() == bytes {
            true => Ok(summary),
            false => Err(Fault::Content),
        }
    }
}
