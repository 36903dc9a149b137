//! The signatures that are kept with an image: those that it was verified by, proofs.json, and those that no rule has asked for yet,
//! signatures.json. A damaged image leaves both for its successor, and the list of the blobs that its successor is made from.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::collection::Urgency;
use crate::store_error::{StoreError, failed};
use crate::verification::proof::{self, Proofs};
use crate::verification::unjudged::{self, Unjudged};
use instar_base::{removal, whole_file};
use instar_values::Digest;

const NAME: &str = "proofs.json";
const UNJUDGED: &str = "signatures.json";
/// Size limit of kept proofs, in bytes: four times a payload and an index of 1 MiB each, in base64. Other signatures are smaller.
const LARGEST_PROOFS: u64 = 12 << 20;

/// Reads the proofs of the image in this directory. Proofs that cannot be read are none.
pub(super) fn read(directory: &Path) -> Proofs {
    read_file(&directory.join(NAME), proof::read)
}

/// Reads the signatures of the image in this directory that no rule has asked for. Those that cannot be read are none.
pub(super) fn read_unjudged(directory: &Path) -> Unjudged {
    read_file(&directory.join(UNJUDGED), unjudged::read)
}

fn read_file<T: Default>(path: &Path, parse: impl Fn(&[u8]) -> Option<T>) -> T {
    let read = || {
        let file = File::open(path)?;
        let mut bytes = Vec::new();
        file.take(LARGEST_PROOFS).read_to_end(&mut bytes)?;
        Ok::<_, io::Error>(bytes)
    };
    match read().map(|bytes| parse(&bytes)) {
        Ok(Some(kept)) => kept,
        Err(error) if error.kind() == io::ErrorKind::NotFound => T::default(),
        Ok(None) => {
            tracing::warn!(
                "{} is damaged: what is in it does not count",
                path.display()
            );
            T::default()
        }
        Err(error) => {
            tracing::warn!("{} cannot be read: {error}", path.display());
            T::default()
        }
    }
}

/// Writes the proofs of the image in this directory.
pub(super) fn write(directory: &Path, proofs: &Proofs) -> Result<(), StoreError> {
    write_file(&directory.join(NAME), proof::write(proofs))
}

/// Writes the signatures of the image in this directory that no rule has asked for.
pub(super) fn write_unjudged(directory: &Path, signatures: &Unjudged) -> Result<(), StoreError> {
    write_file(&directory.join(UNJUDGED), unjudged::write(signatures))
}

fn write_file(path: &Path, bytes: serde_json::Result<Vec<u8>>) -> Result<(), StoreError> {
    let bytes = bytes.map_err(io::Error::from);
    let written = bytes.and_then(|bytes| whole_file::replace(path, 0o600, &bytes));
    written.map_err(failed("writing", path))
}

/// Time that the proofs of an image stay that is not made again: a registry may be away for weeks.
const LONGEST_LEFT: Duration = Duration::from_secs(60 * 24 * 3600);

/// The end of the names of lists of blobs.
const BLOBS: &str = ".blobs.json";
/// Time for which the blobs of an image that is not made again stay even if there is no room.
const LONGEST_WITHOUT_ROOM: Duration = Duration::from_secs(24 * 3600);

/// Proofs of images that were damaged: each is made again from its blobs, and has to be as trusted as before.
#[derive(Debug)]
pub(super) struct LeftProofs {
    directory: PathBuf,
}

impl LeftProofs {
    /// Those of this store.
    pub(super) fn new(store: &Path) -> Self {
        LeftProofs {
            directory: store.join("proofs"),
        }
    }

    fn path(&self, image: Digest) -> PathBuf {
        self.directory.join(format!("{}.json", image.hex()))
    }

    fn path_of_unjudged(&self, image: Digest) -> PathBuf {
        let name = format!("{}.signatures.json", image.hex());
        self.directory.join(name)
    }

    fn path_of_blobs(&self, image: Digest) -> PathBuf {
        self.directory.join(format!("{}{BLOBS}", image.hex()))
    }

    /// Takes the proofs of the image in this directory, which is about to be removed, and notes its blobs: they stay until it is made again.
    pub(super) fn take_over(
        &self,
        image: Digest,
        directory: &Path,
        blobs: &BTreeSet<Digest>,
    ) -> Result<(), StoreError> {
        if !blobs.is_empty() {
            write_file(&self.path_of_blobs(image), serde_json::to_vec(blobs))?;
        }
        let (proofs, unjudged) = (read(directory), read_unjudged(directory));
        if proofs.iter().next().is_some() {
            write_file(&self.path(image), proof::write(&proofs))?;
        }
        match unjudged.is_empty() {
            true => Ok(()),
            false => write_file(&self.path_of_unjudged(image), unjudged::write(&unjudged)),
        }
    }

    /// Reads the proofs that an image has left.
    pub(super) fn read(&self, image: Digest) -> (Proofs, Unjudged) {
        (
            read_file(&self.path(image), proof::read),
            read_file(&self.path_of_unjudged(image), unjudged::read),
        )
    }

    /// The blobs of images that are to be made again.
    pub(super) fn blobs(&self, urgency: Urgency) -> Result<BTreeSet<Digest>, StoreError> {
        let mut all = BTreeSet::new();
        for (path, age) in self.list()? {
            let is_list = path.to_string_lossy().ends_with(BLOBS);
            let is_wanted = match urgency {
                Urgency::Usual => true,
                Urgency::LackOfRoom => age.is_none_or(|age| age < LONGEST_WITHOUT_ROOM),
            };
            if is_list && is_wanted {
                let parse = |bytes: &[u8]| serde_json::from_slice::<BTreeSet<Digest>>(bytes).ok();
                all.extend(read_file(&path, parse));
            }
        }
        Ok(all)
    }

    /// Forgets those that are older than [`LONGEST_LEFT`]: nobody wants their images any more.
    pub(super) fn collect(&self) -> Result<(), StoreError> {
        for (path, age) in self.list()? {
            if age.is_some_and(|age| age > LONGEST_LEFT) {
                // Another collection may have removed them.
                remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Lists their files with their ages, as far as these are known.
    fn list(&self) -> Result<Vec<(PathBuf, Option<Duration>)>, StoreError> {
        let directory = &self.directory;
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("listing", directory)(error)),
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed("listing", directory))?;
            let written = entry.metadata().and_then(|metadata| metadata.modified());
            let age = written.ok().and_then(|written| written.elapsed().ok());
            files.push((entry.path(), age));
        }
        Ok(files)
    }

    /// Whether the blobs of an image are kept until it is made again.
    pub(super) fn has_blobs_of(&self, image: Digest) -> bool {
        self.path_of_blobs(image).exists()
    }

    /// Forgets the blobs of an image: it is here.
    pub(super) fn forget_blobs(&self, image: Digest) -> Result<(), StoreError> {
        remove_file(&self.path_of_blobs(image))
    }

    /// Forgets them.
    pub(super) fn remove(&self, image: Digest) -> Result<(), StoreError> {
        remove_file(&self.path(image))?;
        remove_file(&self.path_of_unjudged(image))
    }
}

/// Removes a file; a missing one is fine.
fn remove_file(path: &Path) -> Result<(), StoreError> {
    removal::file(path).map_err(failed("removing", path))
}
