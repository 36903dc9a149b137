//! Bundles with files of extensions.

use serde_json::Value;

use super::*;
use crate::{BundledFile, EMPTY_CONFIG, NotAFile};

const CONTENT: &[u8] = b"hsqs, and then the tree of an extension";
const NAME: &str = "site-v1.2+3-x86-64.raw";

fn file(contents: &mut Contents, name: &str, content: &[u8]) -> BundledFile {
    let (digest, size) = contents.keep(content);
    let file = BundledFile::new(name, digest, size).unwrap();
    contents.keep(EMPTY_CONFIG);
    contents.keep(&file.manifest_bytes());
    file
}

fn index(contents: &Contents, files: &[BundledFile]) -> Index {
    Index::new(
        contents.images.clone(),
        contents.indexes.clone(),
        contents.signatures.clone(),
        files.to_vec(),
    )
    .unwrap()
}

fn read(bundle: &crate::VerifiedBundle, digest: Digest) -> Vec<u8> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut bundle.blob(digest).unwrap(), &mut bytes).unwrap();
    bytes
}

#[test]
fn files_are_read_as_they_were_written_beside_images_and_alone() {
    for mut contents in [Contents::usual(), Contents::default()] {
        let files = [
            file(&mut contents, NAME, CONTENT),
            file(&mut contents, "SHA256SUMS", b"a list"),
        ];
        let index = index(&contents, &files);
        let scratch = Scratch::new();
        let bundle = scratch.verify(&contents.archive_with(&index)).unwrap();
        assert_eq!(bundle.index(), &index);
        let names: Vec<&str> = index.files().iter().map(BundledFile::name).collect();
        assert_eq!(names, ["SHA256SUMS", NAME]);
        assert_eq!(read(&bundle, files[0].digest()), CONTENT);

        let directory = tempfile::tempdir().unwrap();
        let plan = Plan::new(&index, &contents.blobs).unwrap();
        contents.write(Writer::directory(directory.path(), &index, plan).unwrap());
        let bundle = verify(Files::open(directory.path()).unwrap(), &mut |_| {}).unwrap();
        assert_eq!(read(&bundle, files[0].digest()), CONTENT);
    }
}

#[test]
fn a_file_is_an_artifact_that_other_tools_read() {
    let mut contents = Contents::default();
    let file = file(&mut contents, NAME, CONTENT);
    let index: Value = serde_json::from_slice(&index(&contents, &[file]).to_bytes()).unwrap();
    let entry = &index["manifests"][0];
    let name = &entry["annotations"]["org.opencontainers.image.ref.name"];
    assert_eq!(name, NAME);
    let digest: Digest = entry["digest"].as_str().unwrap().parse().unwrap();
    let manifest: Value = serde_json::from_slice(&contents.blobs[&digest]).unwrap();
    assert_eq!(manifest["mediaType"], entry["mediaType"]);
    assert_eq!(
        manifest["artifactType"],
        "application/vnd.instar.extension.file.v1"
    );
    let layer = &manifest["layers"][0];
    assert_eq!(layer["digest"], Digest::of(CONTENT).to_string());
    assert_eq!(layer["size"], CONTENT.len());
    assert_eq!(layer["annotations"]["org.opencontainers.image.title"], NAME);
    let config: Digest = manifest["config"]["digest"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(contents.blobs[&config], b"{}");
    let read = BundledFile::of_manifest(&contents.blobs[&digest]).unwrap();
    assert_eq!((read.name(), read.digest()), (NAME, Digest::of(CONTENT)));
}

#[test]
fn another_document_is_the_manifest_of_no_file() {
    let mut contents = Contents::usual();
    let image = contents.images[0].manifest.digest;
    let file = file(&mut contents, NAME, CONTENT);
    let manifest = String::from_utf8(file.manifest_bytes()).unwrap();
    let other_type = manifest.replace("vnd.oci.empty", "vnd.other.empty");
    let other_name = manifest.replace(NAME, "../up.raw");
    for other in [
        &contents.blobs[&image][..],
        b"{",
        other_type.as_bytes(),
        other_name.as_bytes(),
    ] {
        assert_eq!(BundledFile::of_manifest(other), None);
    }
}

#[test]
fn every_altered_byte_and_every_early_end_is_refused() {
    let mut contents = Contents::default();
    let file = file(&mut contents, NAME, CONTENT);
    let good = contents.archive_with(&index(&contents, &[file]));
    let scratch = Scratch::new();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        scratch.verify(&bad).unwrap_err();
    }
    for cut in (0..good.len()).step_by(101) {
        let refused = scratch.verify(&good[..cut]).unwrap_err();
        assert!(refused.fault.is_incomplete(), "{cut}: {}", said(&refused));
    }
    let at = good.windows(CONTENT.len()).position(|it| it == CONTENT);
    let mut bad = good;
    bad[at.unwrap()] ^= 1;
    let refused = said(&scratch.verify(&bad).unwrap_err());
    let name = format!("blobs/sha256/{}", Digest::of(CONTENT).hex());
    assert!(refused.contains(&name), "{refused}");
    assert!(refused.contains("it is altered: the content"), "{refused}");
}

#[test]
fn only_plain_names_and_sizes_that_machines_take_are_allowed() {
    let made = |name: &str, size| BundledFile::new(name, Digest::of(b""), size);
    for name in [
        "",
        ".raw",
        "../up.raw",
        "a/b.raw",
        "a b.raw",
        "-v1",
        "ä.raw",
    ] {
        let refused = made(name, 1).unwrap_err();
        assert_eq!(refused, NotAFile::Name(name.to_owned()));
    }
    assert!(made(&"a".repeat(129), 1).is_err());
    assert!(made(&"a".repeat(128), 2 << 30).is_ok());
    let refused = made("a.raw", (2 << 30) + 1).unwrap_err();
    assert!(refused.to_string().contains("machines take at most"));
}

#[test]
fn the_annotations_of_a_file_have_to_agree_with_its_manifest() {
    let mut contents = Contents::default();
    let file = file(&mut contents, NAME, CONTENT);
    let good = index(&contents, &[file]).to_bytes();
    let good = String::from_utf8(good).unwrap();
    assert!(Index::parse(good.as_bytes()).is_ok());
    let size = format!("\"{}\"", CONTENT.len());
    for (text, other) in [(size.as_str(), "\"1\""), (NAME, "other.raw")] {
        let refused = Index::parse(good.replace(text, other).as_bytes());
        assert!(matches!(refused, Err(NotAnIndex::Form)), "{refused:?}");
    }
    for (text, other) in [
        (size.as_str(), "\"many\""),
        ("bundle.file\":\"sha256:", "bundle.file\":\""),
    ] {
        let refused = Index::parse(good.replace(text, other).as_bytes());
        assert!(matches!(refused, Err(NotAnIndex::Entry(_))), "{refused:?}");
    }
}

#[test]
fn a_bundle_has_at_most_64_files() {
    let mut contents = Contents::default();
    // One content under many names is one file for each name.
    let files: Vec<BundledFile> = (0..65)
        .map(|number| file(&mut contents, &format!("site-{number}.raw"), CONTENT))
        .collect();
    let made = |files: &[BundledFile]| Index::new(vec![], vec![], vec![], files.to_vec());
    assert_eq!(made(&files[..64]).unwrap().files().len(), 64);
    let error = made(&files).unwrap_err();
    assert!(matches!(error, NotAnIndex::TooManyFiles(65)), "{error}");
    assert!(
        error.to_string().contains("at most 64 are taken"),
        "{error}"
    );
}
