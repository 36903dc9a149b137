//! A change as a value: steps, each of which is one kind of write, and what carries them out.

use std::{
    fmt,
    io::{self, Cursor, Read},
};

use thiserror::Error;

use crate::{entry::FileDigest, volume::Volume};

/// Something too large to be part of a plan: whoever carries it out provides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asset {
    /// The unified kernel image.
    Uki,
    /// systemd-boot.
    Loader,
}

/// What is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// An asset, which must be this.
    Asset(Asset, FileDigest),
}

impl Content {
    /// What the file must be once it is written.
    #[must_use]
    pub fn digest(&self) -> FileDigest {
        match self {
            Self::Bytes(bytes) => FileDigest::of(bytes),
            Self::Asset(_, digest) => *digest,
        }
    }
}

/// One step. What it changed is on the disk only after the file and then its folder were synchronized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a folder.
    MakeFolder(String),
    /// Makes a file that is not there yet.
    Create(String, Content),
    /// Has a file's content put onto the disk.
    SyncFile(String),
    /// Has a folder's content put onto the disk.
    SyncFolder(String),
    /// Reads a file back from the disk and compares it.
    Verify(String, FileDigest),
    /// Removes a file.
    Remove(String),
    /// Lets a file take the place of another one that is there.
    Replace {
        /// Its name until then.
        from: String,
        /// Its name from then on.
        to: String,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MakeFolder(path) => write!(f, "make the folder {path}"),
            Self::Create(path, content) => {
                write!(f, "write {path}, {} bytes", content.digest().bytes)
            }
            Self::SyncFile(path) => write!(f, "flush {path}"),
            Self::SyncFolder(path) if path.is_empty() => f.write_str("flush the root folder"),
            Self::SyncFolder(path) => write!(f, "flush the folder {path}"),
            Self::Verify(path, digest) => write!(f, "read {path} back: BLAKE3 {}", digest.blake3),
            Self::Remove(path) => write!(f, "remove {path}"),
            Self::Replace { from, to } => write!(f, "let {from} take the place of {to}"),
        }
    }
}

/// A change: its steps in order. It may be cut off after any of them; what is left then is for the next plan to tidy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What is done, in this order.
    pub steps: Vec<Step>,
}

impl fmt::Display for Plan {
    /// One step a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in (1..).zip(&self.steps) {
            writeln!(f, "{number}. {step}")?;
        }
        Ok(())
    }
}

impl Plan {
    /// Whether nothing has to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn make_folder(&mut self, path: &str) {
        self.steps.push(Step::MakeFolder(path.to_owned()));
        self.sync_folder(parent(path));
    }

    /// Written, flushed, read back: the file is whole before any further step.
    pub(crate) fn create(&mut self, path: &str, content: Content) {
        let digest = content.digest();
        self.steps.push(Step::Create(path.to_owned(), content));
        self.steps.push(Step::SyncFile(path.to_owned()));
        self.sync_folder(parent(path));
        self.steps.push(Step::Verify(path.to_owned(), digest));
    }

    /// Removed for good before any further step: what comes next may take its place on the disk.
    pub(crate) fn remove(&mut self, path: &str) {
        self.steps.push(Step::Remove(path.to_owned()));
        self.sync_folder(parent(path));
    }

    pub(crate) fn replace(&mut self, from: &str, to: &str) {
        self.steps.push(Step::Replace {
            from: from.to_owned(),
            to: to.to_owned(),
        });
        self.steps.push(Step::SyncFile(to.to_owned()));
        self.sync_folder(parent(to));
    }

    fn sync_folder(&mut self, path: &str) {
        self.steps.push(Step::SyncFolder(path.to_owned()));
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// A plan that was not carried out to its end. What booted before boots again.
#[derive(Debug, Error)]
#[error("cannot change the EFI system partition: failed to {step}")]
pub struct Failed {
    /// What was being done.
    pub step: String,
    /// Why it was not.
    #[source]
    pub cause: Cause,
}

/// Why a step failed.
#[derive(Debug, Error)]
pub enum Cause {
    /// The volume, or the source of an asset.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The disk holds something else than was written, or the asset is not what the plan was made for.
    #[error(
        "it is {found}, expected {expected} (BLAKE3 and bytes): the disk or the source is damaged"
    )]
    Different {
        /// What was read.
        found: FileDigest,
        /// What it must be.
        expected: FileDigest,
    },
}

/// Carries a plan out. `open` provides the assets. A file that could not be written whole is removed again.
///
/// # Errors
/// The first step that failed; those after it were not done.
pub fn perform(
    plan: &Plan,
    volume: &mut impl Volume,
    mut open: impl FnMut(Asset) -> io::Result<Box<dyn Read>>,
) -> Result<(), Failed> {
    // The file that is being written: not whole until it was compared.
    let mut unfinished: Option<&str> = None;
    for step in &plan.steps {
        if let Step::Create(path, _) = step {
            unfinished = Some(path);
        }
        if let Err(cause) = perform_step(step, volume, &mut open) {
            if let Some(path) = unfinished.filter(|_| !was_there(step, &cause)) {
                // The failure is what counts; a leftover is tidied away by the next plan.
                let _ = volume.remove(path);
                let _ = volume.sync_folder(parent(path));
            }
            return Err(Failed {
                step: step.to_string(),
                cause,
            });
        }
        if matches!(step, Step::Verify(..)) {
            unfinished = None;
        }
    }
    Ok(())
}

/// Whether a file was not made because another one is in its place, which is not ours to remove.
fn was_there(step: &Step, cause: &Cause) -> bool {
    let in_the_way =
        matches!(cause, Cause::Io(error) if error.kind() == io::ErrorKind::AlreadyExists);
    in_the_way && matches!(step, Step::Create(..))
}

fn perform_step(
    step: &Step,
    volume: &mut impl Volume,
    open: &mut impl FnMut(Asset) -> io::Result<Box<dyn Read>>,
) -> Result<(), Cause> {
    match step {
        Step::MakeFolder(path) => volume.make_folder(path)?,
        Step::Create(path, Content::Bytes(bytes)) => {
            volume.create(path, &mut Cursor::new(bytes))?;
        }
        Step::Create(path, Content::Asset(asset, digest)) => {
            // One byte more than expected is enough to see that it is another file, and cannot fill the partition.
            let limit = digest.bytes.saturating_add(1);
            volume.create(path, &mut open(*asset)?.take(limit))?;
        }
        Step::SyncFile(path) => volume.sync_file(path)?,
        Step::SyncFolder(path) => volume.sync_folder(path)?,
        Step::Verify(path, expected) => {
            let found = digest_of(&mut volume.read_back(path)?)?;
            if found != *expected {
                return Err(Cause::Different {
                    found,
                    expected: *expected,
                });
            }
        }
        Step::Remove(path) => volume.remove(path)?,
        Step::Replace { from, to } => volume.replace(from, to)?,
    }
    Ok(())
}

fn digest_of(content: &mut impl Read) -> io::Result<FileDigest> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(content)?;
    Ok(FileDigest {
        blake3: hasher.finalize(),
        bytes: hasher.count(),
    })
}
