//! What the installer image of a build says of itself, for the media: a machine that comes from one judges the version by it later, as it judges one
//! that an installer has brought (`upgrade/written.rs` of machined).

use std::path::Path;

use anyhow::{Context, Result};
use instar_esp::FileDigest;
use serde_json::{Value, json};

use super::read;

/// The image's folder in a build.
const INSTALLER: &str = "installer";

/// Returns the description: the digest of the UKI, and the parts of the image's config that its signature covers.
///
/// # Errors
/// The build has no installer image, or one that cannot be read.
pub(super) fn of_build(folder: &Path, uki: &FileDigest) -> Result<Vec<u8>> {
    let installer = folder.join(INSTALLER);
    let index = json_of(&installer, "index.json")?;
    let manifest = blob(&installer, &index["manifests"][0])?;
    let config = blob(&installer, &manifest["config"])?;
    let (runtime, layers) = (&config["config"], &config["rootfs"]["diff_ids"]);
    let description = json!({
        "uki": uki.blake3.to_string(),
        "image": {
            "entrypoint": runtime["Entrypoint"],
            "labels": runtime["Labels"],
            "layers": layers,
        },
    });
    serde_json::to_vec(&description).context("cannot describe the installer image")
}

fn blob(layout: &Path, descriptor: &Value) -> Result<Value> {
    let digest = descriptor["digest"].as_str();
    let hex = digest.and_then(|digest| digest.strip_prefix("sha256:"));
    let hex = hex.with_context(|| format!("{} names no image", layout.display()))?;
    json_of(layout, &format!("blobs/sha256/{hex}"))
}

fn json_of(folder: &Path, name: &str) -> Result<Value> {
    let bytes = read(folder, name)?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("cannot read {}", folder.join(name).display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::oci::layout::{self, Image};

    #[test]
    fn it_has_what_a_signature_covers() {
        let build = tempfile::tempdir().unwrap();
        let uki = FileDigest::of(b"uki");
        of_build(build.path(), &uki).unwrap_err();
        let label = ("dev.instar.version".to_owned(), "v0.1.0".to_owned());
        let image = Image {
            entrypoint: vec!["/usr/bin/installer".to_owned()],
            labels: [label].into(),
            ..Image::default()
        };
        layout::write(&image, &build.path().join(INSTALLER)).unwrap();
        let text = of_build(build.path(), &uki).unwrap();
        let described: Value = serde_json::from_slice(&text).unwrap();
        let expected = json!({
            "uki": blake3::hash(b"uki").to_string(),
            "image": {
                "entrypoint": ["/usr/bin/installer"],
                "labels": {"dev.instar.version": "v0.1.0"},
                "layers": [],
            },
        });
        assert_eq!(described, expected);
    }
}
