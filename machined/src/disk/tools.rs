//! The programs of the root filesystem that know ext4 and FAT: mkfs.ext4, e2fsck, resize2fs, mkfs.fat.

use std::{io, path::Path, process::Stdio};

use tokio::process::Command;
use tracing::{info, warn};

use super::contents::Backup;
use super::layout::Label;

/// Why one of the programs did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// It could not be started.
    #[error("cannot start {program}; the image must hold it in PATH")]
    Start {
        /// Its name.
        program: &'static str,
        /// Why.
        source: io::Error,
    },
    /// It failed.
    #[error("{program} on {device} failed ({status}): {words}")]
    Failed {
        /// Its name.
        program: &'static str,
        /// What it worked on.
        device: String,
        /// Exit code or signal.
        status: String,
        /// The end of what it said.
        words: String,
    },
}

/// This much of what a failing program said goes into the error.
const WORDS: usize = 1024;

/// Makes the filesystem of a partition.
///
/// Inode tables and journal are initialized later by the kernel, and nothing is discarded: both make it a matter of
/// milliseconds on any size of disk. No blocks are reserved for root, because everything here runs as root. It takes so many bytes
/// of the partition.
pub(super) async fn make_filesystem(
    device: &Path,
    label: Label,
    bytes: u64,
) -> Result<(), ToolError> {
    let options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard";
    let done = run_with(
        "mkfs.ext4",
        &["-q", "-F", "-L", label.as_str(), "-m", "0", "-E", options],
        device,
        &[&kibibytes(bytes)],
    )
    .await?;
    done.expect(&[0])
}

/// As mke2fs(8) and resize2fs(8) take a size.
fn kibibytes(bytes: u64) -> String {
    format!("{}K", bytes / 1024)
}

/// Makes the filesystem of the EFI system partition, whatever was there.
pub(super) async fn make_fat_filesystem(device: &Path, label: Label) -> Result<(), ToolError> {
    run("mkfs.fat", &["-F", "32", "-n", label.as_str()], device)
        .await?
        .expect(&[0])
}

/// Checks a filesystem before it is mounted: replays and repairs what is safe, and then all else.
pub(super) async fn check_filesystem(device: &Path) -> Result<(), ToolError> {
    // e2fsck(8): 1 and 2 are corrected errors, 4 and above is what -p does not dare.
    let careful = run("e2fsck", &["-p"], device).await?;
    match careful.code {
        Some(0) => return Ok(()),
        Some(1 | 2) => {
            info!(device = %device.display(), "the filesystem had errors, all corrected");
            return Ok(());
        }
        _ => {
            warn!(device = %device.display(), words = careful.words, "the filesystem has errors, repairing all of them")
        }
    }
    repair_filesystem(device).await
}

/// Checks all of a filesystem, also of one that says that it is clean, and repairs what it finds.
pub(super) async fn repair_filesystem(device: &Path) -> Result<(), ToolError> {
    run("e2fsck", &["-f", "-y"], device)
        .await?
        .expect(&[0, 1, 2])
}

/// Makes a filesystem whole again by a copy of its superblock.
pub(super) async fn repair_by_backup(device: &Path, backup: Backup) -> Result<(), ToolError> {
    let (block, size) = (backup.block.to_string(), backup.block_size.to_string());
    run("e2fsck", &["-f", "-y", "-b", &block, "-B", &size], device)
        .await?
        .expect(&[0, 1, 2])
}

/// Lets a mounted filesystem take so many bytes of its partition.
pub(super) async fn grow_filesystem(device: &Path, bytes: u64) -> Result<(), ToolError> {
    run_with("resize2fs", &[], device, &[&kibibytes(bytes)])
        .await?
        .expect(&[0])
}

struct Done {
    program: &'static str,
    device: String,
    code: Option<i32>,
    status: String,
    words: String,
}

impl Done {
    fn expect(self, codes: &[i32]) -> Result<(), ToolError> {
        if self.code.is_some_and(|code| codes.contains(&code)) {
            return Ok(());
        }
        Err(ToolError::Failed {
            program: self.program,
            device: self.device,
            status: self.status,
            words: self.words,
        })
    }
}

async fn run(program: &'static str, arguments: &[&str], device: &Path) -> Result<Done, ToolError> {
    run_with(program, arguments, device, &[]).await
}

async fn run_with(
    program: &'static str,
    arguments: &[&str],
    device: &Path,
    more: &[&str],
) -> Result<Done, ToolError> {
    let output = Command::new(program)
        .args(arguments)
        .arg(device)
        .args(more)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|source| ToolError::Start { program, source })?;
    let mut said = output.stdout;
    said.extend_from_slice(&output.stderr);
    let tail = String::from_utf8_lossy(&said[said.len().saturating_sub(WORDS)..])
        .trim()
        .replace('\n', "; ");
    Ok(Done {
        program,
        device: device.display().to_string(),
        code: output.status.code(),
        status: output.status.to_string(),
        words: tail,
    })
}
