//! The images of this machine: each unpacked into a directory of its own.
//!
//! ```text
//! <store>/images/<64 hex digits>/rootfs/       the merged layers, never written to again
//!                               /image.json    what is known about it
//! <store>/images/.incoming-…                   a pull that is under way, or was cut off
//! <store>/containers/<name>/                   the writable layer of a container
//! ```
//!
//! An image is there whole or not at all: it is unpacked beside its place, synced and renamed into it. Everything
//! here can be pulled again, so whatever looks damaged is removed rather than repaired.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::manifest::ImageConfig;
use super::reference::ImageReference;

/// What starts the names of directories that are no images.
const INCOMING: &str = ".incoming-";
const REMOVED: &str = ".removed-";

/// The images of this machine; clones share it. Directories are made when first needed.
#[derive(Clone)]
pub struct ImageStore {
    shared: Arc<Shared>,
}

struct Shared {
    directory: PathBuf,
    state: Mutex<State>,
    /// Makes names of temporaries unique within this process.
    temporaries: AtomicU64,
}

#[derive(Default)]
struct State {
    swept: bool,
    pinned: HashSet<Digest>,
}

/// An image that is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PulledImage {
    record: Record,
    directory: PathBuf,
}

/// image.json.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Record {
    digest: Digest,
    names: BTreeSet<ImageReference>,
    config: ImageConfig,
    download_bytes: u64,
    unpacked_bytes: u64,
    /// Seconds since 1970.
    pulled_at: u64,
}

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system.
    #[error("{step} {path:?} failed")]
    Io {
        /// What was tried.
        step: &'static str,
        /// Where.
        path: PathBuf,
        /// The kernel's word.
        source: io::Error,
    },
    /// Somebody needs it.
    #[error("image {0} is in use by the machine config")]
    Pinned(Digest),
    /// Never pulled or already removed.
    #[error("there is no image {0}")]
    Unknown(Digest),
}

fn failed<'a>(step: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StoreError + 'a {
    move |source| StoreError::Io {
        step,
        path: path.to_owned(),
        source,
    }
}

impl PulledImage {
    /// Of its manifest.
    pub fn digest(&self) -> Digest {
        self.record.digest
    }

    /// The names that it was pulled by.
    pub fn names(&self) -> &BTreeSet<ImageReference> {
        &self.record.names
    }

    /// How to run it, and its labels.
    pub fn config(&self) -> &ImageConfig {
        &self.record.config
    }

    /// Bytes that came over the network.
    pub fn download_bytes(&self) -> u64 {
        self.record.download_bytes
    }

    /// Bytes of its layers, unpacked.
    pub fn unpacked_bytes(&self) -> u64 {
        self.record.unpacked_bytes
    }

    /// When it came.
    pub fn pulled_at(&self) -> SystemTime {
        UNIX_EPOCH + std::time::Duration::from_secs(self.record.pulled_at)
    }

    /// Its merged layers. Not to be written to.
    pub fn rootfs(&self) -> PathBuf {
        self.directory.join("rootfs")
    }
}

impl ImageStore {
    /// The store in that directory. Nothing is touched until it is used.
    pub fn new(directory: PathBuf) -> Self {
        let shared = Shared {
            directory,
            state: Mutex::default(),
            temporaries: AtomicU64::new(0),
        };
        ImageStore {
            shared: Arc::new(shared),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn images(&self) -> PathBuf {
        self.shared.directory.join("images")
    }

    fn place(&self, digest: Digest) -> PathBuf {
        self.images().join(digest.hex())
    }

    /// Where a container's writable layer is.
    pub(super) fn container_directory(&self, name: &str) -> PathBuf {
        self.shared.directory.join("containers").join(name)
    }

    /// Makes the directory of images and, the first time, removes what was cut off: pulls, removals, and images whose
    /// record cannot be read.
    fn prepare(&self) -> Result<PathBuf, StoreError> {
        let images = self.images();
        let mut state = self.state();
        fs::create_dir_all(&images).map_err(failed("creating", &images))?;
        if state.swept {
            return Ok(images);
        }
        for entry in fs::read_dir(&images).map_err(failed("listing", &images))? {
            let path = entry.map_err(failed("listing", &images))?.path();
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            let whole = Digest::from_hex(&name)
                .is_ok_and(|digest| read(&path).is_some_and(|record| record.digest == digest));
            if !whole {
                tracing::info!("removing what is left of an image: {}", path.display());
                remove_tree(&path).map_err(failed("removing", &path))?;
            }
        }
        state.swept = true;
        Ok(images)
    }

    /// An image by its digest.
    pub fn get(&self, digest: Digest) -> Option<PulledImage> {
        let directory = self.place(digest);
        let record = read(&directory).filter(|record| record.digest == digest)?;
        Some(PulledImage { record, directory })
    }

    /// An image by a name that it was pulled by, or by its digest in any repository. The newest if there are several:
    /// a tag may have moved.
    pub fn find(&self, reference: &ImageReference) -> Option<PulledImage> {
        if let Some(image) = reference.digest().and_then(|digest| self.get(digest)) {
            return Some(image);
        }
        let named = self
            .list()
            .unwrap_or_default()
            .into_iter()
            .filter(|image| image.names().contains(reference));
        named.max_by_key(|image| image.record.pulled_at)
    }

    /// All images, by digest.
    pub fn list(&self) -> Result<Vec<PulledImage>, StoreError> {
        let images = self.images();
        let entries = match fs::read_dir(&images) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("listing", &images)(error)),
        };
        let mut found = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed("listing", &images))?;
            let digest = entry
                .file_name()
                .to_str()
                .and_then(|name| Digest::from_hex(name).ok());
            found.extend(digest.and_then(|digest| self.get(digest)));
        }
        found.sort_by_key(PulledImage::digest);
        Ok(found)
    }

    /// Keeps an image from being removed, here already or not.
    pub fn pin(&self, digest: Digest) {
        self.state().pinned.insert(digest);
    }

    /// Lets it be removed again.
    pub fn unpin(&self, digest: Digest) {
        self.state().pinned.remove(&digest);
    }

    /// What is pinned.
    pub fn pinned(&self) -> HashSet<Digest> {
        self.state().pinned.clone()
    }

    /// Removes an image. Containers that run from it must be gone.
    pub async fn remove(&self, digest: Digest) -> Result<(), StoreError> {
        let removed = {
            let state = self.state();
            if state.pinned.contains(&digest) {
                return Err(StoreError::Pinned(digest));
            }
            let place = self.place(digest);
            let removed = self.temporary(REMOVED, digest);
            match fs::rename(&place, &removed) {
                Ok(()) => removed,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(StoreError::Unknown(digest));
                }
                Err(error) => return Err(failed("removing", &place)(error)),
            }
        };
        let work = tokio::task::spawn_blocking(move || {
            remove_tree(&removed).map_err(failed("removing", &removed))
        });
        work.await.unwrap_or_else(|error| {
            Err(failed("removing", &self.place(digest))(io::Error::other(
                error,
            )))
        })
    }

    fn temporary(&self, kind: &str, digest: Digest) -> PathBuf {
        let count = self.shared.temporaries.fetch_add(1, Ordering::Relaxed);
        self.images()
            .join(format!("{kind}{}-{count}", digest.hex()))
    }

    /// A place for an image that is about to be unpacked.
    pub(super) fn incoming(&self, digest: Digest) -> Result<Incoming, StoreError> {
        self.prepare()?;
        let directory = self.temporary(INCOMING, digest);
        let rootfs = directory.join("rootfs");
        fs::create_dir_all(&rootfs).map_err(failed("creating", &rootfs))?;
        Ok(Incoming {
            store: self.clone(),
            digest,
            directory,
        })
    }

    /// Remembers one more name of an image that is here.
    pub(super) fn add_name(
        &self,
        mut image: PulledImage,
        name: &ImageReference,
    ) -> Result<PulledImage, StoreError> {
        if image.record.names.insert(name.clone()) {
            write(&image.directory, &image.record)?;
        }
        Ok(image)
    }
}

/// An image that is being unpacked. Unless it is committed, dropping it removes it.
pub(super) struct Incoming {
    store: ImageStore,
    digest: Digest,
    directory: PathBuf,
}

impl Incoming {
    /// Where its layers go.
    pub(super) fn rootfs(&self) -> PathBuf {
        self.directory.join("rootfs")
    }

    /// Makes it an image of the store. Blocks until the disk has it.
    pub(super) fn commit(
        self,
        name: &ImageReference,
        config: ImageConfig,
        download_bytes: u64,
        unpacked_bytes: u64,
    ) -> Result<PulledImage, StoreError> {
        let pulled_at = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let names = BTreeSet::from([name.clone()]);
        let record = Record {
            digest: self.digest,
            names,
            config,
            download_bytes,
            unpacked_bytes,
            pulled_at,
        };
        write(&self.directory, &record)?;
        // One sync for all files of the image instead of one for each.
        let directory = File::open(&self.directory).map_err(failed("opening", &self.directory))?;
        rustix::fs::syncfs(&directory)
            .map_err(|errno| failed("syncing", &self.directory)(errno.into()))?;
        let place = self.store.place(self.digest);
        match fs::rename(&self.directory, &place) {
            Ok(()) => {}
            // Another pull of the same image was faster.
            Err(_) if self.store.get(self.digest).is_some() => {}
            Err(error) => return Err(failed("creating", &place)(error)),
        }
        let images = self.store.images();
        File::open(&images)
            .and_then(|images| images.sync_all())
            .map_err(failed("syncing", &images))?;
        match self.store.get(self.digest) {
            Some(image) => self.store.add_name(image, name),
            None => Err(StoreError::Unknown(self.digest)),
        }
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // After a commit there is nothing left. What cannot be removed now is removed after the next start.
        if let Err(error) = remove_tree(&self.directory) {
            tracing::warn!("{} could not be removed: {error}", self.directory.display());
        }
    }
}

fn read(directory: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(directory.join("image.json")).ok()?).ok()
}

fn write(directory: &Path, record: &Record) -> Result<(), StoreError> {
    let path = directory.join("image.json");
    let new = directory.join("image.json.new");
    let bytes =
        serde_json::to_vec(record).map_err(|error| failed("writing", &path)(error.into()))?;
    let write = || {
        let mut file = File::create(&new)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(failed("writing", &path))
}

/// Does not follow links (std promises that); nothing there is as good as removed.
fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn name(text: &str) -> ImageReference {
        text.parse().unwrap()
    }

    fn add(store: &ImageStore, content: &[u8], reference: &str) -> PulledImage {
        let incoming = store.incoming(Digest::of(content)).unwrap();
        fs::write(incoming.rootfs().join("file"), content).unwrap();
        incoming
            .commit(&name(reference), ImageConfig::default(), 5, 10)
            .unwrap()
    }

    fn children(path: &Path) -> usize {
        fs::read_dir(path).unwrap().count()
    }

    #[tokio::test]
    async fn images_come_stay_and_go() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().join("instar"));
        assert!(store.list().unwrap().is_empty());
        assert_eq!(children(directory.path()), 0, "made only when needed");

        let image = add(&store, b"one", "r.io/a:1");
        assert_eq!(fs::read(image.rootfs().join("file")).unwrap(), b"one");
        let image = store.add_name(image, &name("r.io/a:latest")).unwrap();
        assert_eq!(store.find(&name("r.io/a:latest")), Some(image.clone()));
        assert_eq!(
            store.find(&name("other.io/x").at(image.digest())),
            Some(image.clone())
        );
        assert_eq!(store.find(&name("r.io/b")), None);

        // Another instance, as after a restart.
        let again = ImageStore::new(directory.path().join("instar"));
        assert_eq!(again.list().unwrap(), std::slice::from_ref(&image));

        store.pin(image.digest());
        assert!(matches!(
            store.remove(image.digest()).await,
            Err(StoreError::Pinned(_))
        ));
        store.unpin(image.digest());
        store.remove(image.digest()).await.unwrap();
        assert!(matches!(
            store.remove(image.digest()).await,
            Err(StoreError::Unknown(_))
        ));
        assert_eq!(children(&directory.path().join("instar/images")), 0);
    }

    #[test]
    fn a_moved_tag_means_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned());
        let mut old = add(&store, b"old", "r.io/a");
        old.record.pulled_at -= 10;
        write(&old.directory, &old.record).unwrap();
        let new = add(&store, b"new", "r.io/a");
        assert_eq!(store.find(&name("r.io/a")).unwrap().digest(), new.digest());
    }

    #[test]
    fn two_pulls_of_one_image_end_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned());
        let first = store.incoming(Digest::of(b"x")).unwrap();
        let second = store.incoming(Digest::of(b"x")).unwrap();
        first
            .commit(&name("r.io/a"), ImageConfig::default(), 0, 0)
            .unwrap();
        let image = second
            .commit(&name("r.io/b"), ImageConfig::default(), 0, 0)
            .unwrap();
        assert_eq!(image.names().len(), 2);
        assert_eq!(children(&store.images()), 1);
    }

    #[test]
    fn whatever_was_cut_off_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned());
        let whole = add(&store, b"whole", "r.io/a");
        drop(store.incoming(Digest::of(b"given up")).unwrap());
        assert_eq!(children(&store.images()), 1);

        // What a power cut may leave.
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

        let again = ImageStore::new(directory.path().to_owned());
        assert_eq!(
            again.list().unwrap(),
            std::slice::from_ref(&whole),
            "damaged ones are never listed"
        );
        drop(again.incoming(Digest::of(b"next")).unwrap());
        assert_eq!(children(&images), 1);
    }
}
