//! The extensions that `build/kubernetes-extensions` put together, as images in a registry.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::programs::folder;
use crate::oci_image::OciImage;
use crate::registry::Registry;

/// Pushes an extension as an image of one layer, which has its tree as root; returns the image's name in a guest.
pub fn push_extension(registry: &Registry, name: &str) -> Result<String> {
    let repository = format!("extensions/{name}");
    image(name)?.push(registry, &repository, "v1")?;
    Ok(registry.image_for_guest(&format!("{repository}:v1")))
}

/// Pushes the same extension with one file more, in a layer of its own, under another tag; returns the image's name in a guest.
pub fn push_extension_edition(registry: &Registry, name: &str, tag: &str) -> Result<String> {
    let repository = format!("extensions/{name}");
    let edition = format!("usr/share/{name}/edition");
    let image = image(name)?.files(&[(&edition, tag.as_bytes())])?;
    image.push(registry, &repository, tag)?;
    Ok(registry.image_for_guest(&format!("{repository}:{tag}")))
}

fn image(name: &str) -> Result<OciImage> {
    let tree = folder().join("extensions").join(name);
    ensure!(
        tree.is_dir(),
        "{} is not there: run `build/kubernetes-extensions`",
        tree.display()
    );
    Ok(OciImage::starting(&[]).archive(archive(&tree)?))
}

/// Packs a tree, with its symbolic links as they are.
fn archive(tree: &Path) -> Result<Vec<u8>> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.follow_symlinks(false);
    // Without owners and times of this machine.
    archive.mode(tar::HeaderMode::Deterministic);
    archive
        .append_dir_all("", tree)
        .with_context(|| format!("cannot pack {}", tree.display()))?;
    Ok(archive.into_inner()?)
}
