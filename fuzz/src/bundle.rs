//! A bundle of images, as the file that is uploaded or lies on a stick.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};

use instar_bundle::{Document, Files, Image, Index, Plan, Platform, Writer, verify};
use machined::values::Digest;

/// Verifies the bundle. What is accepted holds all that it names.
pub(crate) fn decode(bytes: &[u8]) {
    let Some(file) = written(bytes) else { return };
    let Ok(bundle) = verify(Files::archive(file), &mut |_| {}) else {
        return;
    };
    for blob in bundle.plan().blobs() {
        let mut content = Vec::new();
        let read = bundle
            .blob(blob.digest)
            .map(|mut it| it.read_to_end(&mut content));
        assert!(read.is_ok_and(|read| read.is_ok()));
        assert!(Digest::of(&content) == blob.digest);
    }
}

fn written(bytes: &[u8]) -> Option<File> {
    let mut file = tempfile::tempfile().ok()?;
    file.write_all(bytes).ok()?;
    Some(file)
}

/// The smallest bundle.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    smallest().into_iter().collect()
}

fn smallest() -> Option<Vec<u8>> {
    let config = br#"{"os":"linux","architecture":"amd64"}"#.to_vec();
    let manifest = format!(
        r#"{{"config":{{"digest":"{}","size":{}}},"layers":[]}}"#,
        Digest::of(&config),
        config.len()
    );
    let manifest = manifest.into_bytes();
    let image = Image {
        reference: "r.io/a:v1".parse().ok()?,
        platform: Platform {
            architecture: "amd64".to_owned(),
            os: "linux".to_owned(),
        },
        manifest: Document {
            digest: Digest::of(&manifest),
            size: manifest.len() as u64,
            media_type: "application/vnd.oci.image.manifest.v1+json".to_owned(),
        },
        index: None,
    };
    let index = Index::new(vec![image], Vec::new(), Vec::new(), Vec::new()).ok()?;
    let blobs = BTreeMap::from([manifest, config].map(|it| (Digest::of(&it), it)));
    let plan = Plan::new(&index, &blobs).ok()?;
    let mut file = tempfile::tempfile().ok()?;
    let mut writer = Writer::archive(file.try_clone().ok()?, &index, plan).ok()?;
    while let Some(blob) = writer.next_blob() {
        writer.blob(&mut blobs.get(&blob.digest)?.as_slice()).ok()?;
    }
    writer.finish().ok()?;
    let mut bytes = Vec::new();
    file.rewind().ok()?;
    file.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}
