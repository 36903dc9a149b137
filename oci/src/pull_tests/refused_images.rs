//! Images that are damaged or made to do harm.

use std::fs;

use instar_base::error_chain::chain;
use instar_values::Digest;

use super::pulling::{assert_empty, layer, noise, puller, store, store_without_blobs};
use super::registry::Registry;
use crate::unpack::test_tar::{TarBuilder, gzip};
use crate::{Limits, PullError};

#[tokio::test]
async fn damaged_blobs_are_refused_and_leave_nothing() {
    let registry = Registry::start();
    let (tar, blob) = layer("b", &noise(500_000));
    registry
        .push("v1", "amd64", &[layer("a", b"lower"), (tar, blob.clone())])
        .await;
    let puller = puller(registry.settings());
    let (directory, store) = store_without_blobs();
    let resolved = puller.look_up(&registry.reference(":v1")).await.unwrap();
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
        let resolved = puller.look_up(&registry.reference(tag)).await.unwrap();
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
    let resolved = puller.look_up(&registry.reference(":path")).await.unwrap();
    let error = puller.pull(&resolved, &store, &small).await.unwrap_err();
    assert!(
        matches!(error, PullError::TooLarge { limit: 10, .. }),
        "{error}"
    );
}
