//! The documents inside of a bundle, read as far as the bundle's own shape follows from them. What an image's manifest means is decided
//! where the image is used.

use instar_values::Digest;
use serde::Deserialize;

use crate::fault::Fault;
use crate::limits::MOST_LAYERS;

/// A blob that a manifest names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) struct Named {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
}

/// The blobs that a manifest names.
#[derive(Debug, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) config: Named,
    pub(crate) layers: Vec<Named>,
}

#[derive(Debug, Deserialize)]
struct IndexOfPlatforms {
    manifests: Vec<Named>,
}

/// The description of an image in its config.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Description {
    /// The processor, for example `amd64`.
    pub architecture: String,
    /// The operating system, for example `linux`.
    pub os: String,
    /// The build time (RFC 3339), if it is given.
    #[serde(default)]
    pub created: Option<String>,
}

fn json<'a, T: Deserialize<'a>>(what: &'static str, bytes: &'a [u8]) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|source| Fault::Json { what, source })
}

/// Reads a manifest of an image or of signatures.
pub(crate) fn manifest(bytes: &[u8]) -> Result<Manifest, Fault> {
    let manifest: Manifest = json("manifest", bytes)?;
    match manifest.layers.len() {
        count if count > MOST_LAYERS => Err(Fault::TooMany {
            what: "layers",
            count,
            limit: MOST_LAYERS,
        }),
        _ => Ok(manifest),
    }
}

/// The digests of the manifests that an index names.
pub(crate) fn manifests_of_index(bytes: &[u8]) -> Result<Vec<Digest>, Fault> {
    let index: IndexOfPlatforms = json("index", bytes)?;
    Ok(index.manifests.iter().map(|entry| entry.digest).collect())
}

/// Reads an image's config.
pub(crate) fn description(bytes: &[u8]) -> Result<Description, Fault> {
    json("config", bytes)
}
