//! FAT partitions as files, made by mkfs.fat and mtools.

use std::{fs::File, path::Path};

use anyhow::{Context, Result};

use super::{
    command::{run, run_with_input, tool},
    new_esp::Files,
};

/// The volume's label.
const LABEL: &str = "INSTAR";

/// The kind of FAT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// FAT32, which firmware expects on disks. It starts at 65,525 clusters.
    Fat32,
    /// The kind that mkfs.fat chooses for the size, as on removable media.
    Any,
}

/// Makes a partition of `bytes` bytes with these files.
pub(super) fn write(files: &Files, kind: Kind, bytes: u64, out: &Path) -> Result<()> {
    File::create(out)
        .and_then(|file| file.set_len(bytes))
        .with_context(|| format!("cannot write {}", out.display()))?;
    let mut format = tool("mkfs.fat");
    format.args(["--invariant", "-n", LABEL]);
    if kind == Kind::Fat32 {
        // Clusters of 1 KiB: 128 MiB of larger ones would be too few.
        format.args(["-F", "32", "-s", "2"]);
    }
    run(format.arg(out), "dosfstools")?;
    for folder in &files.folders {
        let mut make = tool("mmd");
        make.arg("-i").arg(out).arg(format!("::/{folder}"));
        run(&mut make, "mtools")?;
    }
    for (path, content) in &files.files {
        let mut copy = tool("mcopy");
        copy.arg("-i").arg(out).args(["-", &format!("::/{path}")]);
        run_with_input(&mut copy, "mtools", content)
            .with_context(|| format!("cannot put {path} into a FAT partition of {bytes} bytes"))?;
    }
    Ok(())
}
