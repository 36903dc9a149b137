//! Keeps a file of a bundle in the store: as an image without files, so that its blobs stay for as long as that image does.
//!
//! The content is not looked into. It is believed, and unpacked, by whoever knows its digest.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use instar_base::blocking_io::{self, NoAnswer};
use instar_bundle::{BundledFile, LARGEST_DOCUMENT, VerifiedBundle};
use instar_values::{Digest, ImageReference, ReferenceError};

use crate::blobs::{Blobs, IncomingBlob, Receiving};
use crate::manifest::{ImageConfig, Layer};
use crate::pull::room_for_all;
use crate::store::{ImageStore, NewImage, NoRoom, StoreError};
use crate::store_error::failed;

/// The registry in the names of these images. No server has this name.
const REGISTRY: &str = "bundle.invalid";
/// Size of the pieces that are copied.
const PIECE: usize = 64 << 10;

/// Why a file of a bundle is not kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepFileError {
    /// There is no room on the disk for it and for its unpacked files.
    #[error(
        "there is no room for it: {0}; remove an image or files of a user volume, or take a larger disk"
    )]
    NoRoom(NoRoom),
    /// The bundle has changed since it was verified, or is gone.
    #[error("the bundle cannot be read any more")]
    Bundle(#[source] io::Error),
    /// The store failed.
    #[error("it cannot be stored")]
    Store(#[from] StoreError),
    /// Its name makes no name of an image.
    #[error("its name is of no use")]
    Name(#[from] ReferenceError),
    /// The thread that copies ended without a result.
    #[error("its copying was interrupted")]
    Interrupted(#[from] NoAnswer),
}

/// Keeps a file of a bundle; returns the digest of the image that it is kept by. `None` if the store keeps no blobs: it is in memory.
///
/// # Errors
/// The bundle has changed since it was verified, there is no room, or the store failed.
pub async fn keep_file(
    bundle: &VerifiedBundle,
    file: &BundledFile,
    store: &ImageStore,
) -> Result<Option<Digest>, KeepFileError> {
    let Some(blobs) = store.blobs() else {
        return Ok(None);
    };
    let (image, name) = (file.manifest().digest, name_of(file)?);
    // Held before the first look: none of them is collected in between.
    let _held = blobs.hold(file.blobs().map(|(digest, _)| digest));
    let layer = Layer {
        digest: file.digest(),
        size: file.size(),
        diff_id: file.digest(),
    };
    let room = room_for_all(&[vec![layer]], store).await?;
    if !room.is_enough() {
        return Err(KeepFileError::NoRoom(room.numbers));
    }
    for (digest, size) in file.blobs() {
        keep_blob(bundle, &blobs, digest, size).await?;
    }
    let (store, size) = (store.clone(), file.size());
    let blobs = file.blobs().map(|(digest, _)| digest).into();
    blocking_io::to_its_end(move || commit(&store, image, name, size, blobs)).await??;
    Ok(Some(image))
}

/// The files that are kept by these images; others are no images of files. Blocks for as long as the disk takes.
pub fn kept_files(store: &ImageStore, images: &BTreeSet<Digest>) -> Vec<BundledFile> {
    let Some(blobs) = store.blobs() else {
        return Vec::new();
    };
    let read = |image: &Digest| {
        // What cannot be read is not here.
        let manifest = blobs.document(*image, LARGEST_DOCUMENT).ok()??;
        BundledFile::of_manifest(&manifest)
    };
    images.iter().filter_map(read).collect()
}

/// The size of the file with this digest, if a bundle has brought it.
pub fn kept_size(store: &ImageStore, digest: Digest) -> Option<u64> {
    // A store that cannot be read has no file to give.
    let blob = store.blobs()?.open(digest).ok()??;
    Some(blob.size())
}

/// Copies a file that a bundle brought; returns its size, or `None` if the store does not have it. A damaged one is removed and counts as not
/// here: it may be fetched. Blocks for as long as the disk takes.
///
/// # Errors
/// The file system failed.
pub fn copy_file(store: &ImageStore, digest: Digest, to: &Path) -> Result<Option<u64>, StoreError> {
    let Some(blobs) = store.blobs() else {
        return Ok(None);
    };
    let Some(blob) = blobs.open(digest)? else {
        return Ok(None);
    };
    let mut copy = File::create(to).map_err(failed("creating", to))?;
    let (mut content, mut piece, mut bytes) = (blob.checked(), vec![0; PIECE], 0);
    loop {
        let count = match content.read(&mut piece) {
            Ok(0) => return Ok(Some(bytes)),
            Ok(count) => count,
            // It was damaged, and is removed.
            Err(_) => return Ok(None),
        };
        let read = piece.get(..count).unwrap_or_default();
        copy.write_all(read).map_err(failed("writing", to))?;
        bytes += count as u64;
    }
}

/// The name of the image that a file is kept by: the file's, as far as such names allow its letters.
fn name_of(file: &BundledFile) -> Result<ImageReference, ReferenceError> {
    let lower = file.name().to_ascii_lowercase();
    let words = lower.split(|letter: char| !letter.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let digest = file.manifest().digest;
    format!("{REGISTRY}/{}@{digest}", words.join("-")).parse()
}

async fn keep_blob(
    bundle: &VerifiedBundle,
    blobs: &Blobs,
    digest: Digest,
    size: u64,
) -> Result<(), KeepFileError> {
    let mut receiving = blobs.receive(digest, size).await?;
    if let Receiving::Stored(_) = receiving {
        let stored = blobs.clone();
        let is_gone = move || stored.remove_if_damaged(digest);
        if !blocking_io::to_its_end(is_gone).await?? {
            return Ok(());
        }
        // The bundle has it whole.
        receiving = blobs.receive(digest, size).await?;
    }
    if let Receiving::Missing(incoming) = receiving {
        let bundle = bundle.clone();
        blocking_io::to_its_end(move || copy_blob(&bundle, digest, incoming)).await??;
    }
    Ok(())
}

/// Copies a blob from its beginning: whatever an earlier transfer has left is older than the bundle.
fn copy_blob(
    bundle: &VerifiedBundle,
    digest: Digest,
    mut incoming: IncomingBlob,
) -> Result<(), KeepFileError> {
    let mut content = bundle.blob(digest).map_err(KeepFileError::Bundle)?;
    incoming.start_again()?;
    let mut piece = vec![0; PIECE];
    loop {
        let count = content.read(&mut piece).map_err(KeepFileError::Bundle)?;
        let Some(bytes) = piece.get(..count).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        incoming.write(bytes)?;
    }
    incoming.commit()?;
    Ok(())
}

/// Makes the image by which the blobs stay. Another import may have made it.
fn commit(
    store: &ImageStore,
    image: Digest,
    name: ImageReference,
    size: u64,
    blobs: BTreeSet<Digest>,
) -> Result<(), StoreError> {
    if store.get(image).is_some() {
        return Ok(());
    }
    let mut incoming = store.incoming(image)?;
    incoming.seal()?;
    incoming.commit(NewImage {
        name,
        named_digest: image,
        config: ImageConfig::default(),
        download_bytes: size,
        unpacked_bytes: 0,
        blobs,
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::bundled::StoredBundle;
    use crate::store::Keeps;
    use crate::{Urgency, name_of_file, take_file};
    use instar_bundle::{EMPTY_CONFIG, Files, Index, Plan, Writer, verify};
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::FileExt as _;
    use std::path::PathBuf;

    const CONTENT: &[u8] = b"hsqs, and the rest of a file system";

    /// A bundle with one file, and a store.
    struct Site {
        directory: tempfile::TempDir,
        bundle: VerifiedBundle,
        file: BundledFile,
        store: ImageStore,
    }

    impl Site {
        fn with(keeps: Keeps) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let size = CONTENT.len() as u64;
            let file = BundledFile::new("Site-v1+2.raw", Digest::of(CONTENT), size).unwrap();
            let blobs = [file.manifest_bytes(), EMPTY_CONFIG.into(), CONTENT.into()];
            let blobs = BTreeMap::from(blobs.map(|it| (Digest::of(&it), it)));
            let index = Index::new(vec![], vec![], vec![], vec![file.clone()]).unwrap();
            let plan = Plan::new(&index, &blobs).unwrap();
            let path = directory.path().join("bundle");
            let mut writer = Writer::archive(File::create(&path).unwrap(), &index, plan).unwrap();
            while let Some(blob) = writer.next_blob() {
                writer.blob(&mut blobs[&blob.digest].as_slice()).unwrap();
            }
            writer.finish().unwrap();
            Site {
                bundle: verify(Files::open(&path).unwrap(), &mut |_| {}).unwrap(),
                file,
                store: ImageStore::new(directory.path().join("store"), keeps),
                directory,
            }
        }

        async fn keep(&self) -> Result<Option<Digest>, KeepFileError> {
            keep_file(&self.bundle, &self.file, &self.store).await
        }

        fn has(&self) -> bool {
            kept_size(&self.store, self.file.digest()).is_some()
        }

        /// The content of a copy of the file; none if the store does not have the file.
        fn copied(&self) -> Option<Vec<u8>> {
            let to = self.directory.path().join("copy");
            let copied = copy_file(&self.store, self.file.digest(), &to).unwrap()?;
            let content = fs::read(to).unwrap();
            assert_eq!(copied, content.len() as u64);
            Some(content)
        }

        fn blob(&self) -> PathBuf {
            let hex = self.file.digest().hex();
            self.store.directory().join("blobs/sha256").join(hex)
        }
    }

    #[tokio::test]
    async fn a_file_stays_for_as_long_as_the_image_that_keeps_it() {
        let site = Site::with(Keeps::Blobs);
        assert!(!site.has() && site.copied().is_none());
        let image = site.keep().await.unwrap().unwrap();
        assert_eq!(site.keep().await.unwrap(), Some(image));
        assert_eq!(image, site.file.manifest().digest);
        let kept = site.store.get(image).unwrap();
        let name = kept.names().first().unwrap().to_string();
        assert_eq!(name, format!("bundle.invalid/site-v1-2-raw@{image}"));
        drop(kept);
        site.store.collect_surplus(Urgency::LackOfRoom).unwrap();
        assert_eq!(site.copied().unwrap(), CONTENT);
        let images = BTreeSet::from([image, Digest::of(b"none")]);
        let known = kept_files(&site.store, &images);
        assert_eq!(known, std::slice::from_ref(&site.file));
        assert!(site.store.remove_unused(image).await.unwrap());
        assert!(!site.has() && site.copied().is_none());
        assert!(kept_files(&site.store, &images).is_empty());
    }

    #[tokio::test]
    async fn a_file_also_stays_for_as_long_as_the_image_that_is_made_of_it() {
        let site = Site::with(Keeps::Blobs);
        let image = site.keep().await.unwrap().unwrap();
        let digest = site.file.digest();
        let name = name_of_file("site", digest).unwrap();
        take_file(&site.store, &name, 1, |_| Ok(0)).unwrap();
        site.store.remove(image).await.unwrap();
        site.store.collect_surplus(Urgency::LackOfRoom).unwrap();
        assert_eq!(site.copied().unwrap(), CONTENT);
        site.store.remove(digest).await.unwrap();
        assert!(!site.has());
    }

    #[tokio::test]
    async fn a_damaged_file_is_not_copied_and_the_bundle_mends_it() {
        let site = Site::with(Keeps::Blobs);
        site.keep().await.unwrap();
        fs::write(site.blob(), b"another").unwrap();
        assert!(site.copied().is_none());
        assert!(!site.has(), "the damaged file is still here");
        site.keep().await.unwrap();
        assert_eq!(site.copied().unwrap(), CONTENT);
        fs::write(site.blob(), b"another").unwrap();
        site.keep().await.unwrap();
        assert_eq!(site.copied().unwrap(), CONTENT);
    }

    #[tokio::test]
    async fn a_bundle_that_has_changed_brings_nothing() {
        let site = Site::with(Keeps::Blobs);
        let path = site.directory.path().join("bundle");
        let bytes = fs::read(&path).unwrap();
        let at = bytes.windows(CONTENT.len()).position(|it| it == CONTENT);
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"X", at.unwrap() as u64).unwrap();
        let error = site.keep().await.unwrap_err();
        assert!(matches!(error, KeepFileError::Bundle(_)), "{error:?}");
        assert!(!site.has());
    }

    #[tokio::test]
    async fn another_machine_gets_the_file_in_a_bundle_of_this_store() {
        let site = Site::with(Keeps::Blobs);
        let image = site.keep().await.unwrap().unwrap();
        let name = site.store.get(image).unwrap().names().first().cloned();
        let bundle = StoredBundle::new(&site.store, &[name.unwrap()]).unwrap();
        assert_eq!(bundle.digest(), site.bundle.digest());
        let path = site.directory.path().join("for-another");
        bundle
            .write(Box::new(File::create(&path).unwrap()))
            .unwrap();
        let first = fs::read(site.directory.path().join("bundle")).unwrap();
        assert_eq!(fs::read(path).unwrap(), first);
    }

    #[tokio::test]
    async fn a_store_in_memory_keeps_no_file() {
        let site = Site::with(Keeps::ImagesAlone);
        assert_eq!(site.keep().await.unwrap(), None);
        assert!(!site.has() && site.copied().is_none());
    }
}
