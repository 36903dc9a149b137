//! The temporary registry over real connections, with images of a real store.
#![allow(clippy::unwrap_used)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use http_body_util::BodyExt as _;
use tempfile::TempDir;

use super::*;
use crate::containers::registry_for_tests::SignedRegistry;
use crate::oci::{ImageStore, Keeps, Limits, Policy, Puller, Receiving, import, local_image};
use crate::trust::OwnCertificates;
use crate::values::{Digest, ImageReference};

/// A store with one image, whose layer has some pieces.
struct Subject {
    directory: TempDir,
    store: ImageStore,
    name: ImageReference,
    manifest: Digest,
    layer: Digest,
    content: Vec<u8>,
}

fn put(store: &ImageStore, content: &[u8]) -> Digest {
    let (digest, size) = (Digest::of(content), content.len() as u64);
    let blobs = store.blobs().unwrap();
    let Some(Receiving::Missing(mut incoming)) = blobs.try_receive(digest, size).unwrap() else {
        return digest;
    };
    incoming.write(content).unwrap();
    incoming.commit().unwrap();
    digest
}

fn layer() -> Vec<u8> {
    let file: Vec<u8> = (0..300_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(file.len() as u64);
    header.set_mode(0o644);
    archive
        .append_data(&mut header, "file", file.as_slice())
        .unwrap();
    archive.into_inner().unwrap()
}

impl Subject {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
        let content = layer();
        let layer = put(&store, &content);
        let config = format!(
            "{{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[\"{layer}\"]}}}}"
        );
        let size = config.len();
        let config = put(&store, config.as_bytes());
        let manifest = format!(
            "{{\"schemaVersion\":2,\"config\":{{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"{config}\",\"size\":{size}}},\"layers\":[{{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\"digest\":\"{layer}\",\"size\":{}}}]}}",
            content.len()
        );
        let manifest = put(&store, manifest.as_bytes());
        let name: ImageReference = "r.io/site/web:v1".parse().unwrap();
        let resolved = local_image::resolve(&store.blobs().unwrap(), &name, manifest).unwrap();
        let puller = Puller::new(Arc::default(), Policy::default());
        let verified = puller.verify(resolved).await.unwrap();
        import(&verified, &store, &Limits::default()).await.unwrap();
        Subject {
            directory,
            store,
            name,
            manifest,
            layer,
            content,
        }
    }

    fn offer(&self) -> Offer {
        let mut offer = Offer::of(self.store.blobs().unwrap());
        let image = self.store.get(self.manifest).unwrap();
        offer.add(&self.name, image).unwrap();
        offer
    }

    fn blob_file(&self) -> PathBuf {
        let blobs = self.directory.path().join("blobs/sha256");
        blobs.join(self.layer.hex())
    }
}

/// An answer: the head, and the body as far as it came.
struct Answer {
    head: String,
    body: Vec<u8>,
}

async fn ask(at: SocketAddr, method: &str, path: &str, more: &str) -> Answer {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: r\r\nConnection: close\r\n{more}\r\n");
    let asked = tokio::task::spawn_blocking(move || {
        let mut connection = TcpStream::connect(at).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut all = Vec::new();
        // A connection that breaks off has sent what it has sent.
        let _ = connection.read_to_end(&mut all);
        all
    });
    let all = asked.await.unwrap();
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    Answer {
        head: String::from_utf8_lossy(&all[..end]).to_lowercase(),
        body: all[end + 4..].to_vec(),
    }
}

fn anywhere() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

const AN_HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn documents_and_blobs_are_served_and_nothing_else() {
    let subject = Subject::new().await;
    let (registry, store) = (TemporaryRegistry::default(), Store::default());
    let at = registry
        .serve(&store, subject.offer(), anywhere(), AN_HOUR, None)
        .unwrap();
    assert!(ask(at, "GET", "/v2/", "").await.head.contains("200 ok"));
    let by_tag = ask(at, "GET", "/v2/site/web/manifests/v1?ns=r.io", "").await;
    assert_eq!(Digest::of(&by_tag.body), subject.manifest);
    assert!(
        by_tag
            .head
            .contains("content-type: application/vnd.oci.image.manifest.v1+json")
    );
    let named = format!("docker-content-digest: {}", subject.manifest);
    assert!(by_tag.head.contains(&named), "{}", by_tag.head);
    let path = format!("/v2/site/web/blobs/{}", subject.layer);
    assert!(ask(at, "GET", &path, "").await.body == subject.content);
    let head = ask(at, "HEAD", &path, "").await;
    let length = format!("content-length: {}", subject.content.len());
    assert!(
        head.head.contains(&length) && head.body.is_empty(),
        "{}",
        head.head
    );
    let part = ask(at, "GET", &path, "Range: bytes=70000-\r\n").await;
    assert!(part.head.contains("206") && part.body == subject.content[70_000..]);
    let part = ask(at, "GET", &path, "Range: bytes=5-9\r\n").await;
    assert_eq!(part.body, subject.content[5..10]);
    let other = put(&subject.store, b"another blob");
    for path in [
        "/v2/site/web/manifests/v2".to_owned(),
        "/v2/web/manifests/v1".to_owned(),
        "/v2/_catalog".to_owned(),
        format!("/v2/site/web/blobs/{other}"),
        format!("/v2/site/web/manifests/{other}"),
    ] {
        let answer = ask(at, "GET", &path, "").await;
        assert!(answer.head.contains("404"), "{path}: {}", answer.head);
    }
    for method in ["PUT", "POST", "DELETE", "PATCH"] {
        let answer = ask(at, method, "/v2/site/web/blobs/uploads/", "").await;
        assert!(answer.head.contains("405"), "{method}: {}", answer.head);
    }
}

/// Only the index is signed.
#[tokio::test]
async fn a_machine_whose_rules_want_a_signature_has_it_from_here() {
    let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
    let web = registry.push("site/web:v1", "web");
    let images = ImageStore::new(directory.path().join("one"), Keeps::Blobs);
    let puller = registry.puller();
    let resolved = puller.resolve(&web.name).await.unwrap();
    let verified = puller.verify(resolved).await.unwrap();
    let limits = Limits::default();
    puller.pull(&verified, &images, &limits).await.unwrap();
    let mut offer = Offer::of(images.blobs().unwrap());
    offer
        .add(&web.name, images.get(web.manifest).unwrap())
        .unwrap();
    assert_eq!(offer.names(), ["site/web:v1"]);
    let (served, store) = (TemporaryRegistry::default(), Store::default());
    let at = served
        .serve(&store, offer, anywhere(), AN_HOUR, None)
        .unwrap();
    let tags = ask(at, "GET", "/v2/site/web/tags/list?n=100", "").await;
    let tags: serde_json::Value = serde_json::from_slice(&tags.body).unwrap();
    let signature = format!("sha256-{}.sig", web.index.hex());
    let expected = serde_json::json!({"name": "site/web", "tags": ["v1", signature]});
    assert_eq!(tags, expected);
    let other = ask(at, "GET", "/v2/site/other/tags/list", "").await;
    assert!(other.head.contains("404"), "{}", other.head);

    let puller = registry.puller_at(at);
    drop(registry);
    let images = ImageStore::new(directory.path().join("other"), Keeps::Blobs);
    let resolved = puller.resolve(&web.name).await.unwrap();
    let verified = puller.verify(resolved).await.unwrap();
    let pulled = puller.pull(&verified, &images, &limits).await.unwrap();
    assert_eq!(pulled.digest(), web.manifest);
}

#[tokio::test]
async fn a_damaged_blob_is_not_served_to_its_end() {
    let subject = Subject::new().await;
    let offer = subject.offer();
    let mut damaged = std::fs::read(subject.blob_file()).unwrap();
    // In the first piece: by then most of it could have been sent.
    damaged[600] ^= 4;
    let (registry, store) = (TemporaryRegistry::default(), Store::default());
    let at = registry
        .serve(&store, offer, anywhere(), AN_HOUR, None)
        .unwrap();
    let path = format!("/v2/site/web/blobs/{}", subject.layer);
    for range in ["", "Range: bytes=0-4\r\n", "Range: bytes=900000-\r\n"] {
        std::fs::write(subject.blob_file(), &damaged).unwrap();
        let answer = ask(at, "GET", &path, range).await;
        let announced = answer.head.split("content-length: ").nth(1).unwrap();
        let announced: usize = announced.lines().next().unwrap().trim().parse().unwrap();
        assert!(answer.body.len() < announced, "{range:?} has come whole");
        // The next pull of an image with it brings it whole.
        assert!(!subject.blob_file().exists(), "{range:?}: it stays");
    }
    let answer = ask(at, "GET", &path, "").await;
    assert!(answer.head.contains("404"), "{}", answer.head);
}

/// Lets the registry's task run until this is so, for as long as a busy host may need.
async fn becomes(is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < until, "it is as before");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn it_ends_with_its_time_or_by_a_call_and_there_is_one() {
    let subject = Subject::new().await;
    let (registry, store) = (TemporaryRegistry::default(), Store::default());
    let shown = || store.list::<TemporaryRegistryFact>();
    let (soon, began) = (Duration::from_millis(300), Instant::now());
    let at = registry
        .serve(&store, subject.offer(), anywhere(), soon, None)
        .unwrap();
    becomes(|| !shown().is_empty()).await;
    assert_eq!(shown()[0].1.images, ["site/web:v1"]);
    let busy = registry.serve(&store, subject.offer(), anywhere(), AN_HOUR, None);
    assert!(matches!(busy, Err(CannotServe::Busy(address)) if address == at));
    becomes(|| shown().is_empty()).await;
    assert!(began.elapsed() >= soon, "it ended before its time");
    assert!(registry.stop().is_none() && TcpStream::connect(at).is_err());

    let at = registry
        .serve(&store, subject.offer(), anywhere(), AN_HOUR, None)
        .unwrap();
    assert_eq!(registry.stop(), Some(at));
    becomes(|| shown().is_empty() && TcpStream::connect(at).is_err()).await;
    let taken = std::net::TcpListener::bind(anywhere()).unwrap();
    let taken = taken.local_addr().unwrap();
    let refused = registry.serve(&store, subject.offer(), taken, AN_HOUR, None);
    assert!(matches!(refused, Err(CannotServe::Listen { .. })));
}

/// The body of an answer over TLS, for a client that trusts this authority.
fn ask_over_tls(at: SocketAddr, authority: &[u8], path: &str) -> io::Result<Vec<u8>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.to_vec().into()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "node-1".try_into().unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(at)?);
    let request = format!("GET {path} HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut all = Vec::new();
    // The server may close the connection without an end of TLS.
    let _ = stream.read_to_end(&mut all);
    let end = all.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    Ok(all.split_off(end + 4))
}

#[tokio::test]
async fn with_tls_it_shows_the_certificate_of_the_nodes_api() {
    let subject = Subject::new().await;
    let (own, other) = (OwnCertificates::for_tests(), OwnCertificates::for_tests());
    let (registry, store) = (TemporaryRegistry::default(), Store::default());
    let tls = Some(own.server_config().unwrap());
    let at = registry
        .serve(&store, subject.offer(), anywhere(), AN_HOUR, tls)
        .unwrap();
    let path = format!("/v2/site/web/blobs/{}", subject.layer);
    let (known, unknown, asked) = tokio::task::spawn_blocking(move || {
        let known = ask_over_tls(at, own.authority(), &path).unwrap();
        let unknown = ask_over_tls(at, other.authority(), &path);
        (known, unknown, TcpStream::connect(at))
    })
    .await
    .unwrap();
    assert!(known == subject.content);
    let unknown = unknown.unwrap_err().to_string();
    assert!(unknown.contains("certificate"), "{unknown}");
    let mut plain = asked.unwrap();
    plain.write_all(b"GET /v2/ HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let reading = tokio::task::spawn_blocking(move || {
        // What came before the connection was ended is read.
        let _ = plain.read_to_end(&mut answer);
        answer
    });
    let answer = reading.await.unwrap();
    assert!(!answer.starts_with(b"HTTP"), "it answers without TLS");
}

/// Sends a request, and hangs up once the head of the answer is here.
fn ask_and_hang_up(at: SocketAddr, path: &str, range: &str) -> String {
    let mut connection = TcpStream::connect(at).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: r\r\nRange: {range}\r\n\r\n");
    connection.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

fn is_open(file: &Path) -> bool {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    // Other tests open and close files meanwhile.
    let mut open = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    open.any(|link| link == file)
}

/// Its blob would be read for hours.
#[tokio::test]
async fn nothing_more_is_read_for_a_client_that_is_gone() {
    let subject = Subject::new().await;
    let (registry, store) = (TemporaryRegistry::default(), Store::default());
    let at = registry
        .serve(&store, subject.offer(), anywhere(), AN_HOUR, None)
        .unwrap();
    let blob = subject.blob_file();
    let file = std::fs::File::options().write(true).open(&blob).unwrap();
    file.set_len(1 << 40).unwrap();
    drop(file);
    let path = format!("/v2/site/web/blobs/{}", subject.layer);
    let asking = move || ask_and_hang_up(at, &path, "bytes=0-0");
    let head = tokio::task::spawn_blocking(asking).await.unwrap();
    assert!(head.contains("206"), "{head}");
    becomes(|| !is_open(&blob)).await;
}

#[tokio::test]
async fn of_a_blob_that_was_compared_only_the_part_is_read() {
    let subject = Subject::new().await;
    let (registry, store) = (TemporaryRegistry::default(), Store::default());
    let at = registry
        .serve(&store, subject.offer(), anywhere(), AN_HOUR, None)
        .unwrap();
    let path = format!("/v2/site/web/blobs/{}", subject.layer);
    assert!(ask(at, "GET", &path, "").await.body == subject.content);
    // It would break off if it was read from its beginning.
    let file = std::fs::File::options()
        .write(true)
        .open(subject.blob_file())
        .unwrap();
    file.write_all_at(b"!", 600).unwrap();
    for (range, expected) in [
        ("bytes=900000-", &subject.content[900_000..]),
        ("bytes=700-800000", &subject.content[700..=800_000]),
    ] {
        let part = ask(at, "GET", &path, &format!("Range: {range}\r\n")).await;
        assert!(
            part.head.contains("206") && part.body == expected,
            "{range}"
        );
    }
    // The whole is compared each time.
    let whole = ask(at, "GET", &path, "").await;
    assert!(whole.body.len() < subject.content.len());
}

/// A client that hears nothing for long hangs up, and asks for its part again.
#[tokio::test]
async fn a_comparison_goes_on_for_a_client_that_comes_back() {
    let subject = Subject::new().await;
    let blobs = subject.store.blobs().unwrap();
    let compared = blob::Compared::default();
    let size = subject.content.len() as u64;
    let ask = || {
        let blob = blobs.open(subject.layer).unwrap().unwrap();
        blob::body(blob, size - 5..size, compared.clone(), |_| {})
    };
    let body = ask();
    // The first piece is being read when the client goes.
    tokio::task::yield_now().await;
    drop(body);
    becomes(|| compared.is_halfway()).await;
    // It would break off if it was read from its beginning.
    let file = std::fs::File::options()
        .write(true)
        .open(subject.blob_file())
        .unwrap();
    file.write_all_at(b"!", 600).unwrap();
    let part = ask().collect().await.unwrap().to_bytes();
    assert_eq!(part, subject.content[subject.content.len() - 5..]);
    assert!(!compared.is_halfway());
}

/// Two registries have an image of the same name.
#[tokio::test]
async fn an_image_is_not_served_as_that_of_another_registry() {
    let subject = Subject::new().await;
    let blobs = subject.store.blobs().unwrap();
    let layer = subject.layer;
    let config = format!(
        "{{\"architecture\":\"amd64\",\"os\":\"linux\",\"author\":\"other\",\"rootfs\":{{\"type\":\"layers\",\"diff_ids\":[\"{layer}\"]}}}}"
    );
    let size = config.len();
    let config = put(&subject.store, config.as_bytes());
    let manifest = format!(
        "{{\"schemaVersion\":2,\"config\":{{\"mediaType\":\"application/vnd.oci.image.config.v1+json\",\"digest\":\"{config}\",\"size\":{size}}},\"layers\":[{{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar\",\"digest\":\"{layer}\",\"size\":{}}}]}}",
        subject.content.len()
    );
    let other = put(&subject.store, manifest.as_bytes());
    let name: ImageReference = "other.io/site/web:v1".parse().unwrap();
    let resolved = local_image::resolve(&blobs, &name, other).unwrap();
    let puller = Puller::new(Arc::default(), Policy::default());
    let verified = puller.verify(resolved).await.unwrap();
    let image = import(&verified, &subject.store, &Limits::default()).await;
    let mut offer = subject.offer();
    offer.add(&name, image.unwrap().into_inner()).unwrap();
    assert_eq!(offer.names(), ["other.io/site/web:v1", "r.io/site/web:v1"]);
    let (registry, store) = (TemporaryRegistry::default(), Store::default());
    let at = registry
        .serve(&store, offer, anywhere(), AN_HOUR, None)
        .unwrap();
    let path = "/v2/site/web/manifests/v1";
    for (registry, digest) in [("r.io", subject.manifest), ("other.io", other)] {
        let by_tag = ask(at, "GET", &format!("{path}?ns={registry}"), "").await;
        assert_eq!(Digest::of(&by_tag.body), digest);
    }
    let third = ask(at, "GET", &format!("{path}?ns=third.io"), "").await;
    assert!(third.head.contains("404"), "{}", third.head);
    let refused = ask(at, "GET", path, "").await;
    assert!(refused.head.contains("404"), "{}", refused.head);
    let reason = String::from_utf8(refused.body).unwrap();
    assert!(
        reason.contains("images of other.io and r.io have"),
        "{reason}"
    );
    let by_digest = ask(at, "GET", &format!("/v2/site/web/manifests/{other}"), "").await;
    assert_eq!(Digest::of(&by_digest.body), other);
}
