//! Debian's docker-registry on a loopback port, started and ended by each test.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use instar_values::{Digest, ImageReference, Mirror, MirrorEndpoint};
use oci_client::client::{ClientConfig, ClientProtocol, Config, ImageLayer};
use oci_client::secrets::RegistryAuth as PushAuth;
use serde_json::json;

use crate::Registries;

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A registry process with its own storage; killed by its process id when dropped.
pub(super) struct Registry {
    process: Child,
    pub(super) port: u16,
    directory: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Registry {
    pub(super) fn start() -> Self {
        Registry::with(json!({}), None)
    }

    /// Starts a registry with further `http` settings, and a password file.
    pub(super) fn with(http: serde_json::Value, htpasswd: Option<&Path>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": directory.path().join("storage")}},
            "http": {"addr": format!("127.0.0.1:{port}")},
        });
        config["http"]
            .as_object_mut()
            .unwrap()
            .extend(http.as_object().unwrap().clone());
        if let Some(path) = htpasswd {
            config["auth"] = json!({"htpasswd": {"realm": "test", "path": path}});
        }
        let path = directory.path().join("config.json");
        fs::write(&path, config.to_string()).unwrap();
        let process = Command::new("docker-registry")
            .args(["serve".as_ref(), path.as_os_str()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("these tests need Debian's docker-registry: apt-get install docker-registry");
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "the registry does not start");
            std::thread::sleep(Duration::from_millis(50));
        }
        Registry {
            process,
            port,
            directory,
        }
    }

    pub(super) fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Settings with plain http, as a node's config would allow it.
    pub(super) fn settings(&self) -> Registries {
        mirrored(&self.host(), &[&format!("http://{}", self.host())])
    }

    pub(super) fn pusher(&self) -> oci_client::Client {
        // Another test may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = ClientConfig {
            protocol: ClientProtocol::Http,
            ..ClientConfig::default()
        };
        oci_client::Client::try_from(config).unwrap()
    }

    /// Pushes an image of these layers (unpacked, blob) under a tag.
    pub(super) async fn push(
        &self,
        tag: &str,
        architecture: &str,
        layers: &[(Vec<u8>, Vec<u8>)],
    ) -> String {
        let diff_ids: Vec<_> = layers.iter().map(|(tar, _)| Digest::of(tar)).collect();
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": {"Labels": {"dev.instar.version": "v0.2.0"}, "Entrypoint": ["/app"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let layers: Vec<_> = layers
            .iter()
            .map(|(_, blob)| ImageLayer::new(blob.clone(), GZIP.to_owned(), None))
            .collect();
        let reference = format!("{}/app:{tag}", self.host()).parse().unwrap();
        let config = Config::oci_v1(config.to_string().into_bytes(), None);
        let pusher = self.pusher();
        let response = pusher
            .push(&reference, &layers, config, &PushAuth::Anonymous, None)
            .await
            .unwrap();
        response.manifest_url
    }

    /// Pushes the layers of signatures (blob, media type, annotations) under a tag.
    pub(super) async fn push_signatures(
        &self,
        tag: &str,
        layers: Vec<(Vec<u8>, &str, BTreeMap<String, String>)>,
    ) {
        let layers: Vec<_> = layers
            .into_iter()
            .map(|(blob, kind, annotations)| {
                ImageLayer::new(blob, kind.to_owned(), Some(annotations))
            })
            .collect();
        let reference = format!("{}/app:{tag}", self.host()).parse().unwrap();
        let config = Config::oci_v1(b"{}".to_vec(), None);
        let pusher = self.pusher();
        let pushed = pusher.push(&reference, &layers, config, &PushAuth::Anonymous, None);
        pushed.await.unwrap();
    }

    /// Pushes a manifest or an index under a tag, as it is.
    pub(super) async fn push_manifest(&self, tag: &str, manifest: &serde_json::Value) -> Vec<u8> {
        let reference = format!("{}/app:{tag}", self.host()).parse().unwrap();
        let media_type = manifest["mediaType"].as_str().unwrap().parse().unwrap();
        let body = manifest.to_string().into_bytes();
        let pusher = self.pusher();
        let pushed = pusher.push_manifest_raw(&reference, body.clone(), media_type);
        pushed.await.unwrap();
        body
    }

    /// The file that the registry keeps a blob in.
    pub(super) fn blob(&self, blob: &[u8]) -> PathBuf {
        let hex = Digest::of(blob).hex();
        self.directory
            .path()
            .join("storage/docker/registry/v2/blobs/sha256")
            .join(&hex[..2])
            .join(hex)
            .join("data")
    }

    pub(super) fn reference(&self, rest: &str) -> ImageReference {
        format!("{}/app{rest}", self.host()).parse().unwrap()
    }
}

pub(super) fn mirrored(registry: &str, urls: &[&str]) -> Registries {
    let endpoint = |url: &&str| MirrorEndpoint {
        url: url.parse().unwrap(),
        override_path: false,
    };
    let mirror = Mirror {
        endpoints: urls.iter().map(endpoint).collect(),
        skip_fallback: true,
    };
    Registries {
        mirrors: [(registry.to_owned(), mirror)].into(),
        ..Registries::default()
    }
}
