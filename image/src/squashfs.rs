//! A tree as a squashfs file, written by mksquashfs (squashfs-tools 4.5 or newer) from a tar stream: no root, no fakeroot, no staging directory.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use crate::{archive, tree::Tree};

/// Block size, bytes: that many are compressed together. A page that a program needs is read with all of its block,
/// which then stays in memory: small blocks make a larger file, but less is in memory beside the page, in the page
/// cache and in the kernel's buffers (docs/architecture.md). machined's functions that run together are neighbours.
const BLOCK: u32 = 8192;

/// Writes `tree` to `out`, compressed with zstd at the given level (1 to 22).
///
/// # Errors
/// mksquashfs is missing or fails; the error has its message.
pub fn write(tree: &Tree, level: u8, out: &Path) -> Result<()> {
    let part = out.with_extension("squashfs.part");
    // mksquashfs appends to an existing file.
    if part.exists() {
        fs::remove_file(&part)
            .with_context(|| format!("cannot remove the leftover {}", part.display()))?;
    }
    let mut child = Command::new("mksquashfs")
        .arg("-")
        .arg(&part)
        .args([
            "-tar",
            "-comp",
            "zstd",
            "-Xcompression-level",
            &level.to_string(),
            "-b",
            &BLOCK.to_string(),
        ])
        // Reproducible: no times or user ids of this machine, no extended attributes.
        .args([
            "-mkfs-time",
            "0",
            "-all-time",
            "0",
            "-all-root",
            "-no-xattrs",
        ])
        .args(["-root-mode", "0755", "-root-uid", "0", "-root-gid", "0"])
        .args(["-no-exports", "-noappend", "-no-progress", "-quiet"])
        // mksquashfs refuses to run with this variable beside the options above.
        .env_remove("SOURCE_DATE_EPOCH")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot start mksquashfs (Debian: squashfs-tools)")?;
    let input = child
        .stdin
        .take()
        .context("mksquashfs has no standard input")?;
    let written = archive::write(tree, std::io::BufWriter::new(input));
    let output = child
        .wait_with_output()
        .context("cannot wait for mksquashfs")?;
    if !output.status.success() {
        bail!(
            "mksquashfs failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    written.context("cannot hand the tree to mksquashfs")?;
    fs::rename(&part, out).with_context(|| format!("cannot name the finished {}", out.display()))
}
