//! The extensions that `build/kubernetes-extensions` put together, as images in a registry.

use std::path::{Path, PathBuf};

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

/// Pushes the same extension with other files, in a layer of their own, under another tag; returns the image's name in a guest.
pub fn push_extension_with(
    registry: &Registry,
    name: &str,
    tag: &str,
    files: &[(&str, &[u8])],
) -> Result<String> {
    let repository = format!("extensions/{name}");
    let image = image(name)?.files(files)?;
    image.push(registry, &repository, tag)?;
    Ok(registry.image_for_guest(&format!("{repository}:{tag}")))
}

/// Reads the file of an extension: a squashfs.
pub fn extension_file(name: &str) -> Result<Vec<u8>> {
    let folder = folder().join("extensions");
    let is_meant = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str());
        file.is_some_and(|file| file.starts_with(&format!("{name}-")) && file.ends_with(".raw"))
    };
    let files =
        std::fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = files.filter_map(|entry| Some(entry.ok()?.path()));
    let file = files.find(is_meant).with_context(|| {
        format!(
            "no file of {name} is in {}: run `build/kubernetes-extensions`",
            folder.display()
        )
    })?;
    std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
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
