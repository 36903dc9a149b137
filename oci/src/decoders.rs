//! Everything here that decodes bytes from the network, as functions of bytes, for fuzzers.

use crate::manifest::{self, Manifest, ManifestError};
use crate::registry::challenge::{self, Challenge};
use crate::{ImageConfig, Layer};

/// Reads a manifest, and the config of the image that it is of. An index names images and is none.
pub fn image(
    manifest: &[u8],
    config: &[u8],
) -> Result<Option<(ImageConfig, Vec<Layer>)>, ManifestError> {
    match Manifest::parse(manifest, None)? {
        Manifest::Index(entries) => manifest::select(entries).map(|_| None),
        Manifest::Image { layers, .. } => manifest::image(config, &layers).map(Some),
    }
}

/// Reads `WWW-Authenticate` headers, one a line. The answer is the URL of the token that they ask for, if they ask for one.
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
