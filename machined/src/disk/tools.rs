//! The programs of the root filesystem that work on ext4 and FAT: mkfs.ext4, e2fsck, resize2fs, mkfs.fat.
//!
//! Each has a timeout, as a disk may not answer. After the timeout the program gets SIGTERM, on which e2fsck stops at a point that its
//! next run can go on from; SIGKILL would cut a repair off anywhere. It also gets SIGTERM when the caller drops the future.

use std::{io, path::Path, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};
use tracing::{info, warn};

use super::contents::Backup;
use super::layout::Label;
use crate::sys::oom_score;

/// Why one of the programs failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program could not be started.
    #[error("cannot start {program}; the image must hold it in PATH")]
    Start {
        /// The program's name.
        program: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The program did not end within its timeout.
    #[error(
        "{program} on {device} did not end within {} min and was stopped; the disk may be failing, or be too slow for a repair", limit.as_secs() / 60
    )]
    Late {
        /// The program's name.
        program: &'static str,
        /// The device that it worked on.
        device: String,
        /// The timeout.
        limit: Duration,
    },
    /// The program failed.
    #[error("{program} on {device} failed ({status}): {words}")]
    Failed {
        /// The program's name.
        program: &'static str,
        /// The device that it worked on.
        device: String,
        /// Exit code or signal.
        status: String,
        /// The end of its output.
        words: String,
    },
}

/// Limit on a failed program's output in the error, in bytes.
const WORDS: usize = 1024;

/// Timeout for making a filesystem, which takes seconds on the slowest disk, see [`make_filesystem`].
const MAKE: Duration = Duration::from_secs(10 * 60);
/// Timeout for a repair. It reads all metadata, some of it again and again, which takes a night on a large and slow disk. The
/// wait is worth it, as the API is up meanwhile and the alternative is to lose the data. A version on trial has less, see
/// `sequences/boot/useful.rs`.
const REPAIR: Duration = Duration::from_secs(12 * 3600);
/// Timeout after SIGTERM. A program that waits for the disk ends only when the disk answers, and is not waited for any longer.
const TERMINATE: Duration = Duration::from_secs(10);

/// Makes the filesystem of a partition, in its first `bytes` bytes.
///
/// The kernel initializes inode tables and journal later, and nothing is discarded, so this takes milliseconds on any size of disk. No
/// blocks are reserved for root, because everything here runs as root.
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

/// Formats a size as mke2fs(8) and resize2fs(8) take it.
fn kibibytes(bytes: u64) -> String {
    format!("{}K", bytes / 1024)
}

/// Makes the filesystem of the EFI system partition, over its old content.
pub(super) async fn make_fat_filesystem(device: &Path, label: Label) -> Result<(), ToolError> {
    run("mkfs.fat", &["-F", "32", "-n", label.as_str()], device)
        .await?
        .expect(&[0])
}

/// Checks a filesystem before it is mounted: repairs what is safe first (`-p`), and then everything else (`-y`).
pub(super) async fn check_filesystem(device: &Path) -> Result<(), ToolError> {
    // e2fsck(8): 1 and 2 are corrected errors; 4 and above are errors that -p leaves alone.
    let careful = run("e2fsck", &["-p"], device).await?;
    match careful.code {
        Some(0) => {
            info!(device = %device.display(), words = careful.words, "the filesystem is checked");
            return Ok(());
        }
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

/// Checks the whole filesystem, even if it is marked as clean, and repairs the errors.
pub(super) async fn repair_filesystem(device: &Path) -> Result<(), ToolError> {
    run("e2fsck", &["-f", "-y"], device)
        .await?
        .expect(&[0, 1, 2])
}

/// Repairs a filesystem from a backup of its superblock.
pub(super) async fn repair_by_backup(device: &Path, backup: Backup) -> Result<(), ToolError> {
    let (block, size) = (backup.block.to_string(), backup.block_size.to_string());
    run("e2fsck", &["-f", "-y", "-b", &block, "-B", &size], device)
        .await?
        .expect(&[0, 1, 2])
}

/// Grows a mounted filesystem to the first `bytes` bytes of its partition.
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

/// A program that gets SIGTERM when this value is dropped.
struct Started(Child);

impl Started {
    fn terminate(&self) {
        // None once the program has been waited for.
        let pid = self.0.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // The program may have ended meanwhile.
            let _ = kill_process(pid, Signal::TERM);
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.terminate();
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
    let limit = match program {
        "e2fsck" | "resize2fs" => REPAIR,
        _ => MAKE,
    };
    run_within(limit, program, arguments, device, more).await
}

async fn run_within(
    limit: Duration,
    program: &'static str,
    arguments: &[&str],
    device: &Path,
    more: &[&str],
) -> Result<Done, ToolError> {
    let failed = |source| ToolError::Start { program, source };
    let mut command = Command::new(program);
    oom_score::set_for(&mut command, oom_score::USUAL);
    let child = command
        .args(arguments)
        .arg(device)
        .args(more)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut started = Started(child);
    let (stdout, stderr) = (started.0.stdout.take(), started.0.stderr.take());
    let ended = async {
        let (mut said, complained, status) =
            tokio::join!(last_words(stdout), last_words(stderr), started.0.wait());
        said.extend(complained);
        status.map(|status| (status, said))
    };
    let Ok(ended) = tokio::time::timeout(limit, ended).await else {
        started.terminate();
        // A program that does not end within the timeout is killed when it is dropped.
        let _ = tokio::time::timeout(TERMINATE, started.0.wait()).await;
        return Err(ToolError::Late {
            program,
            device: device.display().to_string(),
            limit,
        });
    };
    let (status, said) = ended.map_err(failed)?;
    let tail = String::from_utf8_lossy(&said[said.len().saturating_sub(WORDS)..])
        .trim()
        .replace('\n', "; ");
    Ok(Done {
        program,
        device: device.display().to_string(),
        code: status.code(),
        status: status.to_string(),
        words: tail,
    })
}

/// Returns the end of a program's output, which may be long: e2fsck prints a line for each error.
async fn last_words(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let (mut said, mut chunk) = (Vec::new(), [0; WORDS]);
    let Some(mut pipe) = pipe else { return said };
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        said.extend_from_slice(&chunk[..length]);
        let surplus = said.len().saturating_sub(WORDS);
        said.drain(..surplus);
    }
    said
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::time::Instant;

    #[tokio::test]
    async fn a_program_that_does_not_end_is_stopped() {
        let begun = Instant::now();
        let limit = Duration::from_millis(100);
        let late = run_within(limit, "sleep", &[], Path::new("60"), &[]).await;
        assert!(matches!(late, Err(ToolError::Late { .. })));
        assert!(begun.elapsed() < TERMINATE, "it ended at once by SIGTERM");
    }

    #[tokio::test]
    async fn the_end_of_much_output_is_kept() {
        let script = "yes much | head -n 100000; echo the end; echo why >&2; exit 3; #";
        let done = run("sh", &["-c", script], Path::new("x")).await.unwrap();
        assert_eq!(done.code, Some(3));
        assert!(done.words.ends_with("why"), "{}", done.words);
        // Each line end is two bytes in the quote.
        assert!(done.words.len() < 2 * WORDS);
        let missing = run("no-such-program", &[], Path::new("x")).await;
        assert!(matches!(missing, Err(ToolError::Start { .. })));
    }
}
