//! Erases the data of the owned disk, so that it cannot be read any more.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Seek, SeekFrom},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use tracing::info;

use super::{
    apply::{ApplyError, open_exclusively, partition_path},
    contents::{self, TAIL},
    layout::Label,
    probe::{Content, END, ProbeError, probe_device},
};
use crate::sys;

/// Bytes of a partition that are erased first: they hold the superblock, in the second KiB (ext4(5)), by which we recognize a
/// filesystem of ours.
const HEAD: u64 = 4096;
/// Bytes that are erased by one call: enough for a device that erases by itself, and few enough to report progress.
const PIECE: u64 = 256 * 1024 * 1024;
/// Interval of progress lines in the log: a disk that must be overwritten takes hours.
const PROGRESS: Duration = Duration::from_secs(30);
/// Time limit for those who have a partition mounted for a moment: the EFI system partition, while the UKIs on it are read.
const IN_USE: Duration = Duration::from_secs(60);
/// Interval between two tries meanwhile.
const AGAIN: Duration = Duration::from_millis(200);

/// The part of the disk to erase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wipe {
    /// The whole disk, boot assets and partition table included.
    Disk,
    /// The contents of these partitions; they stay in the table.
    Partitions(BTreeSet<Label>),
}

/// Why a disk was not erased, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum WipeError {
    /// The device is in use.
    #[error(transparent)]
    Open(#[from] ApplyError),
    /// The device cannot be read.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The disk does not carry Instar any more.
    #[error("{0} does not hold Instar's partitions; nothing was erased")]
    NotOurs(PathBuf),
    /// The device failed to erase.
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

impl WipeError {
    fn is_busy(&self) -> bool {
        matches!(self, Self::Open(error) if error.is_busy())
    }
}

/// Erases the disk or partitions. First marks every partition, then erases the beginning of each (and the table of a disk), so
/// that no partition counts as complete after a power cut; the marks stay until the rest is erased.
pub(super) fn wipe(disk: &Path, what: &Wipe) -> Result<(), WipeError> {
    match what {
        Wipe::Disk => wipe_disk(disk),
        Wipe::Partitions(labels) => wipe_partitions(partitions(disk, labels)?),
    }
}

fn wipe_partitions(devices: Vec<PathBuf>) -> Result<(), WipeError> {
    let mut opened = Vec::new();
    for path in devices {
        opened.push(once_free(|| Opened::of(path.clone()))?);
    }
    for it in &opened {
        it.mark(it.size)?;
    }
    for it in &opened {
        it.erase(0, HEAD.min(it.size))?;
    }
    for it in &opened {
        info!("erasing {}", it.path.display());
        it.erase(0, it.size.saturating_sub(TAIL))?;
        it.erase(it.size.saturating_sub(TAIL), it.size)?;
    }
    Ok(())
}

fn wipe_disk(disk: &Path) -> Result<(), WipeError> {
    let table = match probe_device(disk)? {
        (Content::Ours(table), _) => table.partitions,
        _ => Vec::new(),
    };
    let disk = once_free(|| Opened::of(disk.to_owned()))?;
    info!("erasing {}", disk.path.display());
    for partition in &table {
        disk.mark(partition.start + partition.length)?;
    }
    for partition in &table {
        disk.erase(partition.start, partition.start + HEAD)?;
    }
    disk.erase_ends()?;
    disk.erase(0, disk.size)
}

/// Opens a device of the machine's own disk, if need be once nobody has it mounted any more: services have been stopped for this.
fn once_free<T>(mut open: impl FnMut() -> Result<T, WipeError>) -> Result<T, WipeError> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(error) if error.is_busy() && begun.elapsed() < IN_USE => thread::sleep(AGAIN),
            opened => return opened,
        }
    }
}

/// A disk or partition that is open exclusively.
pub(super) struct Opened {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Opened {
    /// Opens the device exclusively.
    pub(super) fn of(path: PathBuf) -> Result<Self, WipeError> {
        let mut file = open_exclusively(&path)?;
        match file.seek(SeekFrom::End(0)) {
            Ok(size) => Ok(Self { path, file, size }),
            Err(source) => Err(WipeError::Erase {
                device: path,
                source,
            }),
        }
    }

    /// The device.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    fn failed(&self, source: io::Error) -> WipeError {
        WipeError::Erase {
            device: self.path.clone(),
            source,
        }
    }

    fn mark(&self, end: u64) -> Result<(), WipeError> {
        contents::mark(&self.file, end)
            .and_then(|()| self.file.sync_all())
            .map_err(|source| self.failed(source))
    }

    /// Erases both ends, where partition tables and the marks of most formats are.
    pub(super) fn erase_ends(&self) -> Result<(), WipeError> {
        self.erase(0, END.min(self.size))?;
        self.erase(self.size.saturating_sub(END), self.size)
    }

    /// Erases the whole device.
    pub(super) fn erase_all(&self) -> Result<(), WipeError> {
        self.erase(0, self.size)
    }

    fn erase(&self, start: u64, end: u64) -> Result<(), WipeError> {
        let failed = |source| self.failed(source);
        let mut told = Instant::now();
        let mut at = start;
        while at < end {
            let length = PIECE.min(end - at);
            sys::block::zero_out(&self.file, at, length).map_err(failed)?;
            at += length;
            if told.elapsed() > PROGRESS {
                told = Instant::now();
                let path = self.path.display();
                info!("erasing {path}: {} of {} MiB", at >> 20, end >> 20);
            }
        }
        self.file.sync_all().map_err(failed)
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn refusal(kind: io::ErrorKind) -> WipeError {
        WipeError::Open(ApplyError::Open {
            disk: "/dev/vda".into(),
            source: kind.into(),
        })
    }

    /// A look at the versions on the disk must not fail a reset, which has stopped all services by then.
    #[test]
    fn a_disk_that_is_looked_at_is_waited_for_and_no_other_error() {
        let mut tries = 0;
        let opened = once_free(|| {
            tries += 1;
            match tries {
                3 => Ok("open"),
                _ => Err(refusal(io::ErrorKind::ResourceBusy)),
            }
        });
        assert_eq!((opened.unwrap(), tries), ("open", 3));
        let mut tries = 0;
        let gone = once_free(|| -> Result<(), WipeError> {
            tries += 1;
            Err(refusal(io::ErrorKind::NotFound))
        });
        assert!(gone.is_err() && tries == 1);
    }
}
