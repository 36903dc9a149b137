//! A registry for tests. Each of its images is behind an index, and only the index is signed, as `cosign sign IMAGE@DIGEST` does.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};

use crate::base::lock::Lock as _;
use crate::oci::manifest::VERSION_LABEL;
use crate::oci::{Policy, Puller, Registries};
use crate::values::{
    Digest, ImagePattern, ImageReference, ImageRule, Mirror, MirrorEndpoint, RuleEffect,
};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The build time and the version that each image tells of itself.
const CREATED: &str = "2026-01-02T03:04:05Z";
const VERSION: &str = "2.6.2";
/// The registry's name in references.
const HOST: &str = "r.io";

/// The documents that the registry has, by path, and the way in which it answers.
#[derive(Default)]
struct Served {
    documents: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Paths whose answer waits.
    held: Mutex<BTreeSet<String>>,
    asked: Mutex<Vec<String>>,
    /// Whether it answers nothing.
    is_silent: AtomicBool,
}

/// The registry. When it is dropped, it has nothing any more.
pub(crate) struct SignedRegistry {
    served: Arc<Served>,
    address: SocketAddr,
    key: KeyPair,
}

/// An image of it.
#[derive(Debug, Clone)]
pub(crate) struct Pushed {
    pub(crate) name: ImageReference,
    pub(crate) index: Digest,
    pub(crate) manifest: Digest,
    pub(crate) layer: Digest,
}

impl SignedRegistry {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::new(Served::default());
        let shared = served.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let served = shared.clone();
                // A caller may hang up.
                std::thread::spawn(move || drop(served.answer(connection)));
            }
        });
        SignedRegistry {
            served,
            address,
            key: KeyPair::generate().unwrap(),
        }
    }

    /// Pushes an image with this content, behind an index, and signs the index.
    pub(crate) fn push(&self, name: &str, content: &str) -> Pushed {
        self.push_version(name, content, VERSION)
    }

    /// The same with a label that says this version.
    pub(crate) fn push_version(&self, name: &str, content: &str, version: &str) -> Pushed {
        let name: ImageReference = format!("{HOST}/{name}").parse().unwrap();
        let repository = name.repository();
        let layer = archive(content);
        let layer = self.put(repository, "blobs", &layer);
        let config = json!({
            "architecture": "amd64", "os": "linux", "created": CREATED,
            "config": {"Entrypoint": ["/app"], "Labels": {VERSION_LABEL: version}},
            "rootfs": {"type": "layers", "diff_ids": [layer.0]},
        });
        let config = self.put(repository, "blobs", config.to_string().as_bytes());
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": described("application/vnd.oci.image.config.v1+json", config),
            "layers": [described("application/vnd.oci.image.layer.v1.tar", layer)],
        });
        let manifest = self.put(repository, "manifests", manifest.to_string().as_bytes());
        let mut entry = described(MANIFEST, manifest);
        entry["platform"] = json!({"os": "linux", "architecture": "amd64"});
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]});
        let index = index.to_string();
        let tag = name.tag().unwrap_or("latest");
        self.serve(repository, &format!("manifests/{tag}"), index.as_bytes());
        let (index, _) = self.put(repository, "manifests", index.as_bytes());
        self.sign(repository, index);
        Pushed {
            index,
            manifest: manifest.0,
            layer: layer.0,
            name,
        }
    }

    /// Signs a digest in cosign's older form.
    pub(crate) fn sign(&self, repository: &str, digest: Digest) {
        let payload = json!({
            "critical": {
                "identity": {"docker-reference": ""},
                "image": {"docker-manifest-digest": digest},
                "type": "cosign container image signature",
            },
            "optional": null,
        });
        let payload = payload.to_string().into_bytes();
        let signature = self.key.sign(&payload).unwrap();
        let mut layer = described(PAYLOAD, self.put(repository, "blobs", &payload));
        layer["annotations"] =
            json!({"dev.cosignproject.cosign/signature": BASE64_STANDARD.encode(signature)});
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "layers": [layer]});
        let place = format!("manifests/sha256-{}.sig", digest.hex());
        self.serve(repository, &place, manifest.to_string().as_bytes());
    }

    fn put(&self, repository: &str, kind: &str, content: &[u8]) -> (Digest, usize) {
        let digest = Digest::of(content);
        self.serve(repository, &format!("{kind}/{digest}"), content);
        (digest, content.len())
    }

    fn serve(&self, repository: &str, place: &str, content: &[u8]) {
        let path = format!("/v2/{repository}/{place}");
        self.served.documents.locked().insert(path, content.into());
    }

    /// Removes the manifest or index of this digest.
    pub(crate) fn forget(&self, of: &Pushed, digest: Digest) {
        let path = format!("/v2/{}/manifests/{digest}", of.name.repository());
        self.served.documents.locked().remove(&path);
    }

    /// Takes connections, and says nothing any more.
    pub(crate) fn fall_silent(&self) {
        self.served.is_silent.store(true, Ordering::Relaxed);
    }

    /// Has the layer of an image wait, or lets it go.
    pub(crate) fn hold_layer(&self, of: &Pushed, is_held: bool) {
        let path = format!("/v2/{}/blobs/{}", of.name.repository(), of.layer);
        let held = &mut self.served.held.locked();
        match is_held {
            true => held.insert(path),
            false => held.remove(&path),
        };
    }

    /// Whether the layer of an image was asked for.
    pub(crate) fn was_asked_for_layer(&self, of: &Pushed) -> bool {
        let wanted = format!("/blobs/{}", of.layer);
        let asked = self.served.asked.locked();
        asked.iter().any(|path| path.ends_with(&wanted))
    }

    /// The documents of a machine config that lead here, and that want its signature for every image.
    pub(crate) fn config(&self) -> String {
        let key = self.key.public_key_pem().replace('\n', "\n        ");
        format!(
            "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {HOST}\nskipFallback: true\nendpoints: [{{url: \"http://{}\"}}]\n\
             ---\napiVersion: v1alpha1\nkind: ImageVerificationConfig\nrules:\n  - image: \"*\"\n    publicKey:\n      certificate: |\n        {key}\n",
            self.address
        )
    }

    /// A puller of its images, which wants its signature.
    pub(crate) fn puller(&self) -> Puller {
        self.puller_at(self.address)
    }

    fn policy(&self) -> Policy {
        let rule = ImageRule {
            pattern: ImagePattern::new("*"),
            effect: RuleEffect::SignedBy(self.key.public_key_pem().parse().unwrap()),
        };
        Policy::new(vec![rule])
    }

    /// A puller that wants its signature, and gets its images from another registry.
    pub(crate) fn puller_at(&self, address: SocketAddr) -> Puller {
        Puller::new(settings(address), self.policy())
    }

    /// A puller of its images, which takes them without any signature.
    pub(crate) fn puller_without_rules(&self) -> Puller {
        Puller::new(settings(self.address), Policy::default())
    }
}

/// Settings that lead to the registry at this address.
fn settings(address: SocketAddr) -> Arc<Registries> {
    let endpoint = MirrorEndpoint {
        url: format!("http://{address}").parse().unwrap(),
        override_path: false,
    };
    let mirror = Mirror {
        endpoints: vec![endpoint],
        skip_fallback: true,
    };
    Arc::new(Registries {
        mirrors: BTreeMap::from([(HOST.to_owned(), mirror)]),
        ..Registries::default()
    })
}

impl Drop for SignedRegistry {
    fn drop(&mut self) {
        self.served.documents.locked().clear();
        self.served.held.locked().clear();
        self.served.is_silent.store(false, Ordering::Relaxed);
    }
}

impl Served {
    fn answer(&self, mut connection: TcpStream) -> std::io::Result<()> {
        let mut lines = BufReader::new(connection.try_clone()?).lines();
        let request = lines.next().transpose()?.unwrap_or_default();
        for line in lines {
            if line?.is_empty() {
                break;
            }
        }
        let path = request.split([' ', '?']).nth(1).unwrap_or_default();
        self.asked.locked().push(path.to_owned());
        while self.is_silent.load(Ordering::Relaxed) || self.held.locked().contains(path) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let content = self.documents.locked().get(path).cloned();
        let status = if content.is_some() {
            "200 OK"
        } else {
            "404 Not Found"
        };
        let content = content.unwrap_or_default();
        write!(
            connection,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            content.len()
        )?;
        connection.write_all(&content)
    }
}

fn described(media_type: &str, (digest, size): (Digest, usize)) -> Value {
    json!({"mediaType": media_type, "digest": digest, "size": size})
}

fn archive(content: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o755);
    archive
        .append_data(&mut header, "app", content.as_bytes())
        .unwrap();
    archive.into_inner().unwrap()
}
