//! Pulls from a real registry: Debian's docker-registry on a loopback port, started and ended by each test.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use oci_client::client::{ClientConfig, ClientProtocol, Config, ImageLayer};
use oci_client::secrets::RegistryAuth as PushAuth;
use serde_json::json;

use super::unpack::test_tar::{TarBuilder, gzip};
use super::*;
use instar_base::back_off::BackOff;
use instar_base::error_chain::chain;
use instar_http_client::Trust;
use instar_values::{
    ClientIdentity, Digest, HostTls, ImageReference, Mirror, MirrorEndpoint, RegistryAuth, Secret,
};

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A registry process with its own storage; ended by its process id when dropped.
struct Registry {
    process: Child,
    port: u16,
    directory: tempfile::TempDir,
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Registry {
    fn start() -> Self {
        Registry::with(json!({}), None)
    }

    /// With more `http` settings, and a password file.
    fn with(http: serde_json::Value, htpasswd: Option<&Path>) -> Self {
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

    fn host(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Plain http as a node's config would allow it.
    fn settings(&self) -> Registries {
        mirrored(&self.host(), &[&format!("http://{}", self.host())])
    }

    fn pusher(&self) -> oci_client::Client {
        // Another test may have done it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = ClientConfig {
            protocol: ClientProtocol::Http,
            ..ClientConfig::default()
        };
        oci_client::Client::try_from(config).unwrap()
    }

    /// Pushes an image of these layers (unpacked, blob) under a tag.
    async fn push(&self, tag: &str, architecture: &str, layers: &[(Vec<u8>, Vec<u8>)]) -> String {
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

    /// The file that the registry keeps a blob in.
    fn blob(&self, blob: &[u8]) -> PathBuf {
        let hex = Digest::of(blob).hex();
        self.directory
            .path()
            .join("storage/docker/registry/v2/blobs/sha256")
            .join(&hex[..2])
            .join(hex)
            .join("data")
    }

    fn reference(&self, rest: &str) -> ImageReference {
        format!("{}/app{rest}", self.host()).parse().unwrap()
    }
}

fn mirrored(registry: &str, urls: &[&str]) -> Registries {
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

fn puller(settings: Registries) -> Puller {
    let retries = Retries {
        attempts: 3,
        pauses: BackOff {
            first: Duration::from_millis(10),
            longest: Duration::from_secs(1),
        },
    };
    Puller::with_retries(Arc::new(settings), retries)
}

fn layer(name: &str, content: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let tar = TarBuilder::default().file(name, content).finish();
    let blob = gzip(&tar);
    (tar, blob)
}

/// Bytes that gzip cannot make smaller.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

fn store() -> (tempfile::TempDir, ImageStore) {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned());
    (directory, store)
}

/// Nothing in the store, no leavings either. The unpacking thread may still be at it when a pull was given up.
fn assert_empty(directory: &tempfile::TempDir) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let images = directory.path().join("images");
    while images.exists() && fs::read_dir(&images).unwrap().count() > 0 {
        assert!(
            Instant::now() < deadline,
            "something is left in {}",
            images.display()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn by_tag_and_by_digest() {
    let registry = Registry::start();
    registry
        .push(
            "v1",
            "amd64",
            &[layer("a", b"lower"), layer("b", &noise(2_000_000))],
        )
        .await;
    let puller = puller(registry.settings());
    let (_directory, store) = store();

    let by_tag = puller.resolve(&registry.reference(":v1")).await.unwrap();
    assert_eq!(by_tag.labels()["dev.instar.version"], "v0.2.0");
    assert_eq!(by_tag.digest(), by_tag.named_digest);
    let arrived = AtomicUsize::new(0);
    let count = |progress: Progress| {
        arrived.store(usize::try_from(progress.bytes).unwrap(), Ordering::Relaxed)
    };
    let image = puller
        .pull_with_progress(&by_tag, &store, &Limits::default(), &count)
        .await
        .unwrap();
    assert_eq!(arrived.into_inner() as u64, by_tag.download_bytes());
    assert_eq!(fs::read(image.rootfs().join("a")).unwrap(), b"lower");
    assert_eq!(
        fs::read(image.rootfs().join("b")).unwrap(),
        noise(2_000_000)
    );
    assert_eq!(image.config().entrypoint, ["/app"]);

    let reference = registry.reference(&format!("@{}", image.digest()));
    let by_digest = puller.resolve(&reference).await.unwrap();
    assert_eq!(by_digest.layers, by_tag.layers);
    // It is there: nothing is transferred again, even without a registry.
    drop(registry);
    let again = puller
        .pull(&by_digest, &store, &Limits::default())
        .await
        .unwrap();
    assert_eq!(again.names().len(), 2);
    assert_eq!(store.list().unwrap(), [again]);
}

#[tokio::test]
async fn what_the_registry_does_not_have() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"x")]).await;
    let puller = puller(registry.settings());
    let resolve =
        async |rest: &str| chain(&puller.resolve(&registry.reference(rest)).await.unwrap_err());
    let said = resolve(":v9").await;
    assert!(
        said.contains(&format!("no registry gives {}/app:v9", registry.host())),
        "{said}"
    );
    assert!(
        said.contains("it does not have it (MANIFEST_UNKNOWN: manifest unknown)"),
        "{said}"
    );
    let said = resolve("-other:v1").await;
    assert!(said.contains("it does not have it"), "{said}");
    let said = resolve(&format!("@{}", Digest::of(b"nothing"))).await;
    assert!(said.contains("MANIFEST_UNKNOWN"), "{said}");
}

#[tokio::test]
async fn other_platforms_are_named() {
    let registry = Registry::start();
    registry.push("arm", "arm64", &[layer("a", b"arm")]).await;
    registry.push("amd", "amd64", &[layer("a", b"amd")]).await;
    let puller = puller(registry.settings());
    let error = chain(
        &puller
            .resolve(&registry.reference(":arm"))
            .await
            .unwrap_err(),
    );
    assert!(
        error.contains("the image is for linux/arm64, this machine is linux/amd64"),
        "{error}"
    );

    let (amd, size) = {
        let resolved = puller.resolve(&registry.reference(":amd")).await.unwrap();
        let url = format!("http://{}/v2/app/manifests/amd", registry.host());
        let mut stream = TcpStream::connect(registry.host()).unwrap();
        let accept = "Accept: application/vnd.oci.image.manifest.v1+json\r\nConnection: close";
        write!(stream, "GET {url} HTTP/1.1\r\nHost: x\r\n{accept}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        (
            resolved.digest(),
            answer.split_once("\r\n\r\n").unwrap().1.len(),
        )
    };
    let index = |platforms: &[&str]| {
        let manifests: Vec<_> = platforms
            .iter()
            .map(|architecture| {
                json!({"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": amd, "size": size,
                       "platform": {"os": "linux", "architecture": architecture}})
            })
            .collect();
        json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests})
    };
    for (tag, platforms) in [
        ("both", &["arm64", "amd64"][..]),
        ("without", &["arm64", "riscv64"]),
    ] {
        let reference = format!("{}/app:{tag}", registry.host()).parse().unwrap();
        let media_type = http::HeaderValue::from_static("application/vnd.oci.image.index.v1+json");
        let body = index(platforms).to_string().into_bytes();
        registry
            .pusher()
            .push_manifest_raw(&reference, body, media_type)
            .await
            .unwrap();
    }
    let both = puller.resolve(&registry.reference(":both")).await.unwrap();
    assert_eq!(both.digest(), amd);
    assert_ne!(both.named_digest, amd);
    let error = chain(
        &puller
            .resolve(&registry.reference(":without"))
            .await
            .unwrap_err(),
    );
    assert!(
        error.contains("the image is for linux/arm64, linux/riscv64, this machine is linux/amd64"),
        "{error}"
    );
}

#[tokio::test]
async fn damaged_blobs_are_refused_and_leave_nothing() {
    let registry = Registry::start();
    let (tar, blob) = layer("b", &noise(500_000));
    registry
        .push("v1", "amd64", &[layer("a", b"lower"), (tar, blob.clone())])
        .await;
    let puller = puller(registry.settings());
    let (directory, store) = store();
    let resolved = puller.resolve(&registry.reference(":v1")).await.unwrap();
    let pull = async || {
        chain(
            &puller
                .pull(&resolved, &store, &Limits::default())
                .await
                .unwrap_err(),
        )
    };
    let stored = registry.blob(&blob);

    fs::write(&stored, &blob[..blob.len() / 2]).unwrap();
    let said = pull().await;
    assert!(
        said.contains(&format!("layer {}", Digest::of(&blob))),
        "{said}"
    );
    let refused = puller.pull(&resolved, &store, &Limits::default()).await;
    assert!(!refused.unwrap_err().is_unreachable());
    assert!(
        said.contains(&format!(
            "the blob ended after {} of {} bytes",
            blob.len() / 2,
            blob.len()
        )),
        "{said}"
    );
    assert_empty(&directory);

    let mut flipped = blob.clone();
    flipped[250_000] ^= 1;
    fs::write(&stored, &flipped).unwrap();
    let said = pull().await;
    assert!(
        said.contains(&format!(
            "the blob has the digest {}, not {}",
            Digest::of(&flipped),
            Digest::of(&blob)
        )),
        "{said}"
    );
    assert_empty(&directory);

    fs::remove_file(&stored).unwrap();
    let said = pull().await;
    assert!(said.contains("it does not have it"), "{said}");
    assert_empty(&directory);

    fs::write(&stored, &blob).unwrap();
    puller
        .pull(&resolved, &store, &Limits::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn hostile_images_are_refused_and_leave_nothing() {
    let registry = Registry::start();
    let evil = |tar: TarBuilder| {
        let tar = tar.finish();
        let blob = gzip(&tar);
        vec![layer("ok", b"x"), (tar, blob)]
    };
    registry
        .push(
            "path",
            "amd64",
            &evil(TarBuilder::default().file("../../evil", b"x")),
        )
        .await;
    registry
        .push(
            "link",
            "amd64",
            &evil(
                TarBuilder::default()
                    .symlink("around", "around")
                    .file("around/evil", b"x"),
            ),
        )
        .await;
    registry
        .push(
            "bomb",
            "amd64",
            &evil(TarBuilder::default().file("zeros", &vec![0; 40 << 20])),
        )
        .await;
    let (_, wrong) = layer("a", b"one thing");
    registry
        .push("diff-id", "amd64", &[(b"another".to_vec(), wrong)])
        .await;
    let puller = puller(registry.settings());
    let (directory, store) = store();
    for (tag, expected) in [
        (
            ":path",
            "entry \"../../evil\" is refused: its name is refused: the path goes upwards",
        ),
        (
            ":link",
            "entry \"/around/evil\" cannot be unpacked: its path goes through more than 40 symbolic links",
        ),
        (
            ":bomb",
            "the layer unpacks to more than 200 times its packed size",
        ),
        (":diff-id", "but the image config says"),
    ] {
        let resolved = puller.resolve(&registry.reference(tag)).await.unwrap();
        let limits = Limits {
            ratio_from: 32 << 20,
            ..Limits::default()
        };
        let said = chain(&puller.pull(&resolved, &store, &limits).await.unwrap_err());
        assert!(said.contains(expected), "{said}");
        assert_empty(&directory);
    }
    let small = Limits {
        unpacked_bytes: 10,
        ..Limits::default()
    };
    let resolved = puller.resolve(&registry.reference(":path")).await.unwrap();
    let error = puller.pull(&resolved, &store, &small).await.unwrap_err();
    assert!(
        matches!(error, PullError::TooLarge { limit: 10, .. }),
        "{error}"
    );
}

/// Passes bytes on to the registry, and cuts the first connections off after so many bytes of an answer.
fn flaky_proxy(registry: u16, cuts: usize, after: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let left = Arc::new(AtomicUsize::new(cuts));
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", registry)).unwrap();
            let left = Arc::clone(&left);
            std::thread::spawn(move || {
                let mut upstream = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut upstream.0, &mut upstream.1));
                let mut passed = 0;
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = server.read(&mut buffer) {
                    passed += count;
                    let cut = passed > after
                        && left
                            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
                            .is_ok();
                    if cut || client.write_all(&buffer[..count]).is_err() {
                        break;
                    }
                }
                // Either may be closed already.
                let _ = client.shutdown(std::net::Shutdown::Both);
                let _ = server.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    port
}

#[tokio::test]
async fn broken_downloads_are_resumed() {
    let registry = Registry::start();
    registry
        .push("v1", "amd64", &[layer("b", &noise(1_000_000))])
        .await;
    let settings = |port| mirrored(&registry.host(), &[&format!("http://127.0.0.1:{port}")]);
    let (directory, store) = store();

    // Cut at 300 kB each time: without resuming, the whole never comes through.
    let flaky = puller(settings(flaky_proxy(registry.port, 3, 300_000)));
    let resolved = flaky.resolve(&registry.reference(":v1")).await.unwrap();
    let image = flaky
        .pull(&resolved, &store, &Limits::default())
        .await
        .unwrap();
    assert_eq!(
        fs::read(image.rootfs().join("b")).unwrap(),
        noise(1_000_000)
    );
    store.remove(image.digest()).await.unwrap();

    // Not a byte further any more: given up after the allowed attempts, and said why.
    let dead = puller(settings(flaky_proxy(registry.port, usize::MAX, 2_000)));
    let error = dead
        .pull(&resolved, &store, &Limits::default())
        .await
        .unwrap_err();
    assert!(error.is_unreachable());
    let said = chain(&error);
    assert!(
        said.contains("reading the blob failed") && said.contains("broke"),
        "{said}"
    );
    assert_empty(&directory);
}

#[tokio::test]
async fn a_pull_that_is_given_up_leaves_nothing() {
    let registry = Registry::start();
    registry
        .push("v1", "amd64", &[layer("b", &noise(3_000_000))])
        .await;
    let puller = puller(registry.settings());
    let (directory, store) = store();
    let resolved = puller.resolve(&registry.reference(":v1")).await.unwrap();
    let started = tokio::sync::Notify::new();
    let notify = |_: Progress| started.notify_one();
    let limits = Limits::default();
    tokio::select! {
        _ = puller.pull_with_progress(&resolved, &store, &limits, &notify) => panic!("not that fast"),
        () = started.notified() => {}
    }
    assert_empty(&directory);
}

#[tokio::test]
async fn mirrors_are_tried_in_order_and_all_failures_are_told() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"x")]).await;
    let dead = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let (dead, alive) = (
        format!("http://{dead}"),
        format!("http://{}", registry.host()),
    );
    let reference: ImageReference = "registry.example/app:v1".parse().unwrap();
    let resolved = puller(mirrored("registry.example", &[&dead, &alive]))
        .resolve(&reference)
        .await
        .unwrap();
    assert_eq!(resolved.reference, reference);
    let any = puller(mirrored("*", &[&dead, &alive]));
    any.resolve(&reference).await.unwrap();
    let missing: ImageReference = "registry.example/app:v9".parse().unwrap();
    let said = chain(&any.resolve(&missing).await.unwrap_err());
    assert!(
        said.contains("connecting to") && said.contains("MANIFEST_UNKNOWN"),
        "{said}"
    );
    let nobody = puller(mirrored("registry.example", &[]));
    let said = chain(&nobody.resolve(&reference).await.unwrap_err());
    assert!(said.contains("there is nobody to ask"), "{said}");
    // Without a mirror that says http://, a registry is spoken to over TLS only.
    let said = chain(
        &puller(Registries::default())
            .resolve(&registry.reference(":v1"))
            .await
            .unwrap_err(),
    );
    assert!(said.contains("the TLS handshake with"), "{said}");
}

/// An authority of tests with a certificate for a registry and one for a client, and the registry that asks for both, and a password.
struct LockedRegistry {
    registry: Registry,
    /// What lets a client in: the authority and its own certificate.
    tls: HostTls,
    _files: tempfile::TempDir,
}

impl LockedRegistry {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::new(Vec::<String>::new()).unwrap();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = rcgen::CertifiedIssuer::self_signed(ca, key).unwrap();
        let leaf = |name: &str, usage| {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
            params.extended_key_usages = vec![usage];
            let certificate = params.signed_by(&key, &ca).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let server = leaf("127.0.0.1", rcgen::ExtendedKeyUsagePurpose::ServerAuth);
        let client = leaf("node", rcgen::ExtendedKeyUsagePurpose::ClientAuth);
        let files = tempfile::tempdir().unwrap();
        let registry = Self::start(files.path(), &ca.pem(), &server);
        let (certificate, key) = client;
        let tls = HostTls {
            ca: Some(ca.pem()),
            client_identity: Some(ClientIdentity {
                certificate,
                key: Secret::new(key),
            }),
            insecure_skip_verify: false,
        };
        Self {
            registry,
            tls,
            _files: files,
        }
    }

    fn start(directory: &Path, ca: &str, (certificate, key): &(String, String)) -> Registry {
        let put = |name: &str, content: &str| {
            let path = directory.join(name);
            fs::write(&path, content).unwrap();
            path
        };
        // bcrypt of "hunter2", as `htpasswd -B` writes it.
        let htpasswd = put(
            "htpasswd",
            "bob:$2b$05$abcdefghijklmnopqrstuuoXuKqgZXLiJqzfmMXDDhSFPIvxV7t8.\n",
        );
        let certificate = put("server.pem", certificate);
        let key = put("server.key", key);
        let authority = put("ca.pem", ca);
        let tls = json!({"certificate": certificate, "key": key, "clientcas": [authority]});
        Registry::with(json!({ "tls": tls }), Some(&htpasswd))
    }

    /// What a client is told that comes with these.
    async fn refusal(&self, tls: HostTls, password: Option<&str>) -> String {
        let host = self.registry.host();
        let auth = password.map(|password| RegistryAuth::Password {
            username: "bob".into(),
            password: Secret::new(password),
        });
        let settings = Registries {
            trust: Trust {
                hosts: [(host.clone(), tls)].into(),
                ..Trust::default()
            },
            auth: auth.map(|auth| (host, auth)).into_iter().collect(),
            ..Registries::default()
        };
        let reference = self.registry.reference(":v1");
        chain(&puller(settings).resolve(&reference).await.unwrap_err())
    }
}

#[tokio::test]
async fn tls_client_certificates_and_passwords() {
    let locked = LockedRegistry::new();
    let tls = || locked.tls.clone();
    // All is right: the registry gets as far as looking for the image, which it does not have.
    let said = locked.refusal(tls(), Some("hunter2")).await;
    assert!(said.contains("MANIFEST_UNKNOWN"), "{said}");
    let said = locked.refusal(tls(), Some("wrong")).await;
    assert!(said.contains("it refuses access (UNAUTHORIZED"), "{said}");
    let said = locked.refusal(tls(), None).await;
    assert!(said.contains("it refuses access"), "{said}");
    let unknown_authority = HostTls { ca: None, ..tls() };
    let said = locked.refusal(unknown_authority, None).await;
    assert!(
        said.contains("certificate") || said.contains("no certificate authority"),
        "{said}"
    );
    let anybody = HostTls {
        ca: None,
        insecure_skip_verify: true,
        ..tls()
    };
    let said = locked.refusal(anybody, Some("hunter2")).await;
    assert!(said.contains("MANIFEST_UNKNOWN"), "{said}");
    let unknown_client = HostTls {
        client_identity: None,
        ..tls()
    };
    let said = locked.refusal(unknown_client, Some("hunter2")).await;
    assert!(
        said.contains("broke") || said.contains("handshake"),
        "{said}"
    );
}

/// A server that answers every request in its own way and remembers it, headers included.
fn scripted(
    answer: impl Fn(&str, &str) -> String + Send + 'static,
) -> (String, Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let requests = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (seen, own) = (Arc::clone(&requests), host.clone());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && client.read(&mut byte).unwrap() == 1 {
                request.push(byte[0]);
            }
            let request = String::from_utf8(request).unwrap();
            let head = answer(&own, request.split(' ').nth(1).unwrap());
            seen.lock().unwrap().push(request);
            write!(client, "HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").unwrap();
        }
    });
    (host, requests)
}

#[tokio::test]
async fn credentials_are_for_the_endpoint_alone() {
    // Where the endpoint sends us asks for a token, from itself, and for a password.
    for scheme in ["Bearer", "Basic"] {
        let (thief, asked) = scripted(move |own, _| {
            let challenge = format!("{scheme} realm=\"http://{own}/token\"");
            format!("401 Unauthorized\r\nContent-Length: 0\r\nWWW-Authenticate: {challenge}")
        });
        let to = thief.clone();
        let (endpoint, at_endpoint) = scripted(move |_, target| match target {
            "/v2/app/manifests/basic?ns=r.example" => {
                "401 Unauthorized\r\nContent-Length: 0\r\nWWW-Authenticate: Basic realm=\"x\""
                    .to_owned()
            }
            _ => format!(
                "307 Temporary Redirect\r\nContent-Length: 0\r\nLocation: http://{to}/there"
            ),
        });
        for auth in [
            RegistryAuth::Password {
                username: "bob".into(),
                password: Secret::new("hunter2"),
            },
            RegistryAuth::IdentityToken(Secret::new("hunter2")),
        ] {
            let settings = Registries {
                auth: [(endpoint.clone(), auth.clone()), (thief.clone(), auth)].into(),
                ..mirrored("r.example", &[&format!("http://{endpoint}")])
            };
            let puller = puller(settings);
            let resolve = async |tag: &str| {
                let reference: ImageReference = format!("r.example/app:{tag}").parse().unwrap();
                puller.resolve(&reference).await.unwrap_err()
            };
            let error = resolve("v1").await;
            assert!(!error.is_unreachable());
            let said = chain(&error);
            assert!(
                said.contains(&format!("it redirects to {thief}, which refuses access")),
                "{said}"
            );
            // The endpoint itself may ask.
            resolve("basic").await;
        }
        let asked = asked.lock().unwrap();
        assert!(!asked.is_empty());
        for request in asked.iter() {
            assert!(
                request.starts_with("GET /there ") && !request.contains("uthorization"),
                "{request}"
            );
        }
        let at_endpoint = at_endpoint.lock().unwrap();
        assert!(
            at_endpoint
                .iter()
                .any(|request| request.to_lowercase().contains("authorization: basic "))
        );
    }
}
