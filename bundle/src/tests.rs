//! Bundles that are good, and every way in which one is not.

#![allow(clippy::unwrap_used, clippy::panic)]

mod altered;
mod as_archive;
mod channels;
mod files_of_extensions;
mod forged;
mod round_trip;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use instar_values::Digest;
use serde_json::json;

use crate::{
    Document, Files, Image, Index, NotAnIndex, Plan, Platform, Refused, Signature, Writer, verify,
};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// Blobs by digest, and the roots that a bundle is made of.
#[derive(Default)]
struct Contents {
    blobs: BTreeMap<Digest, Vec<u8>>,
    images: Vec<Image>,
    indexes: Vec<Document>,
    signatures: Vec<Signature>,
}

fn document(bytes: &[u8], media_type: &str) -> Document {
    Document {
        digest: Digest::of(bytes),
        size: bytes.len() as u64,
        media_type: media_type.to_owned(),
    }
}

impl Contents {
    fn keep(&mut self, bytes: &[u8]) -> (Digest, u64) {
        let digest = Digest::of(bytes);
        self.blobs.insert(digest, bytes.to_vec());
        (digest, bytes.len() as u64)
    }

    /// Adds a manifest with these blobs.
    fn manifest(&mut self, config: &[u8], layers: &[&[u8]]) -> Document {
        let mut named = |bytes: &[u8]| {
            let (digest, size) = self.keep(bytes);
            json!({"digest": digest, "size": size})
        };
        let (config, layers) = (named(config), layers.iter().map(|it| named(it)));
        let layers: Vec<_> = layers.collect();
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
        self.keep(manifest.as_bytes());
        document(manifest.as_bytes(), MANIFEST)
    }

    fn image(&mut self, reference: &str, architecture: &str, layers: &[&[u8]]) -> Document {
        let config =
            json!({"os": "linux", "architecture": architecture, "created": "2026-01-02T03:04:05Z"});
        let manifest = self.manifest(config.to_string().as_bytes(), layers);
        self.images.push(Image {
            reference: reference.parse().unwrap(),
            platform: Platform {
                architecture: architecture.to_owned(),
                os: "linux".to_owned(),
            },
            manifest: manifest.clone(),
            index: None,
        });
        manifest
    }

    /// Puts the last image into an index.
    fn put_into_index(&mut self) -> Digest {
        let image = self.images.last_mut().unwrap();
        let entry = json!({"digest": image.manifest.digest, "size": image.manifest.size});
        let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string();
        let index = index.as_bytes();
        image.index = Some(Digest::of(index));
        self.indexes.push(document(index, INDEX));
        self.keep(index).0
    }

    fn sign(&mut self, subject: Digest, payload: &[u8]) {
        let manifest = self.manifest(b"{}", &[payload]);
        let tag = format!("r.io/a:sha256-{}.sig", subject.hex());
        self.signatures.push(Signature {
            subject,
            found_at: tag.parse().unwrap(),
            manifest,
        });
    }

    /// Two images with a shared layer; one of them is from an index, and both are signed.
    fn usual() -> Self {
        let mut contents = Contents::default();
        let base = vec![7; 600];
        let one = contents.image("r.io/b:v1", "amd64", &[&base, b"layer of b"]);
        contents.image("r.io/a:v1", "amd64", &[&base, &[1; 512]]);
        let index = contents.put_into_index();
        contents.sign(one.digest, b"signature of b");
        contents.sign(index, b"signature of a's index");
        contents
    }

    fn index(&self) -> Index {
        Index::new(
            self.images.clone(),
            self.indexes.clone(),
            self.signatures.clone(),
            Vec::new(),
        )
        .unwrap()
    }

    fn write(&self, mut writer: Writer) {
        while let Some(blob) = writer.next_blob() {
            writer
                .blob(&mut self.blobs[&blob.digest].as_slice())
                .unwrap();
        }
        writer.finish().unwrap();
    }

    fn archive(&self) -> Vec<u8> {
        self.archive_with(&self.index())
    }

    fn archive_with(&self, index: &Index) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bundle");
        let plan = Plan::new(index, &self.blobs).unwrap();
        self.write(Writer::archive(File::create(&path).unwrap(), index, plan).unwrap());
        fs::read(path).unwrap()
    }

    fn directory(&self, path: &Path) {
        let index = self.index();
        let plan = Plan::new(&index, &self.blobs).unwrap();
        self.write(Writer::directory(path, &index, plan).unwrap());
    }
}

/// A file that bundles are written to one after the other.
struct Scratch {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bundle");
        Scratch {
            _directory: directory,
            path,
        }
    }

    fn verify(&self, bytes: &[u8]) -> Result<crate::VerifiedBundle, Refused> {
        fs::write(&self.path, bytes).unwrap();
        self.verify_again()
    }

    /// Verifies the file as it is now.
    fn verify_again(&self) -> Result<crate::VerifiedBundle, Refused> {
        verify(Files::open(&self.path).unwrap(), &mut |_| {})
    }
}

/// The whole message of a refusal.
fn said(refused: &Refused) -> String {
    let mut said = refused.to_string();
    let mut source = refused.source();
    while let Some(error) = source {
        said = format!("{said}: {error}");
        source = error.source();
    }
    said
}
