//! Bundles that are read as they were written.

use std::fs;
use std::io::Read as _;

use super::*;
use crate::{Group, OnMedium, find, has_bundle, remove_bundle};

/// The digest of the usual bundle.
const GOLDEN: &str = "db498a6d924ed8d1d5d4ba9acdc1d63d7ed27dd21a21f220c1339a3546564b4e";

#[test]
fn the_same_images_give_the_same_bytes() {
    let one = Contents::usual();
    let mut other = Contents::usual();
    other.images.reverse();
    other.signatures.reverse();
    other.signatures.push(other.signatures[0].clone());
    assert_eq!(one.archive(), other.archive());
    // Readers of other versions read them, too: with other bytes, the format has another number.
    let digest = Digest::of(&one.archive());
    assert_eq!((crate::FORMAT, digest.hex()), (1, GOLDEN.to_owned()));
}

#[test]
fn everything_is_read_as_it_was_written_from_both_forms() {
    let contents = Contents::usual();
    let directory = tempfile::tempdir().unwrap();
    contents.directory(directory.path());
    fs::write(directory.path().join("holiday.jpg"), "").unwrap();
    let of_directory = verify(Files::open(directory.path()).unwrap(), &mut |_| {}).unwrap();
    let scratch = Scratch::new();
    let of_archive = scratch.verify(&contents.archive()).unwrap();
    for bundle in [&of_directory, &of_archive] {
        assert_eq!(bundle.index(), &contents.index());
        assert_eq!(bundle.digest(), contents.index().digest());
        for (digest, bytes) in &contents.blobs {
            let mut read = Vec::new();
            bundle
                .blob(*digest)
                .unwrap()
                .read_to_end(&mut read)
                .unwrap();
            assert_eq!(&read, bytes);
        }
        let image = &bundle.index().images()[0];
        let created = bundle.description(image).unwrap().created.as_deref();
        assert_eq!(created, Some("2026-01-02T03:04:05Z"));
    }
    let summary = of_archive.summary();
    assert_eq!(summary, of_directory.summary());
    assert_eq!(summary.blobs, contents.blobs.len() as u64);
    let bytes: usize = contents.blobs.values().map(Vec::len).sum();
    assert_eq!(summary.bytes, bytes as u64);
}

/// A stick is pulled out as soon as the bundle is whole, and nobody syncs what was forgotten.
#[test]
fn each_directory_of_a_bundle_is_synced_at_its_end() {
    let directory = tempfile::tempdir().unwrap();
    Contents::usual().directory(directory.path());
    let mut found = vec![directory.path().to_owned()];
    let mut at = 0;
    while let Some(folder) = found.get(at).cloned() {
        at += 1;
        let paths = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
        found.extend(paths.filter(|path| path.is_dir()));
    }
    found.reverse();
    assert_eq!(found, crate::write::folders(directory.path()));
}

#[test]
fn a_build_time_that_is_too_long_for_one_is_left_out() {
    let mut contents = Contents::default();
    let created = "2".repeat(1 << 19);
    let config = json!({"os": "linux", "architecture": "amd64", "created": created});
    let manifest = contents.manifest(config.to_string().as_bytes(), &[b"layer"]);
    contents.images.push(Image {
        reference: "r.io/a:v1".parse().unwrap(),
        platform: Platform {
            architecture: "amd64".to_owned(),
            os: "linux".to_owned(),
        },
        manifest,
        index: None,
    });
    let bundle = Scratch::new().verify(&contents.archive()).unwrap();
    let described = bundle.description(&bundle.index().images()[0]).unwrap();
    assert_eq!(described.created, None);
}

#[test]
fn documents_come_first_and_layers_last() {
    let contents = Contents::usual();
    let plan = Plan::new(&contents.index(), &contents.blobs).unwrap();
    let groups: Vec<Group> = plan.blobs().iter().map(|blob| blob.group).collect();
    assert!(groups.is_sorted());
    assert_eq!(
        groups.iter().filter(|it| **it == Group::Documents).count(),
        5
    );
    // Two payloads and `{}`.
    assert_eq!(
        groups.iter().filter(|it| **it == Group::Signatures).count(),
        3
    );
    assert_eq!(groups.iter().filter(|it| **it == Group::Configs).count(), 1);
    assert_eq!(groups.iter().filter(|it| **it == Group::Layers).count(), 3);
}

#[test]
fn a_blob_that_changes_after_the_verification_is_noticed() {
    let contents = Contents::usual();
    let directory = tempfile::tempdir().unwrap();
    contents.directory(directory.path());
    let bundle = verify(Files::open(directory.path()).unwrap(), &mut |_| {}).unwrap();
    let layer = Digest::of(b"layer of b");
    let path = directory.path().join("blobs/sha256").join(layer.hex());
    fs::write(&path, "LAYER of b").unwrap();
    let error = bundle.blob(layer).unwrap().read_to_end(&mut Vec::new());
    assert!(error.unwrap_err().to_string().contains("has changed"));
    fs::write(&path, "layer of").unwrap();
    let error = bundle.blob(layer).unwrap().read_to_end(&mut Vec::new());
    assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    fs::remove_file(&path).unwrap();
    assert!(bundle.blob(layer).is_err());
}

#[test]
fn a_writer_takes_only_the_content_that_belongs_there() {
    let contents = Contents::usual();
    let index = contents.index();
    let plan = Plan::new(&index, &contents.blobs).unwrap();
    let first = contents.blobs[&plan.blobs()[0].digest].clone();
    let longer = [&first[..], b"x"].concat();
    for bad in [&first[1..], &longer, &first.to_ascii_uppercase()] {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("bundle")).unwrap();
        let mut writer = Writer::archive(file, &index, plan.clone()).unwrap();
        assert!(writer.blob(&mut &*bad).is_err());
        assert!(writer.finish().is_err());
    }
    let directory = tempfile::tempdir().unwrap();
    contents.directory(directory.path());
    let again = Writer::directory(directory.path(), &index, plan);
    assert!(again.is_err_and(|it| it.to_string().contains("holds a bundle already")));
}

/// A whole one, and what an interrupted run has left.
#[test]
fn a_bundle_is_removed_and_nothing_else() {
    let contents = Contents::usual();
    for lost in [None, Some("index.json"), Some("oci-layout")] {
        let directory = tempfile::tempdir().unwrap();
        let photo = directory.path().join("holiday.jpg");
        fs::write(&photo, b"x").unwrap();
        contents.directory(directory.path());
        if let Some(lost) = lost {
            fs::remove_file(directory.path().join(lost)).unwrap();
        }
        assert!(has_bundle(directory.path()));
        remove_bundle(directory.path()).unwrap();
        assert!(!has_bundle(directory.path()) && photo.exists());
        // There is room for the next one.
        contents.directory(directory.path());
    }
}

#[test]
fn the_one_bundle_on_a_medium_is_found() {
    let contents = Contents::usual();
    let medium = tempfile::tempdir().unwrap();
    let look = || find(File::open(medium.path()).unwrap().into()).unwrap();
    fs::write(medium.path().join("holiday.jpg"), vec![0xff; 4096]).unwrap();
    std::os::unix::fs::symlink("/", medium.path().join("root")).unwrap();
    assert!(matches!(look(), OnMedium::Nothing));

    fs::write(medium.path().join("site.bundle"), contents.archive()).unwrap();
    let OnMedium::One(name, files) = look() else {
        panic!("no bundle")
    };
    assert_eq!(name, "site.bundle");
    assert!(verify(files, &mut |_| {}).is_ok());

    fs::create_dir(medium.path().join("other")).unwrap();
    contents.directory(&medium.path().join("other"));
    let OnMedium::Several(names) = look() else {
        panic!("not several")
    };
    assert_eq!(names, ["other", "site.bundle"]);

    contents.directory(medium.path());
    let OnMedium::One(name, files) = look() else {
        panic!("the medium is none")
    };
    assert_eq!(name, "");
    assert!(verify(files, &mut |_| {}).is_ok());
}
