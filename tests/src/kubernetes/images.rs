//! Images of a node and of its pods, in a registry.

use anyhow::Result;

use crate::image_under_test::ImageUnderTest;
use crate::oci_image::OciImage;
use crate::registry::Registry;
use crate::workspace::{guest_program, target_directory};

/// The repository of the image in which a node runs Kubernetes.
pub const KUBERNETES_BASE: &str = "instar/kubernetes";
/// The repository of the image with which jobs upgrade their node.
const UPGRADE: &str = "instar/upgrade";
/// The repository of the image of the operator.
const OPERATOR: &str = "instar/operator";
/// The image that containerd gives each pod, as it names it by itself.
pub const PAUSE: &str = "pause:3.10.2";

/// Pushes the base of a version, with the version as its tag; returns its name in a guest.
pub fn push_base(registry: &Registry, image: &ImageUnderTest) -> Result<String> {
    let version = image.version();
    let layout = target_directory().join(format!("image/kubernetes-{version}"));
    registry.push_layout(&layout, KUBERNETES_BASE, version)?;
    Ok(registry.image_for_guest(&format!("{KUBERNETES_BASE}:{version}")))
}

/// Pushes the image with which jobs upgrade their node, with these tags; returns its name in a guest, without a tag.
pub fn push_upgrade_image(registry: &Registry, tags: &[&str]) -> Result<String> {
    push_with_tags(registry, "image/upgrade", UPGRADE, tags)
}

/// Pushes the image of the operator, as `make operator-image` writes it, with these tags; returns its name in a guest, without a tag.
pub fn push_operator_image(registry: &Registry, tags: &[&str]) -> Result<String> {
    push_with_tags(registry, "image/operator", OPERATOR, tags)
}

/// Pushes the image of PostgreSQL, as `make postgresql-image` writes it; returns its name in a guest.
pub fn push_postgresql(registry: &Registry) -> Result<String> {
    let image = push_with_tags(registry, "kubernetes/postgresql", "postgresql", &["17"])?;
    Ok(format!("{image}:17"))
}

/// Pushes an image of the target folder with these tags; returns its name in a guest, without a tag.
fn push_with_tags(
    registry: &Registry,
    layout: &str,
    repository: &str,
    tags: &[&str],
) -> Result<String> {
    let layout = target_directory().join(layout);
    for tag in tags {
        registry.push_layout(&layout, repository, tag)?;
    }
    Ok(registry.image_for_guest(repository))
}

/// Pushes the image of a process that only waits.
pub fn push_pause(registry: &Registry) -> Result<()> {
    let program = guest_program("greeter")?;
    let image = OciImage::starting(&["/greeter", "pause"]).files(&[("greeter", &program)])?;
    let (repository, tag) = PAUSE.split_once(':').unwrap_or((PAUSE, "latest"));
    image.push(registry, repository, tag).map(drop)
}
