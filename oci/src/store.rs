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
mod image;
mod incoming;
mod kept_proofs;
mod lack;
mod name_of_bundle;
mod names;
mod promised;
mod record;
mod removal;
mod room;
mod room_on_disk;
mod sealed;
mod signatures;
mod sweep;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::blobs::Blobs;
use crate::objects::Objects;
pub use crate::store_error::StoreError;
use crate::store_error::failed;
pub use check::Wholeness;
pub use collection::Urgency;
use image::Hold;
pub use image::PulledImage;
pub use incoming::{Incoming, NewImage};
use instar_base::lock::Lock as _;
use instar_values::Digest;
use instar_values::ImageReference;
use kept_proofs::LeftProofs;
use lack::Lack;
pub(crate) use promised::Promise;
use promised::Promises;
use record::read;
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

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.locked()
    }
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

    fn temporary(&self, kind: &str, digest: Digest) -> PathBuf {
        let images = self.images();
        loop {
            let count = self.shared.temporaries.fetch_add(1, Ordering::Relaxed);
            let path = images.join(format!("{kind}{}-{count}", digest.hex()));
            // An earlier machined may have put one away under a container that lives on.
            if !path.exists() {
                return path;
            }
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

#[cfg(test)]
mod tests;
