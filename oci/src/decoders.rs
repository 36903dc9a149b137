//! For fuzzing: everything in this crate that decodes bytes from the network, as functions of bytes.

use crate::manifest::{self, Manifest, ManifestError};
use crate::registry::challenge::{self, Challenge};
use crate::{ImageConfig, Layer, verification};
use instar_values::Digest;

/// Reads the manifest and the config of one image. An index is refused: it only names images.
pub fn image(
    manifest: &[u8],
    config: &[u8],
) -> Result<Option<(ImageConfig, Vec<Layer>)>, ManifestError> {
    match Manifest::parse(manifest, None)? {
        Manifest::Index(entries) => manifest::select(entries).map(|_| None),
        Manifest::Image { layers, .. } => manifest::image(config, &layers).map(Some),
    }
}

/// Reads a bundle of signatures, a signed payload, or the proofs that the store keeps. Returns the digests in it.
pub fn signature(document: &[u8]) -> Vec<Digest> {
    verification::digests_in(document)
}

/// Reads `WWW-Authenticate` headers, one per line. Returns the URL of the token that they ask for, if they do.
pub fn answer_challenge(headers: &str) -> Option<String> {
    match Challenge::find(headers.lines())? {
        Challenge::Basic => None,
        Challenge::Bearer {
            realm,
            service,
            scope,
        } => {
            let scope = scope.unwrap_or_default();
            Some(challenge::token_request(&realm, service.as_deref(), &scope, None).0)
        }
    }
}
