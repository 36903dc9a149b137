//! The extensions of a node: each is an image whose files are the extension, unpacked in the machine's store.

use std::path::Path;

use instar_extension::{Architecture, Extension, ExtensionName, Host, Unusable};
use instar_kubernetes_plan::PlannedExtension;

use crate::config::Kubernetes;
use crate::oci::VerifiedImage;

/// Checks an extension, as kubernetes-init will check it, and says where the container sees it. One that is proven stays usable although it hides
/// programs of the base: its node was ready with it.
///
/// # Errors
/// It does not fit this machine, or a unit asks for something that is not served, which the message names.
pub fn checked(
    name: &str,
    image: &VerifiedImage,
    version: &str,
    node: &str,
    is_proven: bool,
) -> anyhow::Result<PlannedExtension> {
    let host = Host::instar(version, Architecture::OWN);
    let tree = image.rootfs();
    let own_name: ExtensionName = name.parse()?;
    match Extension::read(&tree, &own_name, host, node) {
        Err(hides @ Unusable::Hides { .. }) if is_proven => {
            Extension::read_taken(&tree, &own_name, host, node)?;
            tracing::warn!("Kubernetes: the node was ready with it, so it runs on: {hides}");
        }
        read => drop(read?),
    }
    let seen = Path::new("/instar/images").join(tree.strip_prefix(Kubernetes::IMAGES)?);
    Ok(PlannedExtension {
        name: name.to_owned(),
        tree: seen.to_string_lossy().into_owned(),
    })
}
