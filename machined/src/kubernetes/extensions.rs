//! The extensions of a node: each is an image whose files are the extension, unpacked in the machine's store.

use std::path::Path;

use instar_extension::{Architecture, Extension, Host};
use instar_kubernetes_plan::PlannedExtension;
use serde::Serialize;

use crate::config::Kubernetes;
use crate::oci::VerifiedImage;
use crate::store::Resource;

/// An extension, as `get extensions` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionFact {
    /// Its image.
    pub image: String,
    /// The digest of the image, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// How far it is.
    pub state: ExtensionState,
}

/// How far an extension is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ExtensionState {
    /// Its image is not here yet: `get pins` says how far it is.
    Fetching,
    /// It cannot be used.
    Refused(String),
    /// Its services are in the plan.
    Planned,
}

impl Resource for ExtensionFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "Extensions.instar.dev";
}

/// Checks an extension, as kubernetes-init will check it, and says where the container sees it.
///
/// # Errors
/// It does not fit this machine, or a unit asks for something that is not served, which the message names.
pub fn checked(
    name: &str,
    image: &VerifiedImage,
    version: &str,
    node: &str,
) -> anyhow::Result<PlannedExtension> {
    let host = Host::instar(version, Architecture::OWN);
    let tree = image.rootfs();
    Extension::read(&tree, &name.parse()?, host, node)?;
    let seen = Path::new("/instar/images").join(tree.strip_prefix(Kubernetes::IMAGES)?);
    Ok(PlannedExtension {
        name: name.to_owned(),
        tree: seen.to_string_lossy().into_owned(),
    })
}
