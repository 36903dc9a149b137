//! Writes an image as an OCI image layout: a folder with `oci-layout`, `index.json` and the blobs by digest.

use std::{collections::BTreeMap, fs, io::Write, path::Path};

use anyhow::{Context, Result};
use flate2::{Compression as GzipLevel, GzBuilder};
use serde::Serialize;

use super::model::{
    CONFIG, Config, Descriptor, INDEX, Index, LAYER, LAYER_GZIP, MANIFEST, Manifest, Platform,
    RootFs, Runtime,
};
use crate::{archive, digest::Sha256, tree::Tree};

/// The form in which a layer is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed: for layers of compressed files.
    #[default]
    None,
    /// gzip.
    Gzip,
}

/// One layer of an image.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The layer's files.
    pub tree: Tree,
    /// The form in which the layer is stored.
    pub compression: Compression,
}

/// An image for `linux/amd64`.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The layers, lowest first.
    pub layers: Vec<Layer>,
    /// Program and first arguments.
    pub entrypoint: Vec<String>,
    /// Arguments unless the caller gives others.
    pub command: Vec<String>,
    /// `KEY=value`.
    pub environment: Vec<String>,
    /// Labels of the config.
    pub labels: BTreeMap<String, String>,
    /// The tag in the layout's index.
    pub tag: Option<String>,
    /// The processor's name; `amd64` when empty.
    pub architecture: Option<String>,
    /// The date of the config. A date of the sources, not of the build, so that the same sources give the same bytes.
    pub created: Option<jiff::Timestamp>,
}

impl Layer {
    /// Returns the layer as an archive, not compressed.
    ///
    /// # Errors
    /// A name that tar cannot hold.
    pub fn archive(&self) -> Result<Vec<u8>> {
        let mut tar = Vec::new();
        archive::write(&self.tree, &mut tar).context("cannot write a layer")?;
        Ok(tar)
    }
}

/// Writes the image to the folder `out`, replacing a layout that is there. Returns the descriptor of its manifest.
///
/// # Errors
/// The folder cannot be written.
pub fn write(image: &Image, out: &Path) -> Result<Descriptor> {
    if out.join("oci-layout").exists() {
        fs::remove_dir_all(out)
            .with_context(|| format!("cannot remove the old {}", out.display()))?;
    }
    let blobs = out.join("blobs/sha256");
    fs::create_dir_all(&blobs).with_context(|| format!("cannot create {}", blobs.display()))?;
    let blobs = Blobs { folder: &blobs };

    let mut layers = Vec::new();
    let mut diff_ids = Vec::new();
    for layer in &image.layers {
        let tar = layer.archive()?;
        diff_ids.push(format!("sha256:{}", Sha256::of(&tar)));
        layers.push(match layer.compression {
            Compression::None => blobs.add(LAYER, &tar)?,
            Compression::Gzip => blobs.add(LAYER_GZIP, &gzip(&tar)?)?,
        });
    }
    let architecture = image.architecture.as_deref().unwrap_or("amd64");
    let config = Config {
        architecture,
        os: "linux",
        created: image.created.map(|created| created.to_string()),
        config: Runtime {
            entrypoint: &image.entrypoint,
            cmd: &image.command,
            env: &image.environment,
            labels: &image.labels,
        },
        rootfs: RootFs {
            kind: "layers",
            diff_ids,
        },
    };
    let config = blobs.add_json(CONFIG, &config)?;
    let manifest = Manifest {
        schema_version: 2,
        media_type: MANIFEST.into(),
        config,
        layers,
    };
    let mut manifest = blobs.add_json(MANIFEST, &manifest)?;
    manifest.platform = Some(Platform {
        architecture: architecture.to_owned(),
        os: "linux".into(),
    });
    if let Some(tag) = &image.tag {
        manifest
            .annotations
            .insert("org.opencontainers.image.ref.name".into(), tag.clone());
    }
    let index = Index {
        schema_version: 2,
        media_type: INDEX.into(),
        manifests: vec![manifest.clone()],
    };
    write_file(&out.join("index.json"), &serde_json::to_vec(&index)?)?;
    // Written last: a folder with this file is a complete layout.
    write_file(
        &out.join("oci-layout"),
        br#"{"imageLayoutVersion":"1.0.0"}"#,
    )?;
    Ok(manifest)
}

/// The stored sizes of the layers of an image in the layout at `folder`.
///
/// # Errors
/// The layout has no such image.
pub fn layer_sizes(folder: &Path, manifest: &Descriptor) -> Result<Vec<u64>> {
    let name = manifest.digest.trim_start_matches("sha256:");
    let path = folder.join("blobs/sha256").join(name);
    let failed = || format!("cannot read {}", path.display());
    let text = fs::read(&path).with_context(failed)?;
    let manifest: Manifest = serde_json::from_slice(&text).with_context(failed)?;
    Ok(manifest.layers.iter().map(|layer| layer.size).collect())
}

struct Blobs<'a> {
    folder: &'a Path,
}

impl Blobs<'_> {
    fn add(&self, media_type: &str, bytes: &[u8]) -> Result<Descriptor> {
        let digest = Sha256::of(bytes);
        write_file(&self.folder.join(digest.to_string()), bytes)?;
        Ok(Descriptor {
            media_type: media_type.to_owned(),
            digest: format!("sha256:{digest}"),
            size: bytes.len() as u64,
            annotations: BTreeMap::new(),
            platform: None,
        })
    }

    fn add_json(&self, media_type: &str, document: &impl Serialize) -> Result<Descriptor> {
        self.add(media_type, &serde_json::to_vec(document)?)
    }
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    // GzBuilder writes no time and no name.
    let mut encoder = GzBuilder::new().write(Vec::new(), GzipLevel::best());
    encoder
        .write_all(bytes)
        .context("cannot compress a layer")?;
    encoder.finish().context("cannot compress a layer")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use super::*;

    fn image() -> Image {
        let mut tree = Tree::new();
        tree.file("usr/bin/hello", 0o755, *b"#!program").unwrap();
        Image {
            layers: vec![
                Layer {
                    tree: tree.clone(),
                    compression: Compression::None,
                },
                Layer {
                    tree,
                    compression: Compression::Gzip,
                },
            ],
            entrypoint: vec!["/usr/bin/hello".into()],
            labels: [("b".into(), "2".into()), ("a".into(), "1".into())].into(),
            tag: Some("v0.1.0".into()),
            ..Image::default()
        }
    }

    fn blob(layout: &Path, digest: &str) -> Vec<u8> {
        let hex = digest.strip_prefix("sha256:").unwrap();
        let bytes = fs::read(layout.join("blobs/sha256").join(hex)).unwrap();
        assert_eq!(Sha256::of(&bytes).to_string(), hex);
        bytes
    }

    #[test]
    fn every_digest_leads_to_its_blob() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = write(&image(), folder.path()).unwrap();
        let index: Index =
            serde_json::from_slice(&fs::read(folder.path().join("index.json")).unwrap()).unwrap();
        assert_eq!(index.manifests, std::slice::from_ref(&manifest));
        assert_eq!(
            manifest.annotations["org.opencontainers.image.ref.name"],
            "v0.1.0"
        );

        let bytes = blob(folder.path(), &manifest.digest);
        assert_eq!(bytes.len() as u64, manifest.size);
        let manifest: Manifest = serde_json::from_slice(&bytes).unwrap();
        let config: serde_json::Value =
            serde_json::from_slice(&blob(folder.path(), &manifest.config.digest)).unwrap();
        assert_eq!(config["config"]["Labels"]["a"], "1");
        assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/hello");
        assert_eq!(config["architecture"], "amd64");

        let plain = blob(folder.path(), &manifest.layers[0].digest);
        let mut unzipped = Vec::new();
        flate2::read::GzDecoder::new(&blob(folder.path(), &manifest.layers[1].digest)[..])
            .read_to_end(&mut unzipped)
            .unwrap();
        assert_eq!(plain, unzipped);
        let id = format!("sha256:{}", Sha256::of(&plain));
        assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!([id, id]));
    }

    #[test]
    fn the_same_image_is_the_same_bytes_and_replaces_the_old_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut other = image();
        other.labels.insert("c".into(), "3".into());
        write(&other, folder.path()).unwrap();
        let again = write(&image(), folder.path()).unwrap();
        let first = write(&image(), tempfile::tempdir().unwrap().path()).unwrap();
        assert_eq!(first, again);
        assert_eq!(
            fs::read_dir(folder.path().join("blobs/sha256"))
                .unwrap()
                .count(),
            4
        );
    }
}
