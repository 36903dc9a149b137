//! The store of this machine's images: each unpacked into a directory of its own.
//!
//! ```text
//! <store>/images/<64 hex digits>/rootfs/       the merged layers, never written to again
//!                               /image.json    its record: names, config, sizes, times
//!                               /proofs.json   the signatures that it was verified by, if it was
//! <store>/images/.incoming-…                   a pull that is under way, or was cut off
//! <store>/containers/<name>/                   the writable layer of a container
//! ```
//!
//! An image is there whole or not at all: it is unpacked beside its place, synced and renamed into it. Everything here can be pulled again,
//! so anything damaged is removed rather than repaired.
//!
//! A name means one image: the one last pulled by it. An image that has lost all its names is named by its digest.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::manifest::ImageConfig;
use crate::verification::proof::{self, Proof, Proofs};
use instar_base::blocking_io;
use instar_base::lock::Lock as _;
use instar_base::whole_file;
use instar_values::Digest;
use instar_values::ImageReference;

/// Prefixes of directories that are not images.
const INCOMING: &str = ".incoming-";
const REMOVED: &str = ".removed-";

/// The store of this machine's images; clones share it. Directories are made when first needed.
#[derive(Debug, Clone)]
pub struct ImageStore {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    state: Mutex<State>,
    /// Locked while names change.
    naming: Mutex<()>,
    /// Counter that makes names of temporary directories unique within this process.
    temporaries: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    swept: bool,
    /// Number of [`PulledImage`]s that hold each image.
    held: HashMap<Digest, usize>,
}

/// An image in the store. It is not collected while this value exists.
#[derive(Debug, Clone)]
pub struct PulledImage {
    record: Record,
    directory: PathBuf,
    _hold: Arc<Hold>,
}

impl PartialEq for PulledImage {
    fn eq(&self, other: &Self) -> bool {
        (&self.record, &self.directory) == (&other.record, &other.directory)
    }
}

impl Eq for PulledImage {}

struct Hold {
    shared: Arc<Shared>,
    digest: Digest,
}

impl Hold {
    fn new(shared: &Arc<Shared>, digest: Digest) -> Self {
        *shared.state().held.entry(digest).or_default() += 1;
        Hold {
            shared: shared.clone(),
            digest,
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(count) = state.held.get_mut(&self.digest) {
            *count -= 1;
            if *count == 0 {
                state.held.remove(&self.digest);
            }
        }
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Hold({})", self.digest)
    }
}

/// The content of image.json.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Record {
    digest: Digest,
    /// The digest of the document that its name pointed to, if that was an index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    index: Option<Digest>,
    names: BTreeSet<ImageReference>,
    config: ImageConfig,
    download_bytes: u64,
    unpacked_bytes: u64,
    /// The time of the pull, in seconds since 1970.
    pulled_at: u64,
    /// The last time that a caller of the API asked for it, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked_for_at: Option<u64>,
}

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system failed.
    #[error("{step} {path:?} failed")]
    Io {
        /// The operation.
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The image was never pulled, or is already removed.
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
    /// The digest of its manifest.
    pub fn digest(&self) -> Digest {
        self.record.digest
    }

    /// The digest of the document that its name pointed to when it was pulled: an index, or its manifest.
    pub fn named_digest(&self) -> Digest {
        self.record.index.unwrap_or(self.record.digest)
    }

    /// The names that it was pulled by.
    pub fn names(&self) -> &BTreeSet<ImageReference> {
        &self.record.names
    }

    /// The settings for running it, and its labels.
    pub fn config(&self) -> &ImageConfig {
        &self.record.config
    }

    /// Size of the download, in bytes.
    pub fn download_bytes(&self) -> u64 {
        self.record.download_bytes
    }

    /// Size of its unpacked layers, in bytes.
    pub fn unpacked_bytes(&self) -> u64 {
        self.record.unpacked_bytes
    }

    /// The time of the pull.
    pub fn pulled_at(&self) -> SystemTime {
        UNIX_EPOCH + std::time::Duration::from_secs(self.record.pulled_at)
    }

    /// The last time that a caller of the API asked for it, if ever.
    pub fn asked_for_at(&self) -> Option<SystemTime> {
        let at = self.record.asked_for_at?;
        Some(UNIX_EPOCH + std::time::Duration::from_secs(at))
    }

    /// The signatures that it was verified by, as they are kept. A record that cannot be read is none.
    pub(crate) fn proofs(&self) -> Proofs {
        read_proofs(&self.directory)
    }

    /// The fingerprints of the keys whose signatures are kept with it, newest first. Only [`Policy::admit`](crate::Policy::admit) says
    /// whether a signature holds.
    pub fn signed_by(&self) -> Vec<Digest> {
        self.proofs().iter().map(Proof::key).collect()
    }

    /// The directory of its merged layers. Not to be written to.
    pub fn rootfs(&self) -> PathBuf {
        self.directory.join("rootfs")
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

impl ImageStore {
    /// The store in this directory. Nothing is touched until it is used.
    pub fn new(directory: PathBuf) -> Self {
        let shared = Shared {
            directory,
            state: Mutex::default(),
            naming: Mutex::default(),
            temporaries: AtomicU64::new(0),
        };
        ImageStore {
            shared: Arc::new(shared),
        }
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.shared.directory
    }

    fn images(&self) -> PathBuf {
        self.shared.directory.join("images")
    }

    fn place(&self, digest: Digest) -> PathBuf {
        self.images().join(digest.hex())
    }

    /// The directory of a container's writable layer.
    pub fn container_directory(&self, name: &str) -> PathBuf {
        self.shared.directory.join("containers").join(name)
    }

    /// Makes the directory of images and, the first time, removes interrupted work: pulls, removals, and images whose record cannot be
    /// read.
    fn prepare(&self) -> Result<PathBuf, StoreError> {
        let images = self.images();
        let mut state = self.shared.state();
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
        // Held before the look-up: an image that was found cannot be removed.
        let hold = Arc::new(Hold::new(&self.shared, digest));
        let record = read(&directory).filter(|record| record.digest == digest)?;
        Some(PulledImage {
            record,
            directory,
            _hold: hold,
        })
    }

    /// An image by a name that it was pulled by, or by its digest in any repository. Older versions allowed several images with the same
    /// name; then it is the newest.
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

    /// Removes an image even if it is held. Containers that run from it must be gone.
    pub async fn remove(&self, digest: Digest) -> Result<(), StoreError> {
        let removed = self.put_away(digest)?;
        self.remove_for_good(removed).await
    }

    /// Removes an image unless it is held or a container is mounted from it; returns whether it is gone.
    pub async fn remove_unused(&self, digest: Digest) -> Result<bool, StoreError> {
        let removed = {
            // A caller that wants to hold the image waits here, and finds nothing. A start holds it until its container's file system is
            // mounted.
            let state = self.shared.state();
            if state.held.contains_key(&digest) || self.is_mounted(digest)? {
                return Ok(false);
            }
            self.put_away(digest)?
        };
        self.remove_for_good(removed).await?;
        Ok(true)
    }

    /// Moves an image out of the store in one step.
    fn put_away(&self, digest: Digest) -> Result<PathBuf, StoreError> {
        let place = self.place(digest);
        let removed = self.temporary(REMOVED, digest);
        match fs::rename(&place, &removed) {
            Ok(()) => Ok(removed),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::Unknown(digest))
            }
            Err(error) => Err(failed("removing", &place)(error)),
        }
    }

    async fn remove_for_good(&self, removed: PathBuf) -> Result<(), StoreError> {
        let path = removed.clone();
        let work = blocking_io::within(blocking_io::ANSWER, move || remove_tree(&path));
        let done = work
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)));
        done.map_err(failed("removing", &removed))
    }

    /// Whether an overlay is mounted over it: of a running container, or a leftover.
    fn is_mounted(&self, digest: Digest) -> Result<bool, StoreError> {
        let path = Path::new("/proc/self/mountinfo");
        let mounts = fs::read_to_string(path).map_err(failed("reading", path))?;
        Ok(lower_images(&mounts, &self.images()).contains(&digest))
    }

    /// Removes interrupted work, unless that has been done.
    pub fn sweep(&self) -> Result<(), StoreError> {
        if self.images().exists() {
            self.prepare()?;
        }
        Ok(())
    }

    fn temporary(&self, kind: &str, digest: Digest) -> PathBuf {
        let count = self.shared.temporaries.fetch_add(1, Ordering::Relaxed);
        self.images()
            .join(format!("{kind}{}-{count}", digest.hex()))
    }

    /// Makes a place for an image that is about to be unpacked.
    pub fn incoming(&self, digest: Digest) -> Result<Incoming, StoreError> {
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

    /// Gives an image of the store a name, and takes the name from all others.
    pub(super) fn add_name(
        &self,
        mut image: PulledImage,
        name: &ImageReference,
    ) -> Result<PulledImage, StoreError> {
        let _naming = self.naming();
        self.take_name(name, image.digest())?;
        if image.record.names.insert(name.clone()) {
            write(&image.directory, &image.record)?;
        }
        Ok(image)
    }

    /// Keeps the signature that an image was verified by.
    pub(super) fn keep_proof(&self, image: &PulledImage, proof: &Proof) -> Result<(), StoreError> {
        let _naming = self.naming();
        let mut proofs = image.proofs();
        match proofs.add(proof) {
            true => write_proofs(&image.directory, &proofs),
            false => Ok(()),
        }
    }

    fn naming(&self) -> MutexGuard<'_, ()> {
        self.shared.naming.locked()
    }

    /// Takes a name from all other images, before the new one gets it: after a power cut no image has it rather than two.
    fn take_name(&self, name: &ImageReference, but: Digest) -> Result<(), StoreError> {
        for mut image in self.list()? {
            let record = &mut image.record;
            if record.digest == but || !record.names.remove(name) {
                continue;
            }
            if record.names.is_empty() {
                record.names.insert(name.at(record.digest));
            }
            write(&image.directory, record)?;
        }
        Ok(())
    }

    /// Notes that a caller asks for an image now.
    pub fn note_asked_for(&self, image: &PulledImage) -> Result<(), StoreError> {
        let _naming = self.naming();
        let Some(mut image) = self.get(image.digest()) else {
            return Ok(());
        };
        image.record.asked_for_at = Some(now());
        write(&image.directory, &image.record)
    }
}

/// The facts about an image that comes into the store.
pub struct NewImage {
    /// Its name.
    pub name: ImageReference,
    /// The digest of the document that the name points to.
    pub named_digest: Digest,
    /// The settings for running it, and its labels.
    pub config: ImageConfig,
    /// Size of the download, in bytes.
    pub download_bytes: u64,
    /// Size of its unpacked layers, in bytes.
    pub unpacked_bytes: u64,
}

/// An image that is being unpacked. Unless it is committed, dropping it removes it.
pub struct Incoming {
    store: ImageStore,
    digest: Digest,
    directory: PathBuf,
}

impl Incoming {
    /// The directory for its layers.
    pub fn rootfs(&self) -> PathBuf {
        self.directory.join("rootfs")
    }

    /// Keeps the signature that the image was verified by. To be called before it is committed, so that it is never in the store without.
    pub(super) fn keep_proof(&self, proof: &Proof) -> Result<(), StoreError> {
        let mut proofs = Proofs::default();
        proofs.add(proof);
        write_proofs(&self.directory, &proofs)
    }

    /// Makes it an image of the store. Blocks until it is on the disk.
    pub fn commit(self, image: NewImage) -> Result<PulledImage, StoreError> {
        let name = &image.name;
        let record = Record {
            digest: self.digest,
            index: Some(image.named_digest).filter(|&named| named != self.digest),
            names: BTreeSet::from([name.clone()]),
            config: image.config,
            download_bytes: image.download_bytes,
            unpacked_bytes: image.unpacked_bytes,
            pulled_at: now(),
            asked_for_at: None,
        };
        write(&self.directory, &record)?;
        // One sync for all files of the image instead of one for each.
        let directory = File::open(&self.directory).map_err(failed("opening", &self.directory))?;
        rustix::fs::syncfs(&directory)
            .map_err(|errno| failed("syncing", &self.directory)(errno.into()))?;
        // Held from the moment at which it appears, so that it cannot be collected.
        let _hold = Hold::new(&self.store.shared, self.digest);
        let place = self.store.place(self.digest);
        {
            let _naming = self.store.naming();
            self.store.take_name(name, self.digest)?;
        }
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
        // After a commit there is nothing left. Files that cannot be removed now are removed after the next start.
        if let Err(error) = remove_tree(&self.directory) {
            tracing::warn!("{} could not be removed: {error}", self.directory.display());
        }
    }
}

/// The images of this directory that are below overlay mounts (proc_pid_mountinfo(5)). machined's table of mounts cannot be used: it is
/// above this crate, and does not read a filesystem's options.
fn lower_images(mountinfo: &str, images: &Path) -> BTreeSet<Digest> {
    let overlays = mountinfo
        .lines()
        .filter_map(|line| line.split_once(" - overlay "));
    let options = overlays.flat_map(|(_, rest)| rest.split([' ', ',']));
    // Newer kernels show a directory that was given alone as `lowerdir+`.
    let lower = options.filter_map(|option| {
        let (key, path) = option.split_once('=')?;
        matches!(key, "lowerdir" | "lowerdir+").then_some(Path::new(path))
    });
    let image = lower.filter_map(|path| {
        let first = path.strip_prefix(images).ok()?.components().next()?;
        Digest::from_hex(first.as_os_str().to_str()?).ok()
    });
    image.collect()
}

const PROOFS: &str = "proofs.json";
/// Size limit of kept proofs, in bytes: four times a payload and an index of 1 MiB each, in base64.
const LARGEST_PROOFS: u64 = 12 << 20;

fn read_proofs(directory: &Path) -> Proofs {
    let path = directory.join(PROOFS);
    let read = || {
        let file = File::open(&path)?;
        let mut bytes = Vec::new();
        file.take(LARGEST_PROOFS).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    match read().map(|bytes| proof::read(&bytes)) {
        Ok(Some(proofs)) => proofs,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Proofs::default(),
        Ok(None) => {
            tracing::warn!(
                "{} is damaged: the signatures in it do not count",
                path.display()
            );
            Proofs::default()
        }
        Err(error) => {
            tracing::warn!("{} cannot be read: {error}", path.display());
            Proofs::default()
        }
    }
}

fn write_proofs(directory: &Path, proofs: &Proofs) -> Result<(), StoreError> {
    let path = directory.join(PROOFS);
    let bytes = proof::write(proofs).map_err(io::Error::from);
    let written = bytes.and_then(|bytes| whole_file::replace(&path, 0o600, &bytes));
    written.map_err(failed("writing", &path))
}

fn read(directory: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(directory.join("image.json")).ok()?).ok()
}

fn write(directory: &Path, record: &Record) -> Result<(), StoreError> {
    let path = directory.join("image.json");
    let bytes =
        serde_json::to_vec(record).map_err(|error| failed("writing", &path)(error.into()))?;
    whole_file::replace(&path, 0o644, &bytes).map_err(failed("writing", &path))
}

/// Removes a directory; a missing one is fine. Does not follow links (std promises that).
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

    fn new_image(reference: &str, digest: Digest) -> NewImage {
        NewImage {
            name: name(reference),
            named_digest: digest,
            config: ImageConfig::default(),
            download_bytes: 0,
            unpacked_bytes: 0,
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
        let store = ImageStore::new(directory.path().to_owned());
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
        let first = store.add_name(nameless, &tag).unwrap();
        assert_eq!(store.find(&tag), Some(first));
        let second = store.get(second.digest()).unwrap();
        assert!(!second.names().contains(&tag));
    }

    #[tokio::test]
    async fn an_image_that_a_value_stands_for_is_not_collected() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned());
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
        let found = lower_images(&mounts, Path::new("/var/lib/instar/images"));
        assert_eq!(found, BTreeSet::from([one, two]));
    }

    #[test]
    fn two_pulls_of_one_image_end_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned());
        let first = store.incoming(Digest::of(b"x")).unwrap();
        let second = store.incoming(Digest::of(b"x")).unwrap();
        first.commit(new_image("r.io/a", Digest::of(b"x"))).unwrap();
        let image = second
            .commit(new_image("r.io/b", Digest::of(b"x")))
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
