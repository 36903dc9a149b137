//! Mirrors of a registry.

use std::net::TcpListener;
use std::time::Duration;

use instar_base::error_chain::chain;
use instar_values::ImageReference;
use tokio::time::timeout;

use super::pulling::{layer, puller, puller_with, store};
use super::registry::{Registry, mirrored};
use super::signatures::sign;
use crate::verification::test_signing::{Signer, payload};
use crate::{Limits, Registries};

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

/// Callers that have the image already ask for 10 s: the registry behind the mirror has to answer within them, about the image and its signature.
#[tokio::test]
async fn a_silent_mirror_keeps_nobody_from_the_registry_behind_it() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"x")]).await;
    let name = registry.reference(":v1");
    let alone = puller(registry.settings()).resolve(&name).await.unwrap();
    let signer = Signer::ecdsa();
    let signature = signer.simple(payload(alone.digest()));
    sign(&registry, alone.digest(), &[signature]).await;
    // It takes connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let urls = [
        format!("http://{}", silent.local_addr().unwrap()),
        format!("http://{}", registry.host()),
    ];
    let settings = mirrored(&registry.host(), &urls.each_ref().map(String::as_str));
    let puller = puller_with(settings, signer.policy());
    let (_directory, store) = store();
    let all = async {
        let verified = puller.look_up(&name).await.unwrap();
        let limits = Limits::default();
        puller.pull(&verified, &store, &limits).await.unwrap()
    };
    let pulled = timeout(Duration::from_secs(10), all).await.unwrap();
    assert_eq!(pulled.digest(), alone.digest());
}
