//! Pushes to Debian's docker-registry, started here on a free port.
#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use image::{
    container,
    oci::{
        layout,
        push::{Transport, push},
    },
};

struct Registry {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Registry {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let config = format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: {}}}}}\nhttp: {{addr: '127.0.0.1:{port}'}}\n",
            folder.path().join("blobs").display()
        );
        fs::write(folder.path().join("config.yml"), config).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(folder.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program docker-registry is needed: make deps");
        let deadline = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < deadline, "docker-registry does not answer");
            std::thread::sleep(Duration::from_millis(50));
        }
        Self {
            process,
            port,
            _folder: folder,
        }
    }

    /// Returns the answer to a GET of this path, head and body.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let accept = "application/vnd.oci.image.manifest.v1+json";
        write!(
            stream,
            "GET {path} HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n"
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }

    fn reference(&self, rest: &str) -> String {
        format!("localhost:{}/{rest}", self.port)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn layout_in(folder: &Path) -> layout::Image {
    let labels = BTreeMap::from([("purpose".to_owned(), "test".to_owned())]);
    let image = container::around(b"program", "/hello", vec!["--port=80".into()], labels).unwrap();
    layout::write(&image, folder).unwrap();
    image
}

#[tokio::test]
async fn a_pushed_image_can_be_pulled_by_tag() {
    let registry = Registry::start();
    let folder = tempfile::tempdir().unwrap();
    layout_in(folder.path());
    let reference = registry.reference("tests/hello:v1");
    let digest = push(folder.path(), &reference, Transport::PlainHttp)
        .await
        .unwrap();
    let answer = registry.get("/v2/tests/hello/manifests/v1");
    assert!(
        answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"),
        "{answer}"
    );
    assert!(answer.contains(&digest), "{answer}");
    // Once more, with every blob stored already.
    assert_eq!(
        push(folder.path(), &reference, Transport::PlainHttp)
            .await
            .unwrap(),
        digest
    );
}

#[tokio::test]
async fn a_damaged_layout_is_not_pushed() {
    let registry = Registry::start();
    let folder = tempfile::tempdir().unwrap();
    layout_in(folder.path());
    for blob in fs::read_dir(folder.path().join("blobs/sha256")).unwrap() {
        let path = blob.unwrap().path();
        if fs::read(&path).unwrap().starts_with(&[0x1f, 0x8b]) {
            fs::write(&path, "damaged").unwrap();
        }
    }
    let error = push(
        folder.path(),
        &registry.reference("tests/bad:v1"),
        Transport::PlainHttp,
    )
    .await
    .unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    assert!(registry.get("/v2/tests/bad/manifests/v1").contains(" 404 "));
}

#[tokio::test]
async fn nonsense_is_refused_before_the_network() {
    let folder = tempfile::tempdir().unwrap();
    push(folder.path(), "localhost:1/a:b", Transport::PlainHttp)
        .await
        .unwrap_err();
    layout_in(folder.path());
    push(folder.path(), "not a reference", Transport::PlainHttp)
        .await
        .unwrap_err();
    let error = push(folder.path(), "localhost:1/a:b", Transport::PlainHttp)
        .await
        .unwrap_err();
    assert!(format!("{error:#}").contains("localhost:1"), "{error:#}");
}
