//! Manifests: objects that the config gives to a cluster.

use std::fmt;

use serde_json::Value;

/// The objects of one manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// Its name in the config.
    pub name: String,
    /// Its objects, in the order of the text.
    pub objects: Vec<ManifestObject>,
}

/// An object of Kubernetes.
#[derive(Clone, PartialEq)]
pub struct ManifestObject {
    /// The version of its kind: `v1`, `apps/v1`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace, if the manifest names one.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// The whole object, with the fields above.
    pub content: Value,
}

/// Without the content, which may be a Secret's.
impl fmt::Debug for ManifestObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManifestObject")
            .field("api_version", &self.api_version)
            .field("kind", &self.kind)
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
