//! A change as a value: steps, each of which is one kind of write, and the function that performs them.

use std::{
    fmt,
    io::{self, Cursor, Read},
};

use thiserror::Error;

use crate::{entry::FileDigest, volume::Volume};

/// A file too large to be part of a plan: the caller of [`perform`] provides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asset {
    /// The unified kernel image.
    Uki,
    /// systemd-boot.
    Loader,
}

/// The content to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// An asset, which must have this digest and size.
    Asset(Asset, FileDigest),
}

impl Content {
    /// The expected digest and size of the written file.
    #[must_use]
    pub fn digest(&self) -> FileDigest {
        match self {
            Self::Bytes(bytes) => FileDigest::of(bytes),
            Self::Asset(_, digest) => *digest,
        }
    }
}

/// One step. Its change is on the disk only after the file and then its folder were synchronized.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a folder.
    MakeFolder(String),
    /// Creates a new file.
    Create(String, Content),
    /// Flushes a file's content to the disk.
    SyncFile(String),
    /// Flushes a folder's content to the disk.
    SyncFolder(String),
    /// Reads a file back from the disk and compares it.
    Verify(String, FileDigest),
    /// Removes a file.
    Remove(String),
    /// Renames a file over an existing one.
    Replace {
        /// Its name before.
        from: String,
        /// Its name after.
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

/// A change: its steps in order. It may be interrupted after any of them; the next plan tidies the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The steps in order.
    pub steps: Vec<Step>,
}

impl fmt::Display for Plan {
    /// Writes one step per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in (1..).zip(&self.steps) {
            writeln!(f, "{number}. {step}")?;
        }
        Ok(())
    }
}

impl Plan {
    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    pub(crate) fn make_folder(&mut self, path: &str) {
        self.steps.push(Step::MakeFolder(path.to_owned()));
        self.sync_folder(parent(path));
    }

    /// Writes a file, flushes it and reads it back: it is whole before any further step.
    pub(crate) fn create(&mut self, path: &str, content: Content) {
        let digest = content.digest();
        self.steps.push(Step::Create(path.to_owned(), content));
        self.steps.push(Step::SyncFile(path.to_owned()));
        self.sync_folder(parent(path));
        self.steps.push(Step::Verify(path.to_owned(), digest));
    }

    /// Removes a file and flushes that before any further step: the next file may take its place on the disk.
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

    pub(crate) fn sync_folder(&mut self, path: &str) {
        self.steps.push(Step::SyncFolder(path.to_owned()));
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// A plan that was not carried out to its end. The version that booted before boots again.
#[derive(Debug, Error)]
#[error("cannot change the EFI system partition: failed to {step}")]
pub struct Failed {
    /// The step that failed.
    pub step: String,
    /// The reason.
    #[source]
    pub cause: Cause,
}

/// The reason of a failed step.
#[derive(Debug, Error)]
pub enum Cause {
    /// The volume or the source of an asset failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The disk has another content than was written, or the asset is not the one of the plan.
    #[error(
        "it is {found}, expected {expected} (BLAKE3 and bytes): the disk or the source is damaged"
    )]
    Different {
        /// The digest and size that were read.
        found: FileDigest,
        /// The expected ones.
        expected: FileDigest,
    },
}

/// Performs a plan. `open` provides the assets. A file that could not be written whole is removed again.
///
/// # Errors
/// The first step that failed; later steps were not performed.
pub fn perform(
    plan: &Plan,
    volume: &mut impl Volume,
    mut open: impl FnMut(Asset) -> io::Result<Box<dyn Read>>,
) -> Result<(), Failed> {
    // The file that is being written: not whole until it was verified.
    let mut unfinished: Option<&str> = None;
    for step in &plan.steps {
        if let Step::Create(path, _) = step {
            unfinished = Some(path);
        }
        if let Err(cause) = perform_step(step, volume, &mut open) {
            if let Some(path) = unfinished.filter(|_| !was_there(step, &cause)) {
                // The first failure is reported; the next plan tidies a leftover.
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

/// Whether a file was not created because another one exists at its path, which is not ours to remove.
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
            // One byte more than expected is enough to detect another file, and cannot fill the partition.
            let limit = digest.bytes.saturating_add(1);
            volume.create(path, &mut open(*asset)?.take(limit))?;
        }
        Step::SyncFile(path) => volume.sync_file(path)?,
        Step::SyncFolder(path) => volume.sync_folder(path)?,
        Step::Verify(path, expected) => {
            let found = FileDigest::read(volume.read_back(path)?)?;
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
