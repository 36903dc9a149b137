//! Images that are made from a file: its digest names the image, and whoever names the digest has said what it may hold.
//!
//! The file is no OCI image, such as the file of a system extension. Its files are kept, checked and collected as those of images are; without
//! a registry and blobs, a damaged one is fetched again.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use instar_values::{Digest, ImageReference, ReferenceError};

use crate::manifest::ImageConfig;
use crate::pull::PullError;
use crate::pull::into_store::usable;
use crate::store::{ImageStore, NewImage};
use crate::store_error::{StoreError, failed};
use crate::verification::VerifiedImage;

/// The registry in the names of these images. No server has this name.
const REGISTRY: &str = "file.invalid";

/// Names the image of a file; `name` is for people.
///
/// # Errors
/// The name cannot be a part of a reference.
pub fn name_of_file(name: &str, digest: Digest) -> Result<ImageReference, ReferenceError> {
    format!("{REGISTRY}/{}@{digest}", name.to_ascii_lowercase()).parse()
}

/// Returns the digest of the file that an image is made from; `None` for an image of a registry.
pub fn file_of(name: &ImageReference) -> Option<Digest> {
    name.digest().filter(|_| name.registry() == REGISTRY)
}

/// Makes an image of the files that `fill` puts into a directory: those of the file that this name has the digest of. `fill` returns their
/// size, in bytes. Blocks until it is on the disk.
///
/// # Errors
/// `fill` failed, or the store did.
pub fn take_file(
    store: &ImageStore,
    name: &ImageReference,
    file_bytes: u64,
    fill: impl FnOnce(&Path) -> io::Result<u64>,
) -> Result<(), StoreError> {
    let Some(digest) = file_of(name) else {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "the image is not of a file");
        return Err(failed("creating", store.directory())(error));
    };
    let mut incoming = store.incoming(digest)?;
    let rootfs = incoming.rootfs();
    let unpacked_bytes = fill(&rootfs).map_err(failed("unpacking to", &rootfs))?;
    if store.blobs().is_some() {
        incoming.seal()?;
    }
    incoming.commit(NewImage {
        name: name.clone(),
        named_digest: digest,
        config: ImageConfig::default(),
        download_bytes: file_bytes,
        unpacked_bytes,
        blobs: BTreeSet::new(),
    })?;
    Ok(())
}

/// Returns the image of a file once its files are known to be as they were unpacked. `None` if it is not here; a damaged one is removed.
///
/// # Errors
/// The store failed.
pub async fn image_of_file(
    store: &ImageStore,
    name: &ImageReference,
) -> Result<Option<VerifiedImage>, PullError> {
    let Some(digest) = file_of(name) else {
        return Ok(None);
    };
    let image = usable(name, digest, store).await?;
    Ok(image.map(VerifiedImage::of_file))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::store::Keeps;
    use std::fs;

    #[tokio::test]
    async fn an_image_of_a_file_is_whole_or_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned(), Keeps::BlobsOnDisk);
        let digest = Digest::of(b"the file");
        let name = name_of_file("Kubernetes", digest).unwrap();
        assert_eq!(
            name.to_string(),
            format!("file.invalid/kubernetes@{digest}")
        );
        assert!(image_of_file(&store, &name).await.unwrap().is_none());

        let broken = take_file(&store, &name, 8, |_| Err(io::ErrorKind::InvalidData.into()));
        broken.unwrap_err();
        assert!(image_of_file(&store, &name).await.unwrap().is_none());

        let fill = |rootfs: &Path| {
            fs::write(rootfs.join("kubelet"), "program")?;
            Ok(7)
        };
        take_file(&store, &name, 8, fill).unwrap();
        let image = image_of_file(&store, &name).await.unwrap().unwrap();
        assert_eq!(image.digest(), digest);
        let file = image.rootfs().join("kubelet");
        assert_eq!(fs::read_to_string(&file).unwrap(), "program");
        drop(image);

        // In the next boot, as it were: what was looked at is forgotten.
        let store = ImageStore::new(directory.path().to_owned(), Keeps::BlobsOnDisk);
        fs::write(&file, "another").unwrap();
        assert!(image_of_file(&store, &name).await.unwrap().is_none());
        assert!(store.get(digest).is_none());
    }

    #[tokio::test]
    async fn an_image_of_a_registry_is_not_of_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned(), Keeps::BlobsOnDisk);
        let digest = Digest::of(b"x");
        let name: ImageReference = format!("r.io/x@{digest}").parse().unwrap();
        assert_eq!(file_of(&name), None);
        take_file(&store, &name, 1, |_| Ok(0)).unwrap_err();
        assert!(image_of_file(&store, &name).await.unwrap().is_none());
    }
}
