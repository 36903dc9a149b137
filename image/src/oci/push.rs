//! Pushes a layout to a registry.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail, ensure};
use http::HeaderValue;
use oci_client::{
    Client, Reference, RegistryOperation,
    client::{ClientConfig, ClientProtocol},
    secrets::RegistryAuth,
};

use super::model::{Descriptor, INDEX, Index, MANIFEST, Manifest};
use crate::digest::Sha256;

/// The protocol of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// HTTPS, verified by the machine's certificates.
    Https,
    /// HTTP, for a registry on this machine or in a test.
    PlainHttp,
}

/// Pushes the one image of the layout to `reference` (`localhost:5000/installer:v0.1.0`). Returns the digest of its manifest.
/// Every blob is checked against its digest before it goes out.
///
/// # Errors
/// The layout is damaged or holds several images, or the registry refuses.
pub async fn push(layout: &Path, reference: &str, transport: Transport) -> Result<String> {
    let target: Reference = reference
        .parse()
        .with_context(|| format!("{reference:?} is not an image reference"))?;
    let index: Index = serde_json::from_slice(&read(&layout.join("index.json"))?)
        .with_context(|| format!("{} is not an OCI image layout", layout.display()))?;
    let [image] = &index.manifests[..] else {
        bail!(
            "{} holds {} images, and one can be pushed",
            layout.display(),
            index.manifests.len()
        );
    };
    let pusher = Pusher {
        layout,
        client: client(transport)?,
        target: target.clone(),
    };
    pusher
        .client
        .auth(&target, &RegistryAuth::Anonymous, RegistryOperation::Push)
        .await
        .with_context(|| format!("cannot reach the registry {}", target.resolve_registry()))?;
    pusher.manifest(image, &target).await?;
    Ok(image.digest.clone())
}

fn client(transport: Transport) -> Result<Client> {
    // Fails if a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let protocol = match transport {
        Transport::Https => ClientProtocol::Https,
        Transport::PlainHttp => ClientProtocol::Http,
    };
    Client::try_from(ClientConfig {
        protocol,
        ..ClientConfig::default()
    })
    .context("cannot set up a client for registries")
}

struct Pusher<'a> {
    layout: &'a Path,
    client: Client,
    target: Reference,
}

impl Pusher<'_> {
    /// Pushes a manifest after its blobs, so that a registry never holds an incomplete image.
    async fn manifest(&self, manifest: &Descriptor, target: &Reference) -> Result<()> {
        let bytes = self.blob(manifest)?;
        match manifest.media_type.as_str() {
            MANIFEST => {
                let parsed: Manifest = serde_json::from_slice(&bytes)
                    .with_context(|| format!("cannot read the manifest {}", manifest.digest))?;
                for part in parsed.layers.iter().chain([&parsed.config]) {
                    self.push_blob(part).await?;
                }
            }
            INDEX => {
                let parsed: Index = serde_json::from_slice(&bytes)
                    .with_context(|| format!("cannot read the index {}", manifest.digest))?;
                for part in &parsed.manifests {
                    let by_digest = self.target.clone_with_digest(part.digest.clone());
                    Box::pin(self.manifest(part, &by_digest)).await?;
                }
            }
            other => bail!(
                "the layout holds {}, of the unknown type {other}",
                manifest.digest
            ),
        }
        let kind = HeaderValue::from_str(&manifest.media_type)
            .context("a media type has odd characters")?;
        let pushed = self.client.push_manifest_raw(target, bytes, kind).await;
        pushed.with_context(|| format!("the registry did not take the manifest for {target}"))?;
        Ok(())
    }

    async fn push_blob(&self, blob: &Descriptor) -> Result<()> {
        let there = self.client.blob_exists(&self.target, &blob.digest).await;
        if there.with_context(|| format!("cannot ask the registry for {}", blob.digest))? {
            return Ok(());
        }
        let pushed = self
            .client
            .push_blob(&self.target, self.blob(blob)?, &blob.digest)
            .await;
        pushed.with_context(|| format!("the registry did not take {}", blob.digest))?;
        Ok(())
    }

    fn blob(&self, blob: &Descriptor) -> Result<Vec<u8>> {
        let hex = blob
            .digest
            .strip_prefix("sha256:")
            .filter(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let hex = hex.with_context(|| format!("{:?} is not a sha256 digest", blob.digest))?;
        let path = self.layout.join("blobs/sha256").join(hex);
        let bytes = read(&path)?;
        ensure!(
            Sha256::of(&bytes).to_string() == hex && bytes.len() as u64 == blob.size,
            "{} is damaged: its content is not what its name says",
            path.display()
        );
        Ok(bytes)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
