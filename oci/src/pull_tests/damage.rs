//! Images that a disk has damaged: found before they run, and made again.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use instar_values::ImageReference;

use super::pulling::{layer, noise, puller, store};
use super::registry::Registry;
use crate::{ImageStore, Keeps, Limits, PulledImage, Puller, Urgency, Wholeness};

const SIZE: usize = 20_000;

/// The store in another boot: nothing is known about its images.
fn next_boot(directory: &tempfile::TempDir) -> ImageStore {
    ImageStore::new(directory.path().to_owned(), Keeps::Blobs)
}

/// Flips a bit of a file, and leaves its time as it is, as a disk does.
fn flip(path: &Path, position: u64) {
    let time = fs::metadata(path).unwrap().modified().unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).unwrap();
    file.write_all_at(&[byte[0] ^ 4], position).unwrap();
    file.set_modified(time).unwrap();
}

async fn pull(puller: &Puller, store: &ImageStore, name: &ImageReference) -> PulledImage {
    let resolved = puller.look_up(name).await.unwrap();
    let pulled = puller.pull(&resolved, store, &Limits::default()).await;
    pulled.unwrap().into_inner()
}

/// An image in a store, and the registry that it was pulled from.
struct Pulled {
    registry: Registry,
    puller: Puller,
    name: ImageReference,
    directory: tempfile::TempDir,
    store: ImageStore,
    image: PulledImage,
}

impl Pulled {
    /// Pushes an image of these layers, and pulls it.
    async fn of(layers: &[(Vec<u8>, Vec<u8>)]) -> Self {
        let registry = Registry::start();
        registry.push("v1", "amd64", layers).await;
        let puller = puller(registry.settings());
        let name = registry.reference(":v1");
        let (directory, store) = store();
        let image = pull(&puller, &store, &name).await;
        Pulled {
            registry,
            puller,
            name,
            directory,
            store,
            image,
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_is_found_in_the_next_boot_and_healed_without_the_registry() {
    let layers = [layer("a", &noise(SIZE)), layer("b", b"small")];
    let Pulled {
        puller,
        name,
        directory,
        image,
        ..
    } = Pulled::of(&layers).await;
    let digest = image.digest();
    let place = image.rootfs().parent().unwrap().to_owned();
    drop(image);
    for (file, position) in [
        ("rootfs/a", SIZE as u64 / 2),
        ("rootfs/b", 0),
        ("image.json", 3),
        ("image.json", 120),
        ("tree.json", 20),
    ] {
        flip(&place.join(file), position);
        let store = next_boot(&directory);
        let damaged = store.check(digest);
        assert!(
            matches!(damaged, Wholeness::Damaged(_)),
            "{file}: {damaged:?}"
        );
        let image = puller.whole(&name, digest, &store).await.unwrap().unwrap();
        assert_eq!(fs::read(image.rootfs().join("a")).unwrap(), noise(SIZE));
        assert_eq!(fs::read(image.rootfs().join("b")).unwrap(), b"small");
        assert!(image.names().contains(&name), "{file}");
        assert_eq!(next_boot(&directory).check(digest), Wholeness::Whole);
    }
}

#[tokio::test]
async fn the_damaged_file_is_named() {
    let Pulled {
        directory,
        store,
        image,
        ..
    } = Pulled::of(&[layer("etc/passwd", b"root")]).await;
    flip(&image.rootfs().join("etc/passwd"), 1);
    let found = next_boot(&directory).check(image.digest());
    let said = "/etc/passwd is not as it was unpacked".to_owned();
    assert_eq!(found, Wholeness::Damaged(said));
    // What was looked at in this boot is not read again.
    assert_eq!(store.check(image.digest()), Wholeness::Whole);
    let told = next_boot(&directory);
    told.note_checked(store.checked());
    assert_eq!(told.check(image.digest()), Wholeness::Whole);
}

#[tokio::test]
async fn with_damaged_blobs_the_registry_is_asked_for_these_alone() {
    let layers = [layer("a", &noise(SIZE)), layer("b", &noise(SIZE / 2))];
    let Pulled {
        registry,
        puller,
        name,
        directory,
        image,
        ..
    } = Pulled::of(&layers).await;
    let blob = |blob: &[u8]| {
        let hex = instar_values::Digest::of(blob).hex();
        directory.path().join("blobs/sha256").join(hex)
    };
    flip(&image.rootfs().join("a"), 5);
    flip(&blob(&layers[1].1), 100);
    // The blob that is whole here is not to be fetched.
    fs::remove_file(registry.blob(&layers[0].1)).unwrap();
    let store = next_boot(&directory);
    let healed = puller.whole(&name, image.digest(), &store).await.unwrap();
    assert_eq!(healed, None, "a blob is missing");
    let image = pull(&puller, &store, &name).await;
    assert_eq!(fs::read(image.rootfs().join("a")).unwrap(), noise(SIZE));
    assert_eq!(fs::read(image.rootfs().join("b")).unwrap(), noise(SIZE / 2));
    // A pull finds damage, too.
    flip(&image.rootfs().join("a"), 5);
    let image = pull(&puller, &next_boot(&directory), &name).await;
    assert_eq!(fs::read(image.rootfs().join("a")).unwrap(), noise(SIZE));
}

#[tokio::test]
async fn a_damaged_file_that_images_share_is_healed_in_each() {
    let registry = Registry::start();
    let base = layer("shared", &noise(SIZE));
    let mut names = Vec::new();
    for tag in ["v1", "v2"] {
        registry
            .push(tag, "amd64", &[base.clone(), layer("own", tag.as_bytes())])
            .await;
        names.push(registry.reference(&format!(":{tag}")));
    }
    let puller = puller(registry.settings());
    let (directory, store) = store();
    let mut images = Vec::new();
    for name in &names {
        images.push(pull(&puller, &store, name).await);
    }
    let shared = images[0].rootfs().join("shared");
    assert_eq!(fs::metadata(&shared).unwrap().nlink(), 3);
    flip(&shared, 7);
    let store = next_boot(&directory);
    drop(registry);
    for (name, image) in names.iter().zip(&images) {
        let healed = puller.whole(name, image.digest(), &store).await.unwrap();
        let shared = healed.unwrap().rootfs().join("shared");
        assert_eq!(fs::read(&shared).unwrap(), noise(SIZE));
    }
    let again = images[1].rootfs().join("shared");
    assert_eq!(
        fs::metadata(again).unwrap().nlink(),
        3,
        "they share it again"
    );
}

#[tokio::test]
async fn a_lost_seal_is_damage() {
    let Pulled {
        puller,
        name,
        directory,
        image,
        ..
    } = Pulled::of(&[layer("a", &noise(SIZE))]).await;
    let (digest, rootfs) = (image.digest(), image.rootfs());
    fs::remove_file(rootfs.with_file_name("tree.json")).unwrap();
    flip(&rootfs.join("a"), 1);
    let store = next_boot(&directory);
    let found = store.check(digest);
    assert_eq!(found, Wholeness::Damaged("its seal is gone".to_owned()));
    let healed = puller.whole(&name, digest, &store).await.unwrap().unwrap();
    assert_eq!(fs::read(healed.rootfs().join("a")).unwrap(), noise(SIZE));
}

/// Makes an image's record as a version before seals would have written it.
fn make_record_old(place: &Path) {
    let path = place.join("image.json");
    let record = fs::read_to_string(&path).unwrap();
    let (_, fields) = record.split_once("\",\"digest\":").unwrap();
    let known = match fields.split_once(",\"blobs\":") {
        Some((known, _)) => known,
        None => &fields[..fields.len() - 1],
    };
    let (before, rest) = known.split_once(",\"layers\":[").unwrap();
    let (_, after) = rest.split_once(']').unwrap();
    fs::write(path, format!("{{\"digest\":{before}{after}}}")).unwrap();
}

#[tokio::test]
async fn an_image_of_a_version_before_its_layers_were_noted_has_them_again() {
    let Pulled {
        registry: _registry,
        puller,
        name,
        directory,
        store,
        image,
    } = Pulled::of(&[layer("a", b"one"), layer("b", b"two")]).await;
    let place = image.rootfs().parent().unwrap().to_owned();
    let known = image.config().layers.clone();
    assert_eq!(known.len(), 2);
    let layers = |store: &ImageStore| store.get(image.digest()).unwrap().config().layers.clone();
    // By the documents that are kept with it, also if it was checked in this boot.
    for store in [next_boot(&directory), store] {
        make_record_old(&place);
        assert_eq!(layers(&store), []);
        assert_eq!(store.check(image.digest()), Wholeness::Whole);
        assert_eq!(layers(&store), known);
    }
    // And by its registry, where nothing is kept.
    make_record_old(&place);
    fs::remove_dir_all(directory.path().join("blobs")).unwrap();
    let store = next_boot(&directory);
    pull(&puller, &store, &name).await;
    assert_eq!(layers(&store), known);
}

#[tokio::test]
async fn an_image_of_a_version_before_seals_is_sealed_as_it_is() {
    let Pulled {
        directory, image, ..
    } = Pulled::of(&[layer("a", &noise(SIZE))]).await;
    let place = image.rootfs().parent().unwrap().to_owned();
    fs::remove_file(place.join("tree.json")).unwrap();
    fs::remove_file(place.join("tree.hashes")).unwrap();
    make_record_old(&place);
    fs::remove_dir_all(directory.path().join("blobs")).unwrap();
    assert_eq!(
        next_boot(&directory).check(image.digest()),
        Wholeness::Whole
    );
    flip(&image.rootfs().join("a"), 1);
    let found = next_boot(&directory).check(image.digest());
    assert!(matches!(found, Wholeness::Damaged(_)), "{found:?}");
    // From now on it is known to have a seal.
    fs::remove_file(place.join("tree.json")).unwrap();
    let found = next_boot(&directory).check(image.digest());
    assert_eq!(found, Wholeness::Damaged("its seal is gone".to_owned()));
}

/// The collection of an hour later would else remove the image's layers for one wrong byte of its manifest.
#[tokio::test]
async fn a_damaged_manifest_costs_no_layer() {
    let registry = Registry::start();
    let layers = [layer("a", &noise(SIZE)), layer("b", b"small")];
    registry.push("v1", "amd64", &layers).await;
    let puller = puller(registry.settings());
    for is_of_older_version in [false, true] {
        let (directory, store) = store();
        let image = pull(&puller, &store, &registry.reference(":v1")).await;
        let place = image.rootfs().parent().unwrap().to_owned();
        if is_of_older_version {
            make_record_old(&place);
            let store = next_boot(&directory);
            assert_eq!(store.collect_surplus(Urgency::LackOfRoom).unwrap(), 0);
            assert_eq!(store.check(image.digest()), Wholeness::Whole);
        }
        let blobs = directory.path().join("blobs/sha256");
        let count = || fs::read_dir(&blobs).unwrap().count();
        let all = count();
        flip(&blobs.join(image.digest().hex()), 1);
        let store = next_boot(&directory);
        store.collect_surplus(Urgency::LackOfRoom).unwrap();
        assert!(count() >= all - 1, "at most the manifest itself goes");
        for (_, layer) in &layers {
            let layer = instar_values::Digest::of(layer);
            assert!(blobs.join(layer.hex()).exists());
        }
        // They go with the image.
        store.remove(image.digest()).await.unwrap();
        assert_eq!(count(), 0);
    }
}

/// A bundle or a pull has brought another image of this name since.
#[tokio::test]
async fn an_image_that_is_made_again_takes_no_name_from_another_one() {
    let registry = Registry::start();
    let puller = puller(registry.settings());
    let name = registry.reference(":v1");
    let (directory, store) = store();
    let mut images = Vec::new();
    for content in [b"older", b"newer"] {
        registry.push("v1", "amd64", &[layer("a", content)]).await;
        images.push(pull(&puller, &store, &name).await);
    }
    drop(registry);
    let [older, newer] = &images[..] else {
        panic!("two images")
    };
    flip(&older.rootfs().join("a"), 0);
    let store = next_boot(&directory);
    let healed = puller.whole(&name, older.digest(), &store).await.unwrap();
    let healed = healed.unwrap();
    assert_eq!(fs::read(healed.rootfs().join("a")).unwrap(), b"older");
    assert!(healed.is_named(&name.at(older.digest())) && !healed.names().contains(&name));
    assert_eq!(store.find(&name).unwrap().digest(), newer.digest());
    // Without the other one it is the image of this name.
    store.remove(newer.digest()).await.unwrap();
    flip(&older.rootfs().join("a"), 0);
    let store = next_boot(&directory);
    let healed = puller.whole(&name, older.digest(), &store).await.unwrap();
    assert!(healed.unwrap().names().contains(&name));
}

/// The record says which blobs an image was made from. Its collection would remove those that its registry may not give again.
#[tokio::test]
async fn a_damaged_record_costs_no_layer() {
    let layers = [layer("a", &noise(SIZE)), layer("b", b"small")];
    let Pulled {
        puller,
        name,
        directory,
        image,
        ..
    } = Pulled::of(&layers).await;
    let (digest, place) = (image.digest(), image.rootfs().parent().unwrap().to_owned());
    drop(image);
    let blobs = directory.path().join("blobs/sha256");
    let two_hours_ago = SystemTime::now() - Duration::from_secs(2 * 3600);
    for is_swept in [false, true] {
        flip(&place.join("image.json"), 120);
        for blob in fs::read_dir(&blobs).unwrap() {
            let blob = File::open(blob.unwrap().path()).unwrap();
            blob.set_modified(two_hours_ago).unwrap();
        }
        let store = next_boot(&directory);
        if is_swept {
            store.sweep().unwrap();
            assert!(!place.exists());
        }
        for urgency in [Urgency::Usual, Urgency::LackOfRoom] {
            store.collect_surplus(urgency).unwrap();
        }
        let image = puller.whole(&name, digest, &store).await.unwrap().unwrap();
        assert_eq!(fs::read(image.rootfs().join("a")).unwrap(), noise(SIZE));
        assert!(image.names().contains(&name));
        // From now on its own record says it.
        let left = fs::read_dir(directory.path().join("proofs")).unwrap();
        assert_eq!(left.count(), 0);
    }
    let store = next_boot(&directory);
    store.remove(digest).await.unwrap();
    assert_eq!(fs::read_dir(&blobs).unwrap().count(), 0);
}

/// Its files are whole, so nothing is unpacked: it would neither be made again without its registry, nor go to another machine.
#[tokio::test]
async fn a_pull_brings_back_the_blobs_that_an_image_has_lost_and_those_alone() {
    let layers = [layer("a", &noise(SIZE)), layer("b", &noise(SIZE / 2))];
    let Pulled {
        registry,
        puller,
        name,
        directory,
        store,
        image,
    } = Pulled::of(&layers).await;
    let blobs = directory.path().join("blobs/sha256");
    let of_layer = |at: usize| {
        let digest = instar_values::Digest::of(&layers[at].1);
        blobs.join(digest.hex())
    };
    let manifest = blobs.join(image.digest().hex());
    // The blob that is whole here is not to be fetched.
    fs::remove_file(registry.blob(&layers[0].1)).unwrap();
    for lost in [&of_layer(1), &manifest] {
        let content = fs::read(lost).unwrap();
        fs::remove_file(lost).unwrap();
        assert_eq!(pull(&puller, &store, &name).await, image);
        assert_eq!(fs::read(lost).unwrap(), content);
    }
    // A transfer that was cut off before, and of which the disk has damaged the beginning.
    let partial = directory.path().join("blobs/partial");
    let content = fs::read(of_layer(1)).unwrap();
    fs::remove_file(of_layer(1)).unwrap();
    let half = partial.join(of_layer(1).file_name().unwrap());
    fs::write(&half, vec![0; content.len() / 2]).unwrap();
    pull(&puller, &store, &name).await;
    assert_eq!(fs::read(of_layer(1)).unwrap(), content);
    // One that its registry does not have stays lost, and the image is here all the same.
    fs::remove_file(of_layer(0)).unwrap();
    assert_eq!(pull(&puller, &store, &name).await, image);
    assert!(!of_layer(0).exists());
}

#[tokio::test]
async fn the_store_says_how_an_image_was_damaged_until_and_after_it_is_whole_again() {
    let layers = [layer("a", &noise(SIZE))];
    let Pulled {
        registry: _registry,
        puller,
        name,
        directory,
        store,
        image,
    } = Pulled::of(&layers).await;
    let digest = image.digest();
    assert_eq!(store.damage(digest), None);
    flip(&image.rootfs().join("a"), 5);
    let blob = instar_values::Digest::of(&layers[0].1).hex();
    fs::remove_file(directory.path().join("blobs/sha256").join(blob)).unwrap();
    let store = next_boot(&directory);
    assert_eq!(puller.whole(&name, digest, &store).await.unwrap(), None);
    let how = Some("/a is not as it was unpacked".to_owned());
    assert_eq!(store.damage(digest), how);
    // The next start finds no image, and knows why.
    assert!(next_boot(&directory).damage(digest).is_some());
    pull(&puller, &store, &name).await;
    assert_eq!(store.damage(digest), how);
    assert_eq!(next_boot(&directory).damage(digest), None);
}
