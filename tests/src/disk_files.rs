//! Files that hold disks.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::image_under_test::ImageUnderTest;
use crate::run_command::run;

impl ImageUnderTest {
    /// Puts a copy of the disk image on a disk of `bytes` bytes: a machine makes its other partitions in the rest.
    pub fn put_on_disk(&self, disk: &Path, bytes: u64) -> Result<()> {
        copy_with_holes(&self.disk(), disk)?;
        File::options()
            .write(true)
            .open(disk)
            .and_then(|file| file.set_len(bytes))
            .with_context(|| format!("cannot enlarge {}", disk.display()))
    }
}

/// Copies a disk without filling its holes.
pub(crate) fn copy_with_holes(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("--sparse=always").args([from, to])).map(drop)
}
