//! Erasing what the owned disk holds, so that it cannot be read any more.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use tracing::info;

use super::{
    apply::{ApplyError, open_exclusively, partition_path},
    layout::Label,
    probe::{Content, ProbeError, probe_device},
};
use crate::sys;

/// What goes first of everything: by its superblock, within the second KiB, we know a filesystem of ours (ext4(5)). No more, as a disk that loses
/// power may have written the end of a piece and not its beginning.
const HEAD: u64 = 4096;
/// So much is erased by one call: large enough for a device that erases by itself, small enough to tell of progress.
const PIECE: u64 = 256 * 1024 * 1024;
/// A disk that must be overwritten takes hours; the log shows that it goes on.
const PROGRESS: Duration = Duration::from_secs(30);

/// What is erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wipe {
    /// The whole disk, boot assets and partition table included.
    Disk,
    /// These partitions; they stay in the table.
    Partitions(BTreeSet<Label>),
}

/// Why a disk was not erased, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum WipeError {
    /// Something uses it.
    #[error(transparent)]
    Open(#[from] ApplyError),
    /// It cannot be read.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// Not Instar's disk any more.
    #[error("{0} does not hold Instar's partitions; nothing was erased")]
    NotOurs(PathBuf),
    /// The device failed.
    #[error(
        "cannot erase {device}: some of what it held may be left; see the kernel log for I/O errors"
    )]
    Erase {
        /// The disk or partition.
        device: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Erases. The beginning of everything goes first, so that nothing is taken for whole when the power goes meanwhile.
pub(super) fn wipe(disk: &Path, what: &Wipe) -> Result<(), WipeError> {
    let devices = match what {
        Wipe::Disk => vec![disk.to_owned()],
        Wipe::Partitions(labels) => partitions(disk, labels)?,
    };
    let mut opened = Vec::new();
    for path in devices {
        let failed = |source| WipeError::Erase {
            device: path.clone(),
            source,
        };
        let mut file = open_exclusively(&path)?;
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        opened.push((path, file, size));
    }
    for (path, file, size) in &opened {
        erase(path, file, 0, HEAD.min(*size))?;
    }
    for (path, file, size) in &opened {
        info!("erasing {}", path.display());
        erase(path, file, 0, *size)?;
    }
    Ok(())
}

fn partitions(disk: &Path, labels: &BTreeSet<Label>) -> Result<Vec<PathBuf>, WipeError> {
    let (Content::Ours(table), _) = probe_device(disk)? else {
        return Err(WipeError::NotOurs(disk.to_owned()));
    };
    let named = table.partitions.iter().filter(|partition| {
        Label::of(&partition.label, &partition.kind).is_some_and(|label| labels.contains(&label))
    });
    Ok(named
        .map(|partition| partition_path(disk, partition.number))
        .collect())
}

fn erase(path: &Path, file: &File, start: u64, end: u64) -> Result<(), WipeError> {
    let failed = |source| WipeError::Erase {
        device: path.to_owned(),
        source,
    };
    let mut told = Instant::now();
    let mut at = start;
    while at < end {
        let length = PIECE.min(end - at);
        sys::block::zero_out(file, at, length).map_err(failed)?;
        at += length;
        if told.elapsed() > PROGRESS {
            told = Instant::now();
            info!(
                "erasing {}: {} of {} MiB",
                path.display(),
                at >> 20,
                end >> 20
            );
        }
    }
    file.sync_all().map_err(failed)
}
