//! The places at a registry where signatures of an image are, and their types. X is the digest of an image or an index.

use instar_values::Digest;

use super::{bundle, simple_signing};
use crate::registry::RequestError;
use crate::registry::challenge::escaped;

/// The `Accept` header of requests for manifests and indexes of signatures. Registries keep both kinds under the same names.
pub(crate) const ACCEPT: &str =
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json";

/// The query for those in a list of referrers that are bundles as cosign writes them. A registry may ignore it, and does not know of bundles of
/// other versions.
pub(super) fn of_bundles_alone() -> String {
    format!("artifactType={}", escaped(bundle::WRITTEN_TYPE))
}

/// Where bundles are: the registry's list of referrers, and the tag `sha256-X`, which holds the same where a registry has no such list.
pub(crate) fn of_bundles(subject: Digest) -> [String; 2] {
    [
        format!("referrers/{subject}"),
        format!("manifests/{}", tag_of_bundles(subject)),
    ]
}

/// The tag of the list of bundles, where a registry has no list of referrers.
pub(crate) fn tag_of_bundles(subject: Digest) -> String {
    format!("sha256-{}", subject.hex())
}

/// The tag of cosign's older form.
pub(crate) fn tag_of_payloads(subject: Digest) -> String {
    format!("sha256-{}.sig", subject.hex())
}

/// Whether a manifest with this type of artifact may hold a bundle. Registries that do not know the type of an artifact leave it out.
pub(crate) fn may_hold_bundle(artifact: Option<&str>) -> bool {
    match artifact {
        None | Some("" | "application/vnd.oci.empty.v1+json") => true,
        Some(artifact) => is_bundle(artifact),
    }
}

/// Whether a layer of this type is a bundle.
pub(crate) fn is_bundle(media_type: &str) -> bool {
    media_type.starts_with(bundle::MEDIA_TYPE)
}

/// Whether a layer of this type is a signature in one of the two forms.
pub(crate) fn is_signature(media_type: &str) -> bool {
    is_bundle(media_type) || media_type == simple_signing::LAYER_TYPE
}

/// Whether an answer only says that there is nothing. Registries without a list of referrers answer in several ways.
pub(crate) fn is_absence(error: &RequestError) -> bool {
    match error {
        RequestError::NotFound { .. } => true,
        RequestError::Status { status, .. } => matches!(status.as_u16(), 400 | 405 | 406 | 501),
        _ => false,
    }
}
