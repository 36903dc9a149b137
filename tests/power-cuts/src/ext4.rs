//! An ext4 partition in a state: checked as the node checks it before it mounts it, and read.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::SECTOR;
use crate::recording::Recording;
use crate::region::Region;
use crate::states::DiskState;

/// Offset (bytes) and value of ext4's magic number, by which the node recognizes ext4.
const MAGIC: (usize, [u8; 2]) = (0x438, [0x53, 0xEF]);
/// Offset from the partition's end, and first bytes, of the mark that the partition is to be made anew.
const MARK: (u64, &[u8]) = (4096, b"INSTAR: THIS PARTITION IS TO BE MADE ANEW\n");
/// The node takes a partition for blank if this many bytes at its start are zero and it has no copy of a superblock.
const BLANK: u64 = 1 << 20;
/// Places of mkfs's first copies of a superblock: block number, and bytes per block.
const COPIES: [(u64, u64); 4] = [(8193, 1024), (24577, 1024), (32768, 4096), (98304, 4096)];

/// The node's result with a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ext4 {
    /// Finds no filesystem and makes one.
    Nothing,
    /// Mounts it. The files are in the order of the request, `None` for one that is not there.
    Mounted(Vec<Option<Vec<u8>>>),
    /// Cannot repair it.
    Broken(String),
}

/// Why a state could not be judged.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum ToolError {
    #[error("cannot run {program}: install the package e2fsprogs")]
    Start {
        program: &'static str,
        source: io::Error,
    },
    #[error("cannot make a copy of a partition in {}", folder.display())]
    Copy {
        folder: std::path::PathBuf,
        source: io::Error,
    },
}

/// Repairs a copy of the partition as the node does (e2fsck -p; then, if that gives up, -f -y; with a copy of the
/// superblock if the first is gone), and reads files.
pub(crate) fn judge(
    recording: &Recording,
    state: &DiskState,
    region: &Region,
    files: &[&str],
    scratch: &Path,
) -> Result<Ext4, ToolError> {
    let (judged, _) = judge_and_read(recording, state, region, files, scratch, |_| Ok(()))?;
    Ok(judged)
}

/// Copies a directory of a repaired partition to an existing one, without its owners. A missing directory is nothing.
pub(crate) fn copy_directory(partition: &Path, from: &str, to: &Path) -> Result<(), ToolError> {
    // Owners cannot be given by an ordinary user; debugfs says so, and goes on.
    run(
        "debugfs",
        &["-R", &format!("rdump {from} {}", to.display())],
        partition,
    )?;
    Ok(())
}

/// The same as [`judge`]; `read` gets the repaired partition, if the node mounts it.
pub(crate) fn judge_and_read<Made>(
    recording: &Recording,
    state: &DiskState,
    region: &Region,
    files: &[&str],
    scratch: &Path,
    read_more: impl FnOnce(&Path) -> Result<Made, ToolError>,
) -> Result<(Ext4, Option<Made>), ToolError> {
    let read = |from: u64, sectors: u64| {
        let mut bytes = Vec::new();
        let mut sector = [0; 512];
        for number in (from..region.end).take(usize::try_from(sectors).unwrap_or(0)) {
            recording.read_sector(state, number, &mut sector);
            bytes.extend_from_slice(&sector);
        }
        bytes
    };
    let superblock = read(region.start, 4);
    let (at, magic) = MAGIC;
    let is_there = superblock.get(at..at + magic.len()) == Some(&magic);
    let mut copy = None;
    if !is_there {
        let (from_end, mark) = MARK;
        if read(region.end - from_end / SECTOR, 1).starts_with(mark) {
            return Ok((Ext4::Nothing, None));
        }
        copy = COPIES.into_iter().find(|(block, size)| {
            let superblock = read(region.start + block * size / SECTOR, 1);
            // As in the first superblock, which has a KiB before it.
            superblock.get(at - 1024..at - 1024 + magic.len()) == Some(&magic)
        });
        let is_blank = || {
            read(region.start, BLANK / SECTOR)
                .iter()
                .all(|byte| *byte == 0)
        };
        match copy {
            None if is_blank() => return Ok((Ext4::Nothing, None)),
            None => {
                let why = "it holds what nobody knows".to_owned();
                return Ok((Ext4::Broken(why), None));
            }
            Some(_) => {}
        }
    }
    let failed = |source| ToolError::Copy {
        folder: scratch.to_owned(),
        source,
    };
    let file = tempfile::NamedTempFile::new_in(scratch).map_err(failed)?;
    recording
        .write_to(file.as_file(), state, region.start, region.end)
        .map_err(failed)?;

    let checked = check(copy, file.path())?;
    if !is_whole(&checked) {
        let words = String::from_utf8_lossy(&checked.stdout).into_owned();
        let why = format!("e2fsck gives up: {words}");
        return Ok((Ext4::Broken(why), None));
    }
    let mut found = Vec::new();
    for name in files {
        let answer = run("debugfs", &["-R", &format!("cat {name}")], file.path())?;
        let is_there = !String::from_utf8_lossy(&answer.stderr).contains("File not found");
        found.push(is_there.then_some(answer.stdout));
    }
    let more = read_more(file.path())?;
    Ok((Ext4::Mounted(found), Some(more)))
}

/// Repairs the filesystem by its first superblock, or else by a copy: its block and the size of blocks.
fn check(copy: Option<(u64, u64)>, file: &Path) -> Result<Output, ToolError> {
    if let Some((block, size)) = copy {
        let (block, size) = (block.to_string(), size.to_string());
        return run("e2fsck", &["-f", "-y", "-b", &block, "-B", &size], file);
    }
    match run("e2fsck", &["-p"], file)? {
        careful if is_whole(&careful) => Ok(careful),
        _ => run("e2fsck", &["-f", "-y"], file),
    }
}

fn is_whole(done: &Output) -> bool {
    matches!(done.status.code(), Some(0..=2))
}

fn run(program: &'static str, arguments: &[&str], file: &Path) -> Result<Output, ToolError> {
    Command::new(program)
        .args(arguments)
        .arg(file)
        // The programs' messages are compared.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| ToolError::Start { program, source })
}
