//! Files of extensions that travel in a bundle, so that a machine whose config names one by its digest needs no server for it.
//!
//! Each is an artifact as of the OCI image specification: a manifest with an empty config, and the file as its one layer. The manifest follows
//! from the file's name, digest and size, which index.json has. Nothing here says that a file is good: whoever uses one knows its digest, or
//! the key of the list that names it.

use std::collections::BTreeMap;

use instar_values::Digest;
use serde::{Deserialize, Serialize};

use crate::limits::{LARGEST_FILE, quote};
use crate::root::Document;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const ARTIFACT: &str = "application/vnd.instar.extension.file.v1";
const FILE: &str = "application/vnd.instar.extension.file.content.v1";
const EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// The annotation by which other tools name the file when they unpack an artifact.
const TITLE: &str = "org.opencontainers.image.title";

/// The config of all artifacts.
pub const EMPTY_CONFIG: &[u8] = b"{}";
/// Longest name, in bytes: it becomes a part of the name of an image.
const LONGEST: usize = 128;

/// A file of an extension in a bundle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct BundledFile {
    name: String,
    digest: Digest,
    size: u64,
    manifest: Document,
}

/// Why a bundle cannot hold a file.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAFile {
    /// The name has other characters, or too many.
    #[error(
        "{0:?} is no name of a file in a bundle: it has 1 to {LONGEST} letters, digits, '-', '_', '.' and '+', and begins with a letter \
         or a digit"
    )]
    Name(String),
    /// The file is larger than machines take.
    #[error("the file {name} has {size} bytes; machines take at most {LARGEST_FILE}")]
    TooLarge {
        /// Its name.
        name: String,
        /// Its size in bytes.
        size: u64,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a> {
    schema_version: u32,
    media_type: &'static str,
    artifact_type: &'static str,
    config: Descriptor<'a>,
    layers: [Descriptor<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor<'a> {
    media_type: &'static str,
    digest: Digest,
    size: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, &'a str>,
}

/// The part of a manifest that tells its file: name, digest and size.
#[derive(Deserialize)]
struct Named {
    layers: [NamedContent; 1],
}

#[derive(Deserialize)]
struct NamedContent {
    digest: Digest,
    size: u64,
    annotations: BTreeMap<String, String>,
}

impl BundledFile {
    /// The file with this name, and the digest and size of its content.
    ///
    /// # Errors
    /// No bundle holds a file of this name or size.
    pub fn new(name: &str, digest: Digest, size: u64) -> Result<Self, NotAFile> {
        let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
        let begins_right = name.starts_with(|first: char| first.is_ascii_alphanumeric());
        if !begins_right || name.len() > LONGEST || !name.bytes().all(is_right) {
            return Err(NotAFile::Name(quote(name.as_bytes())));
        }
        if size > LARGEST_FILE {
            let name = name.to_owned();
            return Err(NotAFile::TooLarge { name, size });
        }
        let bytes = manifest(name, digest, size);
        Ok(BundledFile {
            name: name.to_owned(),
            digest,
            size,
            manifest: Document {
                digest: Digest::of(&bytes),
                size: bytes.len() as u64,
                media_type: MANIFEST.to_owned(),
            },
        })
    }

    /// The file whose manifest this is; `None` for any other document.
    pub fn of_manifest(bytes: &[u8]) -> Option<Self> {
        let Named { layers: [content] } = serde_json::from_slice(bytes).ok()?;
        let name = content.annotations.get(TITLE)?;
        let file = Self::new(name, content.digest, content.size).ok()?;
        (file.manifest_bytes() == bytes).then_some(file)
    }

    /// Its name, without a directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The digest of its content.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The size of its content, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Document {
        &self.manifest
    }

    /// The bytes of its manifest.
    pub fn manifest_bytes(&self) -> Vec<u8> {
        manifest(&self.name, self.digest, self.size)
    }

    /// Its blobs with their sizes: the manifest, the config, and the content.
    pub fn blobs(&self) -> [(Digest, u64); 3] {
        [
            (self.manifest.digest, self.manifest.size),
            (Digest::of(EMPTY_CONFIG), EMPTY_CONFIG.len() as u64),
            (self.digest, self.size),
        ]
    }
}

fn manifest(name: &str, digest: Digest, size: u64) -> Vec<u8> {
    let manifest = Manifest {
        schema_version: 2,
        media_type: MANIFEST,
        artifact_type: ARTIFACT,
        config: Descriptor {
            media_type: EMPTY,
            digest: Digest::of(EMPTY_CONFIG),
            size: EMPTY_CONFIG.len() as u64,
            annotations: BTreeMap::new(),
        },
        layers: [Descriptor {
            media_type: FILE,
            digest,
            size,
            annotations: BTreeMap::from([(TITLE, name)]),
        }],
    };
    // Maps with texts as keys cannot fail to be written.
    serde_json::to_vec(&manifest).unwrap_or_default()
}
