//! The installer as an OCI image: what an upgrade pulls (docs/contracts.md).

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

use crate::{
    digest::Blake3,
    oci::layout::{Compression, Image, Layer},
    tree::Tree,
    version::Version,
};

/// The version of the protocol with init that the root filesystem speaks.
const PROTOCOL: &str = "1";

/// The parts of an installer image.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    /// The version that it installs.
    pub version: &'a Version,
    /// The program `installer`.
    pub installer: &'a [u8],
    /// The root filesystem.
    pub rootfs: &'a [u8],
    /// The kernel.
    pub kernel: &'a [u8],
    /// The program `init`, which is in `base`.
    pub init: &'a [u8],
    /// The archive with init.
    pub base: &'a [u8],
}

#[derive(Serialize)]
struct Release<'a> {
    version: &'a Version,
    rootfs: File,
}

#[derive(Serialize)]
struct File {
    blake3: Blake3,
    bytes: usize,
}

/// The image, not yet written: a test can still change it.
///
/// # Errors
/// None that depend on the parts.
pub fn compose(parts: &Parts<'_>) -> Result<Image> {
    let rootfs = File {
        blake3: Blake3::of(parts.rootfs),
        bytes: parts.rootfs.len(),
    };
    let labels = BTreeMap::from([
        ("dev.instar.version", parts.version.to_string()),
        ("dev.instar.architecture", "amd64".to_owned()),
        (
            "dev.instar.kernel.blake3",
            Blake3::of(parts.kernel).to_string(),
        ),
        ("dev.instar.init.blake3", Blake3::of(parts.init).to_string()),
        ("dev.instar.rootfs.blake3", rootfs.blake3.to_string()),
        ("dev.instar.rootfs.bytes", rootfs.bytes.to_string()),
        ("dev.instar.protocol", PROTOCOL.to_owned()),
    ]);

    let mut soft = Tree::new();
    soft.file("usr/bin/installer", 0o755, parts.installer)?;
    soft.file("usr/install/amd64/rootfs.squashfs", 0o644, parts.rootfs)?;
    let release = serde_json::to_vec(&Release {
        version: parts.version,
        rootfs,
    })?;
    soft.file("usr/install/amd64/release.json", 0o644, release)?;
    let mut boot = Tree::new();
    boot.file("usr/install/amd64/vmlinuz", 0o644, parts.kernel)?;
    boot.file("usr/install/amd64/base.cpio", 0o644, parts.base)?;

    Ok(Image {
        // Everything large is compressed inside; uncompressed layers are unpacked fastest.
        layers: [soft, boot]
            .map(|tree| Layer {
                tree,
                compression: Compression::None,
            })
            .into(),
        entrypoint: vec!["/usr/bin/installer".into()],
        labels: labels
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        tag: Some(parts.version.to_string()),
        ..Image::default()
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn labels_say_what_is_inside() {
        let version = "v0.2.0".parse().unwrap();
        let parts = Parts {
            version: &version,
            installer: b"i",
            rootfs: b"root",
            kernel: b"k",
            init: b"init",
            base: b"b",
        };
        let image = compose(&parts).unwrap();
        assert_eq!(image.labels["dev.instar.version"], "v0.2.0");
        assert_eq!(image.labels["dev.instar.rootfs.bytes"], "4");
        assert_eq!(
            image.labels["dev.instar.rootfs.blake3"],
            Blake3::of(b"root").to_string()
        );
        assert_eq!(
            image.labels["dev.instar.init.blake3"],
            Blake3::of(b"init").to_string()
        );
        assert_eq!(image.labels.len(), 7);
        assert!(
            image.layers[0]
                .tree
                .get("usr/install/amd64/rootfs.squashfs")
                .is_some()
        );
        assert!(
            image.layers[1]
                .tree
                .get("usr/install/amd64/vmlinuz")
                .is_some()
        );
    }
}
