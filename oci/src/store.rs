//! The store of this machine's images: each unpacked into a directory of its own.
//!
//! ```text
//! <store>/images/<64 hex digits>/rootfs/       the merged layers, never written to again
//!                               /image.json    its record: names, config, sizes, times
//!                               /proofs.json   the signatures that it was verified by, if it was
//!                               /signatures.json   those that came with it in a bundle, whatever the rules wanted
//!                               /tree.json     the seal of rootfs (`store/sealed.rs`), on a disk only
//! <store>/images/.incoming-…                   a pull that is under way, or was cut off
//! <store>/blobs/                               the blobs that images came from (`blobs`), on a disk only
//! <store>/objects/                             files that images share (`objects`), on a disk only
//! <store>/containers/<name>/                   the writable layer of a container
//! ```
//!
//! An image is there whole or not at all: it is unpacked beside its place, synced and renamed into it. Everything here can be pulled again,
//! so anything damaged is removed rather than repaired.
//!
//! A name means one image: the one last pulled by it. An image that has lost all its names is named by its digest.

mod check;
mod collection;
mod kept_proofs;
mod lack;
mod name_of_bundle;
mod promised;
mod record;
mod removal;
mod room;
mod sealed;

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::blobs::{BlobFile, Blobs, PartialBlob};
use crate::manifest::{ImageConfig, Layer};
use crate::objects::{NewObjects, Objects};
pub use crate::store_error::StoreError;
use crate::store_error::failed;
use crate::verification::proof::{Proof, Proofs};
use crate::verification::unjudged::Unjudged;
pub use collection::Urgency;
use instar_base::lock::Lock as _;
use instar_values::Digest;
use instar_values::ImageReference;
use kept_proofs::LeftProofs;
use lack::Lack;
pub(crate) use promised::Promise;
use promised::Promises;
use record::{Record, read, write};
pub use room::{NoRoom, RoomForAll, reserve_of};
pub(crate) use room::{RoomFacts, RoomPlan};

/// Prefixes of directories that are not images.
const INCOMING: &str = ".incoming-";
const REMOVED: &str = ".removed-";

/// Limit on the pulls that fetch and unpack an image at once: each has three connections and two threads, and some 7 MB of memory.
const MOST_PULLS: usize = 4;

/// The store of this machine's images; clones share it. Directories are made when first needed.
#[derive(Debug, Clone)]
pub struct ImageStore {
    shared: Arc<Shared>,
    for_upgrade: bool,
}

/// The data that a store keeps beside its images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// The blobs that images came from, so that an image can be made again without a registry, and shares them with the next one.
    Blobs,
    /// Nothing: the store is in memory.
    ImagesAlone,
    /// Blobs while its directory is on a disk, nothing while it is in memory: a machine's /var is in memory until its disk is mounted, and
    /// stays there if it has none.
    BlobsOnDisk,
}

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    keeps: Keeps,
    blobs: Blobs,
    objects: Objects,
    left_proofs: LeftProofs,
    lack: Lack,
    promises: Promises,
    /// The turns of pulls.
    turns: Semaphore,
    state: Mutex<State>,
    /// Locked while names change.
    naming: Mutex<()>,
    /// Locked while an image's files are compared with its seal: one image at a time keeps all cores and the disk busy.
    checking: Mutex<()>,
    /// Counter that makes names of temporary directories unique within this process.
    temporaries: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    swept: bool,
    /// Number of [`PulledImage`]s that hold each image.
    held: HashMap<Digest, usize>,
    /// Images whose files were unpacked, or compared with their seal, in this boot.
    checked: BTreeSet<Digest>,
    /// Images that were found damaged, and how; also those that are whole again.
    damaged: HashMap<Digest, String>,
}

/// Whether an image of the store can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wholeness {
    /// Its files are as they were unpacked.
    Whole,
    /// Its files or its record have changed on the disk: how.
    Damaged(String),
    /// It is not in the store.
    Absent,
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

impl PulledImage {
    /// The blobs that its record says it was made from.
    pub(crate) fn noted_blobs(&self) -> &BTreeSet<Digest> {
        &self.record.blobs
    }

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

    /// Whether a reference means this image: it was pulled by that name, or the reference has its digest or that of its index.
    pub fn is_named(&self, reference: &ImageReference) -> bool {
        self.names().contains(reference)
            || reference
                .digest()
                .is_some_and(|digest| [self.digest(), self.named_digest()].contains(&digest))
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
        kept_proofs::read(&self.directory)
    }

    /// The signatures that came with it and that no rule has asked for. A record that cannot be read is none.
    pub(crate) fn unjudged(&self) -> Unjudged {
        kept_proofs::read_unjudged(&self.directory)
    }

    /// All signatures that are kept with it, those that it was verified by first. Waits for the disk.
    pub fn signatures(&self) -> Unjudged {
        let mut all = Unjudged::default();
        for proof in self.proofs().iter() {
            all.add(&Unjudged::of_proof(proof));
        }
        all.add(&self.unjudged());
        all
    }

    /// The fingerprints of the keys that it was verified by, newest first. Only [`Policy::admit`](crate::Policy::admit) says
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
    pub fn new(directory: PathBuf, keeps: Keeps) -> Self {
        let shared = Shared {
            blobs: Blobs::new(&directory),
            objects: Objects::new(&directory),
            left_proofs: LeftProofs::new(&directory),
            checking: Mutex::default(),
            lack: Lack::default(),
            promises: Promises::default(),
            turns: Semaphore::new(MOST_PULLS),
            keeps,
            directory,
            state: Mutex::default(),
            naming: Mutex::default(),
            temporaries: AtomicU64::new(0),
        };
        ImageStore {
            shared: Arc::new(shared),
            for_upgrade: false,
        }
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        &self.shared.directory
    }

    /// The same store for an upgrade, which may use the reserve.
    pub fn for_upgrade(&self) -> Self {
        ImageStore {
            shared: self.shared.clone(),
            for_upgrade: true,
        }
    }

    /// Its blobs; `None` where it keeps none.
    pub fn blobs(&self) -> Option<Blobs> {
        let keeps_them = match self.shared.keeps {
            Keeps::Blobs => true,
            Keeps::ImagesAlone => false,
            Keeps::BlobsOnDisk => !is_in_memory(&self.shared.directory),
        };
        keeps_them.then(|| self.shared.blobs.clone())
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
                if let Ok(digest) = Digest::from_hex(&name) {
                    tracing::error!(
                        "the image {digest} is damaged on the disk and is removed: its record cannot be read"
                    );
                    let how = "its record cannot be read".to_owned();
                    state.damaged.insert(digest, how);
                    // Without its manifest it is not made again from blobs.
                    let blobs = self.blobs_by_manifest(digest).unwrap_or_default();
                    let left = self.shared.left_proofs.take_over(digest, &path, &blobs);
                    if let Err(error) = left {
                        tracing::error!(
                            "the image {digest} stays until its use, or the next boot: {error}"
                        );
                        continue;
                    }
                }
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

    /// An image by a name that it was pulled by, or by its digest or that of its index in any repository. Older versions allowed several
    /// images with the same name; then it is the newest.
    pub fn find(&self, reference: &ImageReference) -> Option<PulledImage> {
        if let Some(image) = reference.digest().and_then(|digest| self.get(digest)) {
            return Some(image);
        }
        let named = self
            .list()
            .unwrap_or_default()
            .into_iter()
            .filter(|image| image.is_named(reference));
        named.max_by_key(|image| image.record.pulled_at)
    }

    /// All images, by digest.
    pub fn list(&self) -> Result<Vec<PulledImage>, StoreError> {
        let digests = self.digests()?;
        Ok(digests.into_iter().filter_map(|it| self.get(it)).collect())
    }

    /// The digests of all images, also of those whose record cannot be read.
    fn digests(&self) -> Result<BTreeSet<Digest>, StoreError> {
        let images = self.images();
        let entries = match fs::read_dir(&images) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(failed("listing", &images)(error)),
        };
        let mut found = BTreeSet::new();
        for entry in entries {
            let name = entry.map_err(failed("listing", &images))?.file_name();
            found.extend(name.to_str().and_then(|name| Digest::from_hex(name).ok()));
        }
        Ok(found)
    }

    /// The images that need no check any more in this boot.
    pub fn checked(&self) -> BTreeSet<Digest> {
        let checked = self.shared.state().checked.clone();
        let is_here = |digest: &Digest| self.place(*digest).exists();
        checked.into_iter().filter(is_here).collect()
    }

    /// Notes that an earlier machined has checked these images in this boot.
    pub fn note_checked(&self, images: impl IntoIterator<Item = Digest>) {
        self.shared.state().checked.extend(images);
    }

    /// Says how an image was found damaged by this process, even if it is whole again; also one that was found in an earlier boot, and is not
    /// made again yet.
    pub fn damage(&self, digest: Digest) -> Option<String> {
        let known = self.shared.state().damaged.get(&digest).cloned();
        known.or_else(|| {
            let is_left = self.shared.left_proofs.has_blobs_of(digest);
            is_left.then(|| "found in an earlier start".to_owned())
        })
    }

    /// Notes that an image was found damaged.
    pub(crate) fn note_damage(&self, digest: Digest, how: String) {
        self.shared.state().damaged.insert(digest, how);
    }

    /// The proofs that a damaged image has left, and its other signatures.
    pub(super) fn left_proofs(&self, digest: Digest) -> (Proofs, Unjudged) {
        self.shared.left_proofs.read(digest)
    }

    /// Gives an image that was made in the place of a damaged one the proofs that this has left.
    pub(super) fn inherit_proofs(&self, image: &PulledImage) -> Result<(), StoreError> {
        let (proofs, unjudged) = self.left_proofs(image.digest());
        for proof in proofs.iter() {
            self.keep_proof(image, proof)?;
        }
        self.keep_unjudged(image, &unjudged)?;
        self.shared.left_proofs.remove(image.digest())
    }

    /// Waits until less than [`MOST_PULLS`] pulls have a turn; it ends when the value is dropped. `None` for an upgrade, which waits for nobody.
    pub(crate) async fn turn_to_pull(&self) -> Option<SemaphorePermit<'_>> {
        if self.for_upgrade {
            return None;
        }
        let turns = &self.shared.turns;
        if let Ok(turn) = turns.try_acquire() {
            return Some(turn);
        }
        tracing::info!("{MOST_PULLS} images are being pulled; the next one waits for its turn");
        // The turns are never closed.
        turns.acquire().await.ok()
    }

    /// Waits until a pull lacks room. For the collector of images, which then collects and calls [`round_ended`](Self::round_ended).
    pub async fn lacks_room(&self) {
        self.shared.lack.told().await;
    }

    /// Notes that the collector has removed the images that nothing needs.
    pub fn round_ended(&self) {
        self.shared.lack.round_ended();
    }

    /// Has the collector remove images that nothing needs.
    pub(crate) async fn ask_for_room(&self) {
        self.shared.lack.tell().await;
    }

    /// Plans the room for an image of these layers, and promises it; `None` for a store in memory, which is made for one image.
    pub(crate) fn plan_room(
        &self,
        layers: &[Layer],
    ) -> Result<Option<(RoomFacts, Option<Promise>)>, StoreError> {
        let Some(blobs) = self.blobs() else {
            return Ok(None);
        };
        // Before the plan: as long as one is made, no other pull goes on.
        let repeated = self.shared.objects.repeated_bytes()?;
        let planning = self.shared.promises.plan();
        let facts = self.room_facts(layers, Some(&blobs), planning.bytes(), repeated)?;
        Ok(Some((facts, planning.promise(&facts))))
    }

    /// The facts about room, for layers that are kept as blobs. `repeated` are bytes of files that several images share.
    fn room_facts(
        &self,
        layers: &[Layer],
        blobs: Option<&Blobs>,
        promised: u64,
        repeated: u64,
    ) -> Result<RoomFacts, StoreError> {
        let directory = self.prepare()?;
        let disk = disk_of(&directory)?;
        let (whole, partial) = match blobs {
            Some(blobs) => (blobs.list()?, blobs.list_partial()?),
            None => (Vec::new(), Vec::new()),
        };
        let sum = |files: &[BlobFile]| files.iter().map(|file| file.bytes).sum::<u64>();
        let images = self.list()?.into_iter().map(|image| image.unpacked_bytes());
        let missing = layers.iter().map(|layer| {
            let is_it = |file: &&BlobFile| file.digest == layer.digest;
            let here = whole.iter().chain(&partial).find(is_it);
            layer.size.saturating_sub(here.map_or(0, |file| file.bytes))
        });
        let add = |sum: u64, bytes: u64| sum.saturating_add(bytes);
        let unpacked = images.fold(0, add).saturating_sub(repeated);
        Ok(RoomFacts {
            capacity: disk.f_blocks.saturating_mul(disk.f_frsize),
            free: disk.f_bavail.saturating_mul(disk.f_frsize),
            used: add(sum(&whole) + sum(&partial), unpacked),
            promised,
            missing: missing.fold(0, add),
            packed: layers.iter().map(|layer| layer.size).fold(0, add),
            for_upgrade: self.for_upgrade,
        })
    }

    /// The room for several images together, each with its blobs where the store keeps them. Blocks for as long as the disk takes.
    ///
    /// # Errors
    /// The file system failed.
    pub fn room_for_all(&self, images: &[Vec<Layer>]) -> Result<RoomForAll, StoreError> {
        let mut seen = BTreeSet::new();
        let layers: Vec<Layer> = images.iter().flatten().cloned().collect();
        let once = layers.iter().filter(|layer| seen.insert(layer.digest));
        let once: Vec<Layer> = once.cloned().collect();
        let repeated = self.shared.objects.repeated_bytes()?;
        let promised = self.shared.promises.bytes();
        let facts = match self.blobs() {
            Some(blobs) => self.room_facts(&once, Some(&blobs), promised, repeated)?,
            // No layer is kept.
            None => self.room_facts(&[], None, promised, repeated)?,
        };
        let packed = layers.iter().map(|layer| layer.size);
        let packed = packed.fold(0_u64, u64::saturating_add);
        Ok(RoomForAll::of(&RoomFacts { packed, ..facts }))
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
            is_sealed: false,
            blobs: Vec::new(),
            objects: NewObjects::default(),
        })
    }

    /// Gives an image of the store a name, and takes the name from all others. `named` is the digest of the document that the name points
    /// to: the image is known by that index from now on, unless it is known by another one. Blocks until it is on the disk.
    ///
    /// # Errors
    /// The file system failed. Then no image may have the name.
    pub fn add_name(
        &self,
        image: PulledImage,
        name: &ImageReference,
        named: Digest,
    ) -> Result<PulledImage, StoreError> {
        let _naming = self.naming();
        self.give_name(image, name, named)
    }

    /// As `add_name`, for those who have locked the names.
    fn give_name(
        &self,
        mut image: PulledImage,
        name: &ImageReference,
        named: Digest,
    ) -> Result<PulledImage, StoreError> {
        self.take_name(name, image.digest())?;
        let record = &mut image.record;
        let index = record.index.or(index_of(record.digest, named));
        let is_known = record.index == index;
        record.index = index;
        if record.names.insert(name.clone()) || !is_known {
            write(&image.directory, record)?;
        }
        Ok(image)
    }

    /// Keeps the signature that an image was verified by.
    pub(super) fn keep_proof(&self, image: &PulledImage, proof: &Proof) -> Result<(), StoreError> {
        let _naming = self.naming();
        let mut proofs = image.proofs();
        match proofs.add(proof) {
            true => kept_proofs::write(&image.directory, &proofs),
            false => Ok(()),
        }
    }

    /// Keeps signatures that came with an image, for rules of later.
    pub(super) fn keep_unjudged(
        &self,
        image: &PulledImage,
        newer: &Unjudged,
    ) -> Result<(), StoreError> {
        let _naming = self.naming();
        let mut unjudged = image.unjudged();
        match unjudged.add(newer) {
            true => kept_proofs::write_unjudged(&image.directory, &unjudged),
            false => Ok(()),
        }
    }

    fn naming(&self) -> MutexGuard<'_, ()> {
        self.shared.naming.locked()
    }

    /// Whether another image than this one has a name.
    ///
    /// # Errors
    /// The images cannot be listed.
    pub(crate) fn is_name_of_another(
        &self,
        name: &ImageReference,
        image: Digest,
    ) -> Result<bool, StoreError> {
        let others = self.list()?;
        let mut others = others.iter().filter(|other| other.digest() != image);
        Ok(others.any(|other| other.names().contains(name)))
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
        let note = |record: &mut Record| record.asked_for_at = Some(now());
        self.change_record(image.digest(), note).map(drop)
    }

    /// Changes the record of an image as it is now: its names may be others than when it was looked up. None if the image is gone.
    fn change_record(
        &self,
        digest: Digest,
        change: impl FnOnce(&mut Record),
    ) -> Result<Option<PulledImage>, StoreError> {
        let _naming = self.naming();
        let Some(mut image) = self.get(digest) else {
            return Ok(None);
        };
        change(&mut image.record);
        write(&image.directory, &image.record)?;
        Ok(Some(image))
    }
}

fn disk_of(directory: &Path) -> Result<rustix::fs::StatVfs, StoreError> {
    rustix::fs::statvfs(directory)
        .map_err(|errno| failed("looking at the file system of", directory)(errno.into()))
}

/// The digest of the document that a name points to, if that is the image's index and not its manifest.
fn index_of(image: Digest, named: Digest) -> Option<Digest> {
    Some(named).filter(|&named| named != image)
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
    /// The blobs that the store keeps for it.
    pub blobs: BTreeSet<Digest>,
}

/// An image that is being unpacked. Unless it is committed, dropping it removes it.
pub struct Incoming {
    store: ImageStore,
    digest: Digest,
    directory: PathBuf,
    is_sealed: bool,
    /// Complete blobs that become the store's with it.
    blobs: Vec<PartialBlob>,
    /// Files that other images may share from then on.
    objects: NewObjects,
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
        kept_proofs::write(&self.directory, &proofs)
    }

    /// Keeps signatures that came with the image, for rules of later.
    pub(super) fn keep_unjudged(&self, unjudged: &Unjudged) -> Result<(), StoreError> {
        match unjudged.is_empty() {
            true => Ok(()),
            false => kept_proofs::write_unjudged(&self.directory, unjudged),
        }
    }

    /// Seals its files, and shares those that other images have already. To be called when all layers are unpacked, on a disk only.
    pub(super) fn seal(&mut self) -> Result<(), StoreError> {
        self.objects = sealed::seal(&self.directory, &self.store.shared.objects)?;
        self.is_sealed = true;
        Ok(())
    }

    /// Keeps blobs that it was made from. They are complete, and their content was compared with their digests.
    pub(super) fn keep_blobs(&mut self, blobs: impl IntoIterator<Item = PartialBlob>) {
        self.blobs.extend(blobs);
    }

    /// Makes it an image of the store. Blocks until it is on the disk.
    pub fn commit(self, image: NewImage) -> Result<PulledImage, StoreError> {
        let name = &image.name;
        let record = Record {
            digest: self.digest,
            index: index_of(self.digest, image.named_digest),
            names: BTreeSet::from([name.clone()]),
            config: image.config,
            download_bytes: image.download_bytes,
            unpacked_bytes: image.unpacked_bytes,
            pulled_at: now(),
            asked_for_at: None,
            blobs: image.blobs,
            sealed: self.is_sealed,
        };
        write(&self.directory, &record)?;
        // One sync for all files of the image instead of one for each.
        let directory = File::open(&self.directory).map_err(failed("opening", &self.directory))?;
        rustix::fs::syncfs(&directory)
            .map_err(|errno| failed("syncing", &self.directory)(errno.into()))?;
        // Before the image: an image without its blobs could not be made again without a registry.
        self.store.shared.blobs.keep(&self.blobs)?;
        // Held from the moment at which it appears, so that it cannot be collected.
        let _hold = Hold::new(&self.store.shared, self.digest);
        let place = self.store.place(self.digest);
        {
            let _naming = self.store.naming();
            self.store.take_name(name, self.digest)?;
        }
        match fs::rename(&self.directory, &place) {
            Ok(()) if self.is_sealed => {
                self.store.shared.state().checked.insert(self.digest);
            }
            Ok(()) => {}
            // Another pull of the same image was faster.
            Err(_) if self.store.get(self.digest).is_some() => {}
            Err(error) => return Err(failed("creating", &place)(error)),
        }
        let images = self.store.images();
        File::open(&images)
            .and_then(|images| images.sync_all())
            .map_err(failed("syncing", &images))?;
        // After the sync: no power cut leaves an object without its data. Without objects the image is whole all the same.
        if let Err(error) = self
            .store
            .shared
            .objects
            .publish(&place.join("rootfs"), &self.objects)
        {
            tracing::warn!("files of {} are not shared: {error}", self.digest);
        }
        if let Err(error) = self.store.shared.left_proofs.forget_blobs(self.digest) {
            tracing::warn!("{} keeps blobs that nothing may need: {error}", self.digest);
        }
        match self.store.get(self.digest) {
            Some(stored) => self.store.add_name(stored, name, image.named_digest),
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

/// Whether a directory, or the nearest one above it that exists, is in memory. If that cannot be found out, it counts as on a disk.
fn is_in_memory(directory: &Path) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let found = directory
        .ancestors()
        .find_map(|path| rustix::fs::statfs(path).ok());
    found.is_some_and(|found| [TMPFS, RAMFS].contains(&(found.f_type as u64)))
}

/// Removes a directory or a file; a missing one is fine.
fn remove_tree(path: &Path) -> io::Result<()> {
    match instar_base::removal::tree(path) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(path),
        result => result,
    }
}

#[cfg(test)]
mod tests;
