//! Images by their names: tags, digests, platforms.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};

use instar_base::error_chain::chain;
use instar_values::Digest;
use serde_json::json;

use super::pulling::{layer, noise, puller, store};
use super::registry::Registry;
use crate::{Limits, Progress};

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

    let by_tag = puller.look_up(&registry.reference(":v1")).await.unwrap();
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
    let by_digest = puller.look_up(&reference).await.unwrap();
    assert_eq!(by_digest.layers, by_tag.layers);
    // The image is in the store: nothing is transferred again, even without a registry.
    drop(registry);
    let again = puller
        .pull(&by_digest, &store, &Limits::default())
        .await
        .unwrap();
    assert_eq!(again.names().len(), 2);
    assert_eq!(store.list().unwrap(), [again.into_inner()]);
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
