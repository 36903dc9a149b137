//! JSON in a sealed memfd: one generation leaves it with init, and the next one reads it.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;

use anyhow::Context as _;
use rustix::fs::{MemfdFlags, SealFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Writes `content` to a memfd of this name and seals it, so that it cannot be changed. `what` is the content's name in errors.
pub fn to_memfd(name: &str, what: &str, content: &impl Serialize) -> anyhow::Result<OwnedFd> {
    let memfd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .with_context(|| format!("make the memfd of {what}"))?;
    let mut file = File::from(memfd);
    file.write_all(&serde_json::to_vec(content)?)
        .with_context(|| format!("write {what}"))?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals).with_context(|| format!("seal {what}"))?;
    Ok(file.into())
}

/// Reads the content, of at most `largest` bytes. The memfd's position stays unchanged.
pub fn from_memfd<T: DeserializeOwned>(
    memfd: &OwnedFd,
    what: &str,
    largest: u64,
) -> anyhow::Result<T> {
    let file = File::from(
        memfd
            .try_clone()
            .with_context(|| format!("duplicate {what}"))?,
    );
    let metadata = file.metadata();
    let length = metadata.with_context(|| format!("look at {what}"))?.len();
    anyhow::ensure!(length <= largest, "{what} has {length} bytes");
    let mut json = vec![0; usize::try_from(length)?];
    file.read_exact_at(&mut json, 0)
        .with_context(|| format!("read {what}"))?;
    serde_json::from_slice(&json).with_context(|| format!("parse {what}"))
}
