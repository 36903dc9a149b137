#![allow(clippy::unwrap_used)]
use std::fs::File;
use std::time::UNIX_EPOCH;

use super::record::write;
use super::*;
use crate::manifest::ImageConfig;

fn name(text: &str) -> ImageReference {
    text.parse().unwrap()
}

fn new_image(reference: &str, digest: Digest) -> NewImage {
    NewImage {
        name: name(reference),
        named_digest: digest,
        config: ImageConfig::default(),
        download_bytes: 0,
        unpacked_bytes: 0,
        blobs: BTreeSet::new(),
    }
}

fn add(store: &ImageStore, content: &[u8], reference: &str) -> PulledImage {
    let incoming = store.incoming(Digest::of(content)).unwrap();
    fs::write(incoming.rootfs().join("file"), content).unwrap();
    incoming
        .commit(NewImage {
            download_bytes: 5,
            unpacked_bytes: 10,
            ..new_image(reference, Digest::of(content))
        })
        .unwrap()
}

fn children(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

#[tokio::test]
async fn images_come_stay_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().join("instar"), Keeps::Blobs);
    assert!(store.list().unwrap().is_empty());
    assert_eq!(children(directory.path()), 0, "made only when needed");

    let image = add(&store, b"one", "r.io/a:1");
    assert_eq!(fs::read(image.rootfs().join("file")).unwrap(), b"one");
    let digest = image.digest();
    let latest = name("r.io/a:latest");
    let image = store.add_name(image, &latest, digest).unwrap();
    assert_eq!(store.find(&name("r.io/a:latest")), Some(image.clone()));
    assert_eq!(
        store.find(&name("other.io/x").at(image.digest())),
        Some(image.clone())
    );
    assert_eq!(store.find(&name("r.io/b")), None);

    // Another instance, as after a restart.
    let again = ImageStore::new(directory.path().join("instar"), Keeps::Blobs);
    assert_eq!(again.list().unwrap(), std::slice::from_ref(&image));

    store.remove(image.digest()).await.unwrap();
    assert!(matches!(
        store.remove(image.digest()).await,
        Err(StoreError::Unknown(_))
    ));
    assert_eq!(children(&directory.path().join("instar/images")), 0);
}

#[test]
fn a_name_means_what_it_was_pulled_by_last() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let tag = name("r.io/a:v1");
    let mut first = add(&store, b"first", "r.io/a:v1");
    // As if the clock had been ahead.
    first.record.pulled_at += 10_000_000;
    write(&first.directory, &first.record).unwrap();
    let second = add(&store, b"second", "r.io/a:v1");
    assert_eq!(store.find(&tag), Some(second.clone()));
    let nameless = store.get(first.digest()).unwrap();
    assert_eq!(*nameless.names(), BTreeSet::from([tag.at(first.digest())]));

    // The name goes back: both images are here.
    let digest = nameless.digest();
    let first = store.add_name(nameless, &tag, digest).unwrap();
    assert_eq!(store.find(&tag), Some(first));
    let second = store.get(second.digest()).unwrap();
    assert!(!second.names().contains(&tag));
}

#[test]
fn an_image_of_a_bundle_takes_a_name_only_from_an_older_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let tag = name("r.io/a:v1");
    let day = |day: u8| format!("2026-11-{day:02}T12:00:00Z");
    let dated = |mut image: PulledImage, created: String| {
        image.record.config.created = Some(created);
        write(&image.directory, &image.record).unwrap();
        image
    };
    let by_digest = |content: &[u8]| name("r.io/a").at(Digest::of(content));
    let has = dated(add(&store, b"has it", "r.io/a:v1"), day(20));
    for (content, created, takes) in [
        (&b"older"[..], day(19), false),
        (b"as old", day(20), false),
        (b"newer", day(21), true),
    ] {
        let alone = by_digest(content);
        let image = dated(add(&store, content, &alone.to_string()), created);
        let digest = image.digest();
        let image = store.add_name_if_newer(image, &tag, digest, Some(&alone));
        let image = image.unwrap();
        let expected = if takes { &tag } else { &alone };
        assert_eq!(*image.names(), BTreeSet::from([expected.clone()]));
        let holder = if takes { digest } else { has.digest() };
        assert_eq!(store.find(&tag).map(|it| it.digest()), Some(holder));
        assert_eq!(store.get(digest), Some(image));
    }
    // One that has it keeps it, and loses the other name.
    let image = store.find(&tag).unwrap();
    let (digest, alone) = (image.digest(), by_digest(b"newer"));
    let image = store.add_name(image, &alone, digest).unwrap();
    let image = store.add_name_if_newer(image, &tag, digest, Some(&alone));
    assert_eq!(*image.unwrap().names(), BTreeSet::from([tag.clone()]));
    assert_eq!(*store.get(digest).unwrap().names(), BTreeSet::from([tag]));
}

/// `docker buildx` puts every image behind an index, whose digest it prints.
#[test]
fn an_image_is_found_by_the_digest_of_its_index() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let (digest, index) = (Digest::of(b"one"), Digest::of(b"index"));
    let by_index = [
        name("r.io/a").at(index),
        name(&format!("r.io/a:1@{index}")),
        name(&format!("other.io/a:1@{index}")),
    ];
    let image = add(&store, b"one", "r.io/a:1");
    for reference in &by_index {
        assert_eq!(store.find(reference), None, "{reference}");
    }
    // It was pulled by its manifest; now its name leads to an index.
    store.add_name(image, &name("r.io/a:1"), index).unwrap();
    for reference in &by_index {
        let found = store.find(reference).map(|image| image.digest());
        assert_eq!(found, Some(digest), "{reference}");
    }
    let other = name("r.io/a:1").at(Digest::of(b"other"));
    assert_eq!(store.find(&other), None);
}

#[tokio::test]
async fn an_image_that_a_value_stands_for_is_not_collected() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let image = add(&store, b"one", "r.io/a:1");
    let (digest, another) = (image.digest(), image.clone());
    drop(image);
    assert!(!store.remove_unused(digest).await.unwrap());
    assert!(store.get(digest).is_some());
    drop(another);
    assert!(store.remove_unused(digest).await.unwrap());
    assert!(store.get(digest).is_none());
    assert!(store.shared.state().held.is_empty());
}

#[test]
fn images_below_overlays_are_known_by_their_mounts() {
    let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
    let mounts = format!(
        "22 1 0:20 / /var rw - ext4 /dev/vda3 rw\n\
         31 22 0:31 / /run/machined/containers/web/rootfs rw,nodev - overlay overlay rw,lowerdir=/var/lib/instar/images/{}/rootfs,upperdir=/var/u,workdir=/var/w\n\
         32 22 0:32 / /x rw - overlay none rw,lowerdir+=/var/lib/instar/images/{}/rootfs\n\
         33 22 0:33 / /y rw - overlay none rw,lowerdir=/usr/lib/modules\n",
        one.hex(),
        two.hex()
    );
    let found = removal::lower_images(&mounts, Path::new("/var/lib/instar/images"));
    assert_eq!(found, BTreeSet::from([one, two]));
}

#[test]
fn two_pulls_of_one_image_end_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let first = store.incoming(Digest::of(b"x")).unwrap();
    let second = store.incoming(Digest::of(b"x")).unwrap();
    first.commit(new_image("r.io/a", Digest::of(b"x"))).unwrap();
    let image = second
        .commit(new_image("r.io/b", Digest::of(b"x")))
        .unwrap();
    assert_eq!(image.names().len(), 2);
    assert_eq!(children(&store.images()), 1);
}

/// It may have been damaged, and put away, under a container that lives on.
#[test]
fn what_a_container_runs_from_is_not_swept_away() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let (used, other) = (Digest::of(b"used"), Digest::of(b"other"));
    let images = store.images();
    let names = |digest: Digest| [digest.hex(), format!("{REMOVED}{}-0", digest.hex())];
    for name in [names(used), names(other)].as_flattened() {
        fs::create_dir_all(images.join(name).join("rootfs")).unwrap();
    }
    store.prepare_beside(|| Ok(BTreeSet::from([used]))).unwrap();
    let is_there = |name: &String| images.join(name).join("rootfs").exists();
    let [place, put_away] = names(used);
    assert!(!is_there(&place) && is_there(&put_away));
    assert_eq!(children(&images), 2, "that of the place is put away too");
    assert!(!names(other).iter().any(is_there));
    // Its name is not taken again.
    assert_ne!(store.temporary(REMOVED, used), images.join(put_away));
}

/// It runs on from what is left, and its next start needs the image whole.
#[test]
fn an_image_that_a_container_runs_from_without_its_record_is_made_again_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let digest = add(&store, b"used", "r.io/a").digest();
    fs::write(store.place(digest).join("image.json"), "{").unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let mounted = || Ok(BTreeSet::from([digest]));
    store.prepare_beside(mounted).unwrap();
    assert!(store.get(digest).is_none());
    let image = add(&store, b"used", "r.io/a");
    assert_eq!(fs::read(image.rootfs().join("file")).unwrap(), b"used");
    assert_eq!(children(&store.images()), 2);
}

#[test]
fn whatever_was_cut_off_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let whole = add(&store, b"whole", "r.io/a");
    drop(store.incoming(Digest::of(b"given up")).unwrap());
    assert_eq!(children(&store.images()), 1);

    // The leftovers of a power cut.
    let images = store.images();
    for bad in [
        format!("{INCOMING}x/rootfs/dir"),
        Digest::of(b"no record").hex(),
        "stray".to_owned(),
    ] {
        fs::create_dir_all(images.join(bad)).unwrap();
    }
    fs::write(images.join("file"), "").unwrap();
    let torn = images.join(Digest::of(b"torn").hex());
    fs::create_dir(&torn).unwrap();
    fs::write(torn.join("image.json"), "{\"digest\":").unwrap();
    let elsewhere = images.join(Digest::of(b"elsewhere").hex());
    fs::create_dir(&elsewhere).unwrap();
    fs::copy(
        whole.directory.join("image.json"),
        elsewhere.join("image.json"),
    )
    .unwrap();

    let again = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    assert_eq!(
        again.list().unwrap(),
        std::slice::from_ref(&whole),
        "damaged ones are never listed"
    );
    drop(again.incoming(Digest::of(b"next")).unwrap());
    assert_eq!(children(&images), 1);
}

/// Two pulls that lack room collect at the same time, and so does the collector.
#[test]
fn several_collections_at_once_do_not_disturb_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    let (objects, proofs) = (
        directory.path().join("objects"),
        directory.path().join("proofs"),
    );
    fs::create_dir(&proofs).unwrap();
    const COUNT: u32 = 4000;
    for number in 0..COUNT {
        let hex = Digest::of(&number.to_le_bytes()).hex();
        let group = objects.join(&hex[..2]);
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join(&hex), "x").unwrap();
        let proof = File::create(proofs.join(format!("{hex}.json"))).unwrap();
        proof.set_modified(UNIX_EPOCH).unwrap();
    }
    let removed: u64 = std::thread::scope(|scope| {
        let collect = || store.collect_surplus(Urgency::LackOfRoom);
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(collect)).collect();
        let each = threads.into_iter().map(|thread| thread.join().unwrap());
        each.map(Result::unwrap).sum()
    });
    assert_eq!(removed, u64::from(COUNT), "each object counts once");
    assert_eq!((children(&objects), children(&proofs)), (0, 0));
}
