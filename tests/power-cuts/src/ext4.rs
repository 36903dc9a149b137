//! An ext4 partition in a state: checked as the node checks it before it mounts it, and read.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::recording::Recording;
use crate::region::Region;
use crate::states::DiskState;

/// Where ext4 has its magic number, by which the node knows it, bytes.
const MAGIC: (usize, [u8; 2]) = (0x438, [0x53, 0xEF]);

/// What the node makes of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ext4 {
    /// It finds no filesystem and makes one.
    Nothing,
    /// It mounts it, and finds these files; in the order in which they were asked for, none for those that are not there.
    Mounted(Vec<Option<Vec<u8>>>),
    /// It cannot be repaired.
    Broken(String),
}

/// Why nothing can be said.
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

/// Does with a copy of the partition what the node does (e2fsck -p; then, where that gives up, -f -y), and reads files.
pub(crate) fn judge(
    recording: &Recording,
    state: &DiskState,
    region: &Region,
    files: &[&str],
    scratch: &Path,
) -> Result<Ext4, ToolError> {
    let mut superblock = Vec::new();
    let mut sector = [0; 512];
    for number in region.start..region.start + 4 {
        recording.read_sector(state, number, &mut sector);
        superblock.extend_from_slice(&sector);
    }
    let (at, magic) = MAGIC;
    if superblock.get(at..at + magic.len()) != Some(&magic) {
        return Ok(Ext4::Nothing);
    }
    let copy = |source| ToolError::Copy {
        folder: scratch.to_owned(),
        source,
    };
    let file = tempfile::NamedTempFile::new_in(scratch).map_err(copy)?;
    recording
        .write_to(file.as_file(), state, region.start, region.end)
        .map_err(copy)?;

    let careful = run("e2fsck", &["-p"], file.path())?;
    if !matches!(careful.status.code(), Some(0..=2)) {
        let thorough = run("e2fsck", &["-f", "-y"], file.path())?;
        if !matches!(thorough.status.code(), Some(0..=2)) {
            let words = String::from_utf8_lossy(&thorough.stdout).into_owned();
            return Ok(Ext4::Broken(format!("e2fsck gives up: {words}")));
        }
    }
    let mut found = Vec::new();
    for name in files {
        let answer = run("debugfs", &["-R", &format!("cat {name}")], file.path())?;
        let is_there = !String::from_utf8_lossy(&answer.stderr).contains("File not found");
        found.push(is_there.then_some(answer.stdout));
    }
    Ok(Ext4::Mounted(found))
}

fn run(program: &'static str, arguments: &[&str], file: &Path) -> Result<Output, ToolError> {
    Command::new(program)
        .args(arguments)
        .arg(file)
        // What they say is compared.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| ToolError::Start { program, source })
}
