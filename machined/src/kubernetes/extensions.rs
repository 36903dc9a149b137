//! The extensions of a node: each is an image whose files are the extension, unpacked in the machine's store.

use std::path::Path;

use instar_extension::{Architecture, Extension, Host};
use instar_kubernetes_plan::PlannedExtension;

use crate::config::Kubernetes;
use crate::oci::VerifiedImage;

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
