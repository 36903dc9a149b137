//! The JSON documents of an image (<https://github.com/opencontainers/image-spec>), with the fields that are written or
//! read here.
//!
//! Maps are sorted, so that the same image is always the same bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Media type of an image manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of an index of manifests.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// Media type of an image config.
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// Media type of an uncompressed layer.
pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// Media type of a layer compressed with gzip.
pub const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A reference to a blob: its type, digest and size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// Media type.
    pub media_type: String,
    /// `sha256:` and 64 hex digits.
    pub digest: String,
    /// Size in bytes.
    pub size: u64,
    /// Among them `org.opencontainers.image.ref.name`, the tag.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// In an index: the platform of the manifest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
}

/// The platform that an image runs on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    /// `amd64`.
    pub architecture: String,
    /// `linux`.
    pub os: String,
}

/// An image manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Always 2.
    pub schema_version: u32,
    /// [`MANIFEST`].
    pub media_type: String,
    /// The config blob.
    pub config: Descriptor,
    /// The layers, lowest first.
    pub layers: Vec<Descriptor>,
}

/// An index: the entry point of a layout, or an image for several platforms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// Always 2.
    pub schema_version: u32,
    /// [`INDEX`].
    #[serde(default = "index_type")]
    pub media_type: String,
    /// The manifests.
    pub manifests: Vec<Descriptor>,
}

fn index_type() -> String {
    INDEX.to_owned()
}

/// An image config.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Config<'a> {
    pub(super) architecture: &'a str,
    pub(super) os: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) created: Option<String>,
    pub(super) config: Runtime<'a>,
    pub(super) rootfs: RootFs,
}

/// The container's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Runtime<'a> {
    pub(super) entrypoint: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) cmd: &'a [String],
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    pub(super) env: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) labels: &'a BTreeMap<String, String>,
}

/// The digests of the layers before compression.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct RootFs {
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) diff_ids: Vec<String>,
}
