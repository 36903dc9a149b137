//! Bundles that an attacker made with care, whose parts contradict each other.

use serde_json::Value;

use super::*;
use crate::archive::{END, header, padding};
use crate::member::{LAYOUT, Member, Name};
use crate::{NotAnIndex, Summary};

/// An archive of these files, without any check.
fn archive(index: &[u8], summary: &[u8], blobs: &[&[u8]]) -> Vec<u8> {
    let mut members = vec![
        (Name::Layout, LAYOUT),
        (Name::Index, index),
        (Name::Summary, summary),
    ];
    members.extend(blobs.iter().map(|it| (Name::Blob(Digest::of(it)), *it)));
    let mut bytes = Vec::new();
    for (name, content) in members {
        let size = content.len() as u64;
        bytes.extend_from_slice(&header(Member { name, size }));
        bytes.extend_from_slice(content);
        bytes.extend_from_slice(&vec![0; padding(size)]);
    }
    bytes.extend_from_slice(&[0; END]);
    bytes
}

/// The archive whose index.json was changed, with a summary that fits it.
fn with_index(contents: &Contents, change: impl Fn(&mut Value)) -> Vec<u8> {
    let index = contents.index();
    let plan = Plan::new(&index, &contents.blobs).unwrap();
    let mut value: Value = serde_json::from_slice(&index.to_bytes()).unwrap();
    change(&mut value);
    let changed = serde_json::to_vec(&value).unwrap();
    let summary = Summary {
        digest: Digest::of(&changed),
        ..plan.summary().clone()
    };
    let blobs: Vec<&[u8]> = plan
        .blobs()
        .iter()
        .map(|blob| contents.blobs[&blob.digest].as_slice())
        .collect();
    archive(&changed, &summary.to_bytes(), &blobs)
}

#[test]
fn index_json_has_one_form() {
    let contents = Contents::usual();
    let scratch = Scratch::new();
    let refused = |change: &dyn Fn(&mut Value)| {
        said(&scratch.verify(&with_index(&contents, change)).unwrap_err())
    };
    // serde_json sorts the keys of a value, so even no change is another form.
    assert!(refused(&|_| {}).contains("not in the form that instarctl writes"));
    assert!(refused(&|index| index["more"] = json!(1)).contains("unknown field"));
    assert!(refused(&|index| index["manifests"] = json!([])).contains("names no image"));
    let annotation = |name: &'static str, value: &'static str| {
        move |index: &mut Value| index["manifests"][0]["annotations"][name] = json!(value)
    };
    let reference = "org.opencontainers.image.ref.name";
    assert!(refused(&annotation(reference, "../..")).contains("is no reference of an image"));
    assert!(refused(&annotation("dev.instar.bundle.signs", "x")).contains("neither an image"));
    let huge = |index: &mut Value| index["manifests"][0]["size"] = json!(u64::MAX);
    assert!(refused(&huge).contains("a document has at most 1048576"));
    let entries = |index: &mut Value| {
        let entry = index["manifests"][0].clone();
        index["manifests"] = json!(vec![entry; 2049]);
    };
    assert!(refused(&entries).contains("2049 entries"));
}

#[test]
fn references_and_links_have_to_agree() {
    let mut contents = Contents::usual();
    let digest = Digest::of(b"another");
    contents.images[0].reference = format!("r.io/b@{digest}").parse().unwrap();
    let make = |contents: &Contents| {
        let (images, indexes) = (contents.images.clone(), contents.indexes.clone());
        Index::new(images, indexes, contents.signatures.clone(), Vec::new()).unwrap_err()
    };
    assert!(matches!(make(&contents), NotAnIndex::OtherDigest(_)));

    let mut contents = Contents::usual();
    contents.images[0].index = Some(digest);
    assert!(matches!(make(&contents), NotAnIndex::Dangling(it) if it == digest));

    let mut contents = Contents::usual();
    contents.signatures[0].subject = digest;
    assert!(matches!(make(&contents), NotAnIndex::Dangling(it) if it == digest));

    let mut contents = Contents::usual();
    contents.images[1].index = None;
    contents.signatures.truncate(1);
    assert!(matches!(make(&contents), NotAnIndex::Unused(_)));

    let mut contents = Contents::usual();
    contents.images[0].reference = contents.images[1].reference.clone();
    assert!(matches!(make(&contents), NotAnIndex::Twice(_)));
}

#[test]
fn an_index_has_to_name_the_image_that_is_said_to_be_from_it() {
    let mut contents = Contents::usual();
    contents.images[0].index = contents.images[1].index;
    let error = Plan::new(&contents.index(), &contents.blobs).unwrap_err();
    assert!(error.to_string().contains("does not name the image"));
}

#[test]
fn huge_sizes_are_refused_before_anything_is_read() {
    let named = |size: u64| {
        let mut contents = Contents::usual();
        let layer = json!({"digest": Digest::of(b"layer"), "size": size});
        let config = json!({"digest": Digest::of(b"config"), "size": 2});
        let manifest = json!({"config": config, "layers": [layer]}).to_string();
        contents.images[0].manifest = document(manifest.as_bytes(), MANIFEST);
        contents.signatures.clear();
        contents.keep(manifest.as_bytes());
        Plan::new(&contents.index(), &contents.blobs)
    };
    assert!(
        named(u64::MAX)
            .unwrap_err()
            .to_string()
            .contains("at most 8589934591")
    );
    assert!(named(8 << 30).is_err());
    assert!(named((8 << 30) - 1).is_ok());
}

#[test]
fn the_summary_follows_from_the_rest() {
    let contents = Contents::usual();
    let index = contents.index();
    let plan = Plan::new(&index, &contents.blobs).unwrap();
    let blobs: Vec<&[u8]> = plan
        .blobs()
        .iter()
        .map(|blob| contents.blobs[&blob.digest].as_slice())
        .collect();
    let scratch = Scratch::new();
    let judge = |summary: Summary| {
        let refused = scratch.verify(&archive(&index.to_bytes(), &summary.to_bytes(), &blobs));
        said(&refused.unwrap_err())
    };
    let good = plan.summary().clone();
    for bad in [
        Summary {
            blobs: 1,
            ..good.clone()
        },
        Summary {
            bytes: 1,
            ..good.clone()
        },
        Summary {
            architectures: ["arm64".to_owned()].into(),
            ..good.clone()
        },
        Summary {
            digest: Digest::of(b""),
            ..good.clone()
        },
    ] {
        assert!(judge(bad).contains("instar-bundle.json"));
    }
    assert!(judge(Summary { format: 2, ..good }).contains("it has the format 2"));
}

#[test]
fn the_config_has_to_be_for_the_platform_of_the_index() {
    let mut contents = Contents::usual();
    contents.images[0].platform.architecture = "arm64".to_owned();
    let refused = Scratch::new().verify(&contents.archive()).unwrap_err();
    let expected = "the config is for linux/amd64, but index.json says linux/arm64";
    assert!(said(&refused).contains(expected), "{}", said(&refused));
}

#[test]
fn one_blob_has_one_size() {
    let mut contents = Contents::usual();
    let size = contents.images[0].manifest.size;
    let config = json!({"digest": contents.images[0].manifest.digest, "size": size + 1});
    let manifest = json!({"config": config, "layers": []}).to_string();
    contents.images[1].manifest = document(manifest.as_bytes(), MANIFEST);
    contents.images[1].index = None;
    contents.indexes.clear();
    contents.signatures.truncate(1);
    contents.keep(manifest.as_bytes());
    let error = Plan::new(&contents.index(), &contents.blobs).unwrap_err();
    assert!(error.to_string().contains("is named with"));
}
