//! Blobs that stay in the store: fetched once, continued, and not believed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use instar_values::Digest;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::pulling::{layer, noise, puller, store};
use super::registry::Registry;
use crate::store::Urgency;
use crate::unpack::test_tar::TarBuilder;
use crate::{
    ImageStore, Keeps, Limits, Pace, Progress, PullError, Puller, VerifiedImage, import,
    local_image,
};

fn whole(store: &Path, blob: &[u8]) -> PathBuf {
    whole_of(store, Digest::of(blob))
}

fn whole_of(store: &Path, digest: Digest) -> PathBuf {
    store.join("blobs/sha256").join(digest.hex())
}

fn partial(store: &Path, blob: &[u8]) -> PathBuf {
    store.join("blobs/partial").join(Digest::of(blob).hex())
}

/// Pulls an image; returns it, and the progress that was reported last.
async fn pull(
    puller: &Puller,
    store: &ImageStore,
    name: &instar_values::ImageReference,
) -> Result<(VerifiedImage, u64), PullError> {
    let last = AtomicU64::new(0);
    let progress = |at: Progress| last.store(at.bytes, Ordering::SeqCst);
    let resolved = puller.look_up(name).await?;
    let image = puller
        .pull_with_progress(&resolved, store, &Limits::default(), &progress)
        .await?;
    Ok((image, last.into_inner()))
}

#[tokio::test]
async fn all_blobs_stay_and_a_shared_base_is_fetched_once() {
    let registry = Registry::start();
    let (base, own, other) = (
        layer("base", &noise(200_000)),
        layer("own", b"own"),
        layer("other", b"other"),
    );
    registry
        .push("v1", "amd64", &[base.clone(), own.clone()])
        .await;
    registry
        .push("v2", "amd64", &[base.clone(), other.clone()])
        .await;
    let (directory, store) = store();
    let puller = puller(registry.settings());
    let (first, bytes) = pull(&puller, &store, &registry.reference(":v1"))
        .await
        .unwrap();
    assert_eq!(bytes, (base.1.len() + own.1.len()) as u64);
    for blob in [&base.1, &own.1] {
        assert_eq!(fs::read(whole(directory.path(), blob)).unwrap(), *blob);
    }
    let blobs = store.blobs().unwrap();
    assert_eq!(blobs.list().unwrap().len(), 4, "manifest and config, too");
    assert!(blobs.list_partial().unwrap().is_empty());
    let resolved = local_image::resolve(&blobs, &registry.reference(":v1"), first.digest());
    let asked = puller.resolve(&registry.reference(":v1")).await.unwrap();
    assert_eq!(resolved.unwrap(), asked);

    // The registry has lost the base.
    fs::remove_file(registry.blob(&base.1)).unwrap();
    let (second, _) = pull(&puller, &store, &registry.reference(":v2"))
        .await
        .unwrap();
    assert_eq!(
        fs::read(second.rootfs().join("base")).unwrap(),
        noise(200_000)
    );
    assert_eq!(fs::read(second.rootfs().join("other")).unwrap(), b"other");
}

#[tokio::test]
async fn an_image_is_made_from_blobs_alone() {
    let registry = Registry::start();
    let layer = layer("file", b"content");
    registry
        .push("v1", "amd64", std::slice::from_ref(&layer))
        .await;
    let (_directory, store) = store();
    let puller = puller(registry.settings());
    let resolved = puller.look_up(&registry.reference(":v1")).await.unwrap();
    let missing = import(&resolved, &store, &Limits::default()).await;
    assert!(
        matches!(missing, Err(PullError::Layer { .. })),
        "{missing:?}"
    );
    pull(&puller, &store, &registry.reference(":v1"))
        .await
        .unwrap();
    drop(registry);
    let blobs = store.blobs().unwrap();
    let _held = blobs.hold(blobs.list().unwrap().iter().map(|file| file.digest));
    store.remove(resolved.digest()).await.unwrap();
    let image = import(&resolved, &store, &Limits::default()).await.unwrap();
    assert_eq!(fs::read(image.rootfs().join("file")).unwrap(), b"content");
}

fn paths_below(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::from([directory.to_owned()]);
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(paths_below(&entry.path())),
            false => _ = found.insert(entry.path()),
        }
    }
    found
}

#[tokio::test]
async fn a_partial_blob_is_continued() {
    let registry = Registry::start();
    let layer = layer("b", &noise(500_000));
    registry
        .push("v1", "amd64", std::slice::from_ref(&layer))
        .await;
    let (directory, store) = store();
    let puller = puller(registry.settings());
    fs::create_dir_all(directory.path().join("blobs/partial")).unwrap();
    fs::write(partial(directory.path(), &layer.1), &layer.1[..300_000]).unwrap();
    // The registry's first part is wrong: whoever asks for it gets another blob.
    let blob = File::options().write(true).open(registry.blob(&layer.1));
    blob.unwrap().write_all_at(&[0; 1000], 1000).unwrap();
    let (image, bytes) = pull(&puller, &store, &registry.reference(":v1"))
        .await
        .unwrap();
    assert_eq!(bytes, layer.1.len() as u64);
    assert_eq!(fs::read(image.rootfs().join("b")).unwrap(), noise(500_000));
    assert!(!partial(directory.path(), &layer.1).exists());
}

/// Blobs that are wrong at some place, as a power cut or a bad disk leaves them.
#[tokio::test]
async fn damaged_blobs_are_fetched_once_more() {
    let registry = Registry::start();
    let plain = TarBuilder::default().file("plain", &noise(5000)).finish();
    let layers = [layer("b", &noise(50_000)), (plain.clone(), plain.clone())];
    registry.push("v1", "amd64", &layers).await;
    let puller = puller(registry.settings());
    for place in [partial, whole] {
        for (_, blob) in &layers {
            // The beginning, the middle (of the plain archive, a file's content), the end.
            for position in [0, blob.len() / 2, blob.len() - 1] {
                let (directory, store) = store();
                let path = place(directory.path(), blob);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                let mut damaged = blob.clone();
                damaged[position] ^= 1;
                fs::write(&path, damaged).unwrap();
                let pulled = pull(&puller, &store, &registry.reference(":v1")).await;
                let (image, bytes) = pulled.unwrap();
                assert_eq!(fs::read(image.rootfs().join("b")).unwrap(), noise(50_000));
                assert_eq!(bytes, image.download_bytes());
                assert_eq!(fs::read(whole(directory.path(), blob)).unwrap(), *blob);
            }
        }
    }
}

#[tokio::test]
async fn a_registry_that_sends_another_content_is_asked_once_more_alone() {
    let registry = Registry::start();
    let layer = layer("b", &noise(50_000));
    registry
        .push("v1", "amd64", std::slice::from_ref(&layer))
        .await;
    let blob = File::options().write(true).open(registry.blob(&layer.1));
    blob.unwrap().write_all_at(&[0; 10], 30_000).unwrap();
    let (directory, store) = store();
    let path = partial(directory.path(), &layer.1);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, &layer.1[..100]).unwrap();
    let puller = puller(registry.settings());
    let refused = pull(&puller, &store, &registry.reference(":v1")).await;
    assert!(
        matches!(refused, Err(PullError::Layer { .. })),
        "{refused:?}"
    );
    assert!(store.blobs().unwrap().list().unwrap().is_empty());
    assert!(store.list().unwrap().is_empty());
    assert!(!path.exists(), "nothing wrong is continued");
}

#[tokio::test]
async fn a_store_in_memory_keeps_no_blobs() {
    let registry = Registry::start();
    let layers = [layer("a", &noise(100_000)), layer("b", &noise(100_000))];
    registry.push("v1", "amd64", &layers).await;
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::ImagesAlone);
    let puller = puller(registry.settings());
    let (image, _) = pull(&puller, &store, &registry.reference(":v1"))
        .await
        .unwrap();
    assert_eq!(fs::read(image.rootfs().join("b")).unwrap(), noise(100_000));
    assert!(store.blobs().is_none());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    let in_memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let on_var = ImageStore::new(in_memory.path().join("not/there"), Keeps::BlobsOnDisk);
    assert!(on_var.blobs().is_none());
}

/// Two images with the same layers in another order, at once: each waits for the other's transfer of a layer, and none for the other's
/// unpacking.
#[tokio::test]
async fn pulls_at_once_share_their_transfers() {
    let registry = Registry::start();
    let (a, b) = (layer("a", &noise(900_000)), layer("b", &noise(700_000)));
    registry.push("v1", "amd64", &[a.clone(), b.clone()]).await;
    registry.push("v2", "amd64", &[b, a]).await;
    let (_directory, store) = store();
    let puller = puller(registry.settings());
    let (first, second) = (registry.reference(":v1"), registry.reference(":v2"));
    let both = async {
        tokio::join!(
            pull(&puller, &store, &first),
            pull(&puller, &store, &second),
            pull(&puller, &store, &first)
        )
    };
    let (one, two, three) = timeout(Duration::from_secs(60), both).await.unwrap();
    assert_eq!(one.unwrap().0.digest(), three.unwrap().0.digest());
    two.unwrap();
    assert_eq!(store.blobs().unwrap().list().unwrap().len(), 6);
}

/// A pin is fetched at its bandwidth when somebody starts a container of the same image.
#[tokio::test]
async fn nobody_waits_for_the_bandwidth_of_another_pull() {
    let registry = Registry::start();
    let layer = layer("b", &noise(1_500_000));
    registry
        .push("v1", "amd64", std::slice::from_ref(&layer))
        .await;
    let (_directory, store) = store();
    let pace = Arc::new(Pace::default());
    // Alone it takes a minute and a half.
    pace.set(Some("16KiB/s".parse().unwrap()));
    let (slow, fast) = (
        puller(registry.settings()).at_pace(pace),
        puller(registry.settings()),
    );
    let resolved = slow.look_up(&registry.reference(":v1")).await.unwrap();
    let (has_begun, limits) = (Notify::new(), Limits::default());
    let progress = |_: Progress| has_begun.notify_one();
    let second = async {
        has_begun.notified().await;
        fast.pull(&resolved, &store, &limits).await
    };
    let both = async {
        tokio::join!(
            slow.pull_with_progress(&resolved, &store, &limits, &progress),
            second
        )
    };
    let (slow, fast) = timeout(Duration::from_secs(30), both).await.unwrap();
    assert_eq!(slow.unwrap().digest(), fast.unwrap().digest());
}

/// At a cold start all containers of a machine want their images.
#[tokio::test]
async fn pulls_take_turns() {
    let registry = Registry::start();
    for tag in ["v1", "v2"] {
        registry
            .push(tag, "amd64", &[layer("a", tag.as_bytes())])
            .await;
    }
    let (_directory, store) = store();
    let puller = puller(registry.settings());
    let resolved = puller.look_up(&registry.reference(":v1")).await.unwrap();
    let moment = Duration::from_millis(200);
    let mut others = Vec::new();
    while let Ok(turn) = timeout(moment, store.turn_to_pull()).await {
        others.push(turn.unwrap());
    }
    assert_eq!(others.len(), 4);
    let limits = Limits::default();
    let mut waiting = Box::pin(puller.pull(&resolved, &store, &limits));
    assert!(timeout(moment, &mut waiting).await.is_err());
    // Neither an upgrade nor a pull with a bandwidth waits for others, or has them wait.
    assert!(store.for_upgrade().turn_to_pull().await.is_none());
    let paced = super::pulling::puller(registry.settings()).at_pace(Arc::default());
    pull(&paced, &store, &registry.reference(":v2"))
        .await
        .unwrap();
    others.pop();
    waiting.await.unwrap();
    // One that is here takes no turn.
    others.push(store.turn_to_pull().await.unwrap());
    puller.pull(&resolved, &store, &limits).await.unwrap();
}

/// Upgrade after upgrade brings an image and removes it: nothing of it stays, be it a name in a directory.
#[tokio::test]
async fn blobs_go_with_the_last_image_that_needs_them() {
    let registry = Registry::start();
    let (base, own) = (
        layer("base", &noise(20_000)),
        layer("own", &noise(10_000)[1..]),
    );
    registry
        .push("v1", "amd64", std::slice::from_ref(&base))
        .await;
    registry
        .push("v2", "amd64", &[base.clone(), own.clone()])
        .await;
    let (directory, store) = store();
    let puller = puller(registry.settings());
    let first = pull(&puller, &store, &registry.reference(":v1")).await;
    let first = first.unwrap().0.digest();
    let before = paths_below(directory.path());
    let second = pull(&puller, &store, &registry.reference(":v2")).await;
    let second = second.unwrap().0.digest();
    let blobs = store.blobs().unwrap();
    let collect = |urgency| store.collect_surplus(urgency).unwrap();
    assert_eq!(collect(Urgency::LackOfRoom), 0, "all are needed");

    let held = blobs.hold([Digest::of(&own.1)]);
    store.remove(second).await.unwrap();
    assert_eq!(blobs.list().unwrap().len(), 4, "one is held");
    drop(held);
    assert!(collect(Urgency::Usual) > 9_000, "the shared file");
    assert!(collect(Urgency::LackOfRoom) > 0, "the blob was held");
    assert_eq!(paths_below(directory.path()), before);

    fs::write(partial(directory.path(), b"given up"), "given").unwrap();
    assert!(store.remove_unused(first).await.unwrap());
    assert!(blobs.list().unwrap().is_empty());
    assert_eq!(collect(Urgency::LackOfRoom), 20_000, "the shared file");
    assert!(blobs.list_partial().unwrap().is_empty());
    let objects = directory.path().join("objects");
    assert_eq!(paths_below(&objects), BTreeSet::from([objects]));
}
