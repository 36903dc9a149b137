//! An image under construction, down to its bytes: tests of refusals need images that a careful builder never makes.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::registry::{Registry, sha256_digest};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Paths in an installer image: the root filesystem, and its description (docs/contracts.md).
const ROOTFS: &str = "usr/install/amd64/rootfs.squashfs";
const RELEASE: &str = "usr/install/amd64/release.json";

/// An image's config and layers, lowest first.
#[derive(Debug, Clone)]
pub struct OciImage {
    config: Value,
    layers: Vec<Layer>,
}

#[derive(Debug, Clone)]
struct Layer {
    media_type: &'static str,
    blob: Vec<u8>,
}

/// The digests of a pushed image.
#[derive(Debug, Clone)]
pub struct Pushed {
    /// The manifest's digest.
    pub digest: String,
    /// The digests of the layers' blobs.
    pub layers: Vec<String>,
}

impl OciImage {
    /// Returns an image without layers that starts this program.
    pub fn starting(entrypoint: &[&str]) -> Self {
        let config = json!({
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Labels": {}},
            "rootfs": {"type": "layers", "diff_ids": []},
        });
        Self {
            config,
            layers: Vec::new(),
        }
    }

    /// Reads the one image of an OCI layout; its layers must be uncompressed.
    pub fn read(layout: &Path) -> Result<Self> {
        let blob = |digest: &Value| -> Result<Vec<u8>> {
            let hex = digest
                .as_str()
                .and_then(|digest| digest.strip_prefix("sha256:"))
                .with_context(|| format!("{digest} is no digest"))?;
            let path = layout.join("blobs/sha256").join(hex);
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let index = std::fs::read(layout.join("index.json"))
            .with_context(|| format!("{} is no OCI layout", layout.display()))?;
        let index: Value = serde_json::from_slice(&index)?;
        let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0]["digest"])?)?;
        let layers = manifest["layers"].as_array().context("no layers")?.iter();
        let layers = layers.map(|layer| {
            Ok(Layer {
                media_type: LAYER,
                blob: blob(&layer["digest"])?,
            })
        });
        Ok(Self {
            config: serde_json::from_slice(&blob(&manifest["config"]["digest"])?)?,
            layers: layers.collect::<Result<_>>()?,
        })
    }

    /// Replaces the program that the image starts.
    pub fn entrypoint(mut self, entrypoint: &[&str]) -> Self {
        self.config["config"]["Entrypoint"] = entrypoint.into();
        self
    }

    /// Adds variables for the program, as `NAME=VALUE`.
    pub fn environment(mut self, variables: &[&str]) -> Self {
        self.config["config"]["Env"] = variables.into();
        self
    }

    /// Adds a layer with these files, all of them executable.
    pub fn files(self, files: &[(&str, &[u8])]) -> Result<Self> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, content) in files {
            append(&mut archive, path, content)?;
        }
        Ok(self.archive(archive.into_inner()?))
    }

    /// Adds any bytes as a layer.
    pub fn archive(mut self, archive: Vec<u8>) -> Self {
        self.add_diff_id(&archive);
        self.layers.push(Layer {
            media_type: LAYER,
            blob: archive,
        });
        self
    }

    /// Leaves out all layers but the first.
    pub fn first_layer_alone(mut self) -> Self {
        self.layers.truncate(1);
        if let Some(ids) = self.config["rootfs"]["diff_ids"].as_array_mut() {
            ids.truncate(1);
        }
        self
    }

    /// Adds an archive as a compressed layer.
    pub fn gzipped(mut self, archive: &[u8]) -> Result<Self> {
        self.add_diff_id(archive);
        let mut blob = Vec::new();
        let level = flate2::Compression::best();
        flate2::read::GzEncoder::new(archive, level).read_to_end(&mut blob)?;
        self.layers.push(Layer {
            media_type: LAYER_GZIP,
            blob,
        });
        Ok(self)
    }

    /// Adds an archive as a layer, with any compressed form of it and any media type.
    pub fn packed(mut self, archive: &[u8], media_type: &'static str, blob: Vec<u8>) -> Self {
        self.add_diff_id(archive);
        self.layers.push(Layer { media_type, blob });
        self
    }

    /// Sets the working directory.
    pub fn working_dir(mut self, directory: &str) -> Self {
        self.config["config"]["WorkingDir"] = directory.into();
        self
    }

    fn add_diff_id(&mut self, archive: &[u8]) {
        if let Some(ids) = self.config["rootfs"]["diff_ids"].as_array_mut() {
            ids.push(sha256_digest(archive).into());
        }
    }

    /// Sets the user: `USER[:GROUP]`.
    pub fn user(mut self, user: &str) -> Self {
        self.config["config"]["User"] = user.into();
        self
    }

    /// Sets a label.
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.config["config"]["Labels"][name] = value.into();
        self
    }

    /// Returns a label.
    pub fn label_of(&self, name: &str) -> Result<String> {
        let label = self.config["config"]["Labels"][name].as_str();
        Ok(label
            .with_context(|| format!("there is no label {name}"))?
            .to_owned())
    }

    /// Sets the date.
    pub fn created(mut self, date: &str) -> Self {
        self.config["created"] = date.into();
        self
    }

    /// Removes a label.
    pub fn without_label(mut self, name: &str) -> Self {
        if let Some(labels) = self.config["config"]["Labels"].as_object_mut() {
            labels.remove(name);
        }
        self
    }

    /// Turns an installer image into one of another root filesystem and version, with correct labels.
    pub fn installing(mut self, version: &str, rootfs: &[u8]) -> Result<Self> {
        let digest = blake3::hash(rootfs).to_hex().to_string();
        let release =
            json!({"version": version, "rootfs": {"blake3": digest, "bytes": rootfs.len()}});
        let release = release.to_string();
        let old = self.layers.first().context("no layers")?.blob.clone();
        let mut archive = tar::Builder::new(Vec::new());
        for entry in tar::Archive::new(old.as_slice()).entries()? {
            let mut entry = entry?;
            let path = entry.path()?.display().to_string();
            match path.trim_start_matches("./") {
                ROOTFS => append(&mut archive, ROOTFS, rootfs)?,
                RELEASE => append(&mut archive, RELEASE, release.as_bytes())?,
                _ => {
                    let header = entry.header().clone();
                    let mut content = Vec::new();
                    entry.read_to_end(&mut content)?;
                    archive.append(&header, content.as_slice())?;
                }
            }
        }
        let archive = archive.into_inner()?;
        self.config["rootfs"]["diff_ids"][0] = sha256_digest(&archive).into();
        if let Some(first) = self.layers.first_mut() {
            first.blob = archive;
        }
        Ok(self
            .label("dev.instar.version", version)
            .label("dev.instar.rootfs.blake3", &digest)
            .label("dev.instar.rootfs.bytes", &rootfs.len().to_string()))
    }

    /// Returns a file of the image, from any layer.
    pub fn file(&self, path: &str) -> Result<Vec<u8>> {
        for layer in &self.layers {
            for entry in tar::Archive::new(layer.blob.as_slice()).entries()? {
                let mut entry = entry?;
                if entry.path()?.to_str() == Some(path) {
                    let mut content = Vec::new();
                    entry.read_to_end(&mut content)?;
                    return Ok(content);
                }
            }
        }
        anyhow::bail!("the image has no file {path}")
    }

    /// Adds a layer with a file that replaces one of the layers below.
    pub fn with_file(self, path: &str, content: &[u8]) -> Result<Self> {
        self.files(&[(path, content)])
    }

    /// Pushes the image.
    pub fn push(&self, registry: &Registry, repository: &str, tag: &str) -> Result<Pushed> {
        let describe = |media_type: &str, blob: &[u8]| -> Result<Value> {
            let digest = registry.put_blob(repository, blob)?;
            Ok(json!({"mediaType": media_type, "digest": digest, "size": blob.len()}))
        };
        let config = describe(CONFIG, &serde_json::to_vec(&self.config)?)?;
        let layers = self
            .layers
            .iter()
            .map(|layer| describe(layer.media_type, &layer.blob))
            .collect::<Result<Vec<Value>>>()?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers,
        });
        let digest = registry.put_manifest(repository, tag, manifest.to_string().as_bytes())?;
        let layers = layers
            .iter()
            .filter_map(|layer| layer["digest"].as_str().map(str::to_owned));
        Ok(Pushed {
            digest,
            layers: layers.collect(),
        })
    }
}

fn append(archive: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    Ok(archive.append_data(&mut header, path, content)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(archive: &[u8]) -> Vec<String> {
        let mut archive = tar::Archive::new(archive);
        let entries = archive.entries().unwrap();
        entries
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect()
    }

    #[test]
    fn another_rootfs_changes_what_is_said_about_it_and_nothing_else() {
        let image = OciImage::starting(&["/usr/bin/installer"])
            .files(&[
                ("usr/bin/installer", b"i"),
                (ROOTFS, b"old"),
                (RELEASE, b"{}"),
            ])
            .unwrap()
            .files(&[("usr/install/amd64/vmlinuz", b"k")])
            .unwrap()
            .label("dev.instar.kernel.blake3", "same");
        let other = image.clone().installing("v9.9.9", b"new root").unwrap();
        assert_eq!(names(&other.layers[0].blob), names(&image.layers[0].blob));
        assert_eq!(other.layers[1].blob, image.layers[1].blob);
        let labels = &other.config["config"]["Labels"];
        assert_eq!(labels["dev.instar.version"], "v9.9.9");
        assert_eq!(labels["dev.instar.rootfs.bytes"], "8");
        assert_eq!(labels["dev.instar.kernel.blake3"], "same");
        let ids = &other.config["rootfs"]["diff_ids"];
        assert_eq!(ids[0], sha256_digest(&other.layers[0].blob));
        assert_eq!(ids[1], sha256_digest(&other.layers[1].blob));
    }
}
