//! Mirrors of a registry.

use std::net::TcpListener;

use instar_base::error_chain::chain;
use instar_values::ImageReference;

use super::pulling::{layer, puller};
use super::registry::{Registry, mirrored};
use crate::Registries;

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
