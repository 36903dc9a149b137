//! Debian's OCI registry as an instance of the test's own: own port, own storage, removed with the test.
//!
//! The package may run a registry as a service; that one is not touched.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use instar_qemu::{OwnedProcess, PortLease, lease_port};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::HOST_FOR_GUEST;
use crate::http_client::{HttpAnswer, http};
use crate::scratch::Scratch;

const PROGRAM: &str = "docker-registry";
const PATIENCE: Duration = Duration::from_secs(60);
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A running registry; plain HTTP.
#[derive(Debug)]
pub struct Registry {
    process: OwnedProcess,
    lease: PortLease,
    storage: PathBuf,
}

impl Registry {
    /// Starts an empty registry.
    pub fn start(scratch: &Scratch) -> Result<Self> {
        let lease = lease_port()?;
        let storage = scratch.join("registry");
        let process = serve(scratch, "registry", &config(&storage, lease.port()))?;
        let registry = Self {
            process,
            lease,
            storage,
        };
        registry.wait_until_ready()?;
        Ok(registry)
    }

    fn wait_until_ready(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        loop {
            if http(&self.address(), "GET", "/v2/", &[], &[])
                .is_ok_and(|answer| answer.status == 200)
            {
                return Ok(());
            }
            if let Some(ended) = self.process.ended() {
                bail!("docker-registry ended ({ended}): see registry.log");
            }
            ensure!(
                Instant::now() < until,
                "docker-registry does not answer within {} s",
                PATIENCE.as_secs()
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn storage(&self) -> &Path {
        &self.storage
    }

    /// `127.0.0.1:PORT`
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.lease.port())
    }

    /// The registry's address in a guest: `10.0.2.2:PORT`.
    pub fn host_for_guest(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.lease.port())
    }

    /// An image's name in a guest: `10.0.2.2:PORT/NAME`, NAME with its tag or digest.
    pub fn image_for_guest(&self, name: &str) -> String {
        format!("{HOST_FOR_GUEST}:{}/{name}", self.lease.port())
    }

    /// Stops the registry's answers: clients can still connect, and get no byte.
    pub fn freeze(&self) -> Result<()> {
        Ok(self.process.halt()?)
    }

    /// Ends the registry. Nobody else gets its port while the lease is held: connections are refused.
    pub fn end(self) -> PortLease {
        self.lease
    }

    /// Makes a tag lead nowhere.
    pub fn remove_tag(&self, repository: &str, tag: &str) -> Result<()> {
        let tag = format!("docker/registry/v2/repositories/{repository}/_manifests/tags/{tag}");
        Ok(std::fs::remove_dir_all(self.storage.join(tag))?)
    }

    /// Returns the file that holds a blob, for tests that damage it.
    pub fn blob_file(&self, digest: &str) -> Result<PathBuf> {
        let hex = digest
            .strip_prefix("sha256:")
            .with_context(|| format!("{digest} is not a SHA-256 digest"))?;
        let first = hex.get(..2).context("an empty digest")?;
        let blobs = self.storage.join("docker/registry/v2/blobs/sha256");
        Ok(blobs.join(first).join(hex).join("data"))
    }

    /// Stores a blob and returns its digest.
    pub fn put_blob(&self, repository: &str, content: &[u8]) -> Result<String> {
        let digest = sha256_digest(content);
        let begun = http(
            &self.address(),
            "POST",
            &format!("/v2/{repository}/blobs/uploads/"),
            &[],
            &[],
        )?;
        let location = expect(&begun, 202, "begin an upload")?
            .header("location")
            .context("an upload without a place")?;
        let target = location
            .strip_prefix(&format!("http://{}", self.address()))
            .unwrap_or(location);
        let separator = if target.contains('?') { '&' } else { '?' };
        let target = format!("{target}{separator}digest={digest}");
        let stored = http(
            &self.address(),
            "PUT",
            &target,
            &[("Content-Type", "application/octet-stream")],
            content,
        )?;
        expect(&stored, 201, "store a blob")?;
        Ok(digest)
    }

    /// Stores a manifest under a tag and returns its digest. The blobs that it names must be stored already.
    pub fn put_manifest(&self, repository: &str, tag: &str, manifest: &[u8]) -> Result<String> {
        self.put(repository, tag, OCI_MANIFEST, manifest)
    }

    /// Stores an index with this one image, for the platform of the tests, and returns its digest.
    pub fn put_index_of(&self, repository: &str, tag: &str, manifest: &str) -> Result<String> {
        let of = format!("/v2/{repository}/manifests/{manifest}");
        let accept = [("Accept", OCI_MANIFEST)];
        let image = http(&self.address(), "GET", &of, &accept, &[])?;
        let size = expect(&image, 200, "get a manifest")?.body.len();
        let index = serde_json::json!({
            "schemaVersion": 2, "mediaType": OCI_INDEX,
            "manifests": [{
                "mediaType": OCI_MANIFEST, "digest": manifest, "size": size,
                "platform": {"architecture": "amd64", "os": "linux"},
            }],
        });
        self.put(repository, tag, OCI_INDEX, index.to_string().as_bytes())
    }

    fn put(&self, repository: &str, tag: &str, kind: &str, document: &[u8]) -> Result<String> {
        let target = format!("/v2/{repository}/manifests/{tag}");
        let stored = http(
            &self.address(),
            "PUT",
            &target,
            &[("Content-Type", kind)],
            document,
        )?;
        expect(&stored, 201, "store a manifest")?;
        Ok(sha256_digest(document))
    }

    /// Pushes the one image of an OCI layout and returns its manifest's digest.
    pub fn push_layout(&self, layout: &Path, repository: &str, tag: &str) -> Result<String> {
        let index: Value = serde_json::from_slice(&read(&layout.join("index.json"))?)?;
        let manifest_digest = digest_of(&index["manifests"][0])?;
        let manifest_bytes = read(&blob(layout, manifest_digest)?)?;
        let manifest: Value = serde_json::from_slice(&manifest_bytes)?;
        let layers = manifest["layers"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        for part in std::iter::once(&manifest["config"]).chain(layers) {
            self.put_blob(repository, &read(&blob(layout, digest_of(part)?)?)?)?;
        }
        self.put_manifest(repository, tag, &manifest_bytes)
    }
}

/// `sha256:…`
pub fn sha256_digest(content: &[u8]) -> String {
    let hex: String = Sha256::digest(content)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// Runs the registry's program; its config and log are NAME.yml and NAME.log in the scratch directory.
pub(crate) fn serve(scratch: &Scratch, name: &str, config: &str) -> Result<OwnedProcess> {
    let config = scratch.write(&format!("{name}.yml"), config)?;
    let log = std::fs::File::create(scratch.join(&format!("{name}.log")))
        .context("cannot make the registry's log")?;
    let mut command = Command::new(PROGRAM);
    command.arg("serve").arg(config);
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    OwnedProcess::start(command, None)
        .context("cannot run docker-registry: install the package docker-registry")
}

/// Returns docker-registry's config: plain HTTP on 127.0.0.1.
///
/// Paths and ports are the test's own: nothing in them needs quoting beyond the quotes.
pub fn config(storage: &Path, port: u16) -> String {
    format!(
        "version: 0.1\nlog:\n  level: warn\nstorage:\n  filesystem:\n    rootdirectory: \"{}\"\n  delete:\n    enabled: true\nhttp:\n  addr: 127.0.0.1:{port}\n",
        storage.display()
    )
}

fn expect<'a>(answer: &'a HttpAnswer, status: u16, what: &str) -> Result<&'a HttpAnswer> {
    let text = || String::from_utf8_lossy(&answer.body).trim().to_owned();
    ensure!(
        answer.status == status,
        "cannot {what}: the registry says {} {}",
        answer.status,
        text()
    );
    Ok(answer)
}

fn digest_of(descriptor: &Value) -> Result<&str> {
    descriptor["digest"]
        .as_str()
        .with_context(|| format!("no digest in {descriptor}"))
}

fn blob(layout: &Path, digest: &str) -> Result<PathBuf> {
    let hex = digest
        .strip_prefix("sha256:")
        .with_context(|| format!("{digest} is not a SHA-256 digest"))?;
    Ok(layout.join("blobs/sha256").join(hex))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
