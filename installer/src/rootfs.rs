//! Copies the root filesystem from a file of the image into sealed memory.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::{error::Error, release::Release};

/// The first bytes of a squashfs.
const SQUASHFS_MAGIC: &[u8; 4] = b"hsqs";

/// Copies `rootfs.squashfs` into memory, checks it against the release, seals the memory, and reads it back.
pub(crate) fn seal(assets: &Path, release: &Release) -> Result<File, Error> {
    let expected = &release.rootfs;
    let bytes = expected.bytes;
    let memory = |step: &'static str| {
        move |source: io::Error| Error::Memory {
            step,
            bytes,
            source,
        }
    };
    let mut sealed: File = memfd_create(
        "rootfs.squashfs",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )
    .map_err(|error| memory("get")(error.into()))?
    .into();

    let found = copy(
        &assets.join("rootfs.squashfs"),
        &mut sealed,
        expected.bytes,
        memory("fill"),
    )?;
    if found != expected.blake3 {
        return Err(Error::BadImage(format!(
            "rootfs.squashfs has digest {found}, expected {}",
            expected.blake3
        )));
    }

    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&sealed, seals).map_err(|error| memory("seal")(error.into()))?;

    // From here on it cannot change: init will mount exactly the data that is read now.
    let read_back = digest(&mut sealed).map_err(memory("read back"))?;
    if read_back != expected.blake3 {
        return Err(Error::Changed {
            found: read_back,
            expected: expected.blake3.clone(),
        });
    }
    Ok(sealed)
}

/// Copies at most one byte more than expected, so that a wrong file cannot fill the memory. Returns the digest.
fn copy(
    path: &Path,
    sealed: &mut File,
    bytes: u64,
    memory: impl Fn(io::Error) -> Error,
) -> Result<String, Error> {
    let read_error = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path)
        .map_err(read_error)?
        .take(bytes.saturating_add(1));
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 18];
    let mut copied = 0;
    loop {
        let count = file.read(&mut buffer).map_err(read_error)?;
        let Some(part) = buffer.get(..count).filter(|part| !part.is_empty()) else {
            break;
        };
        if copied == 0 && !part.starts_with(SQUASHFS_MAGIC) {
            return Err(Error::BadImage("rootfs.squashfs is not a squashfs".into()));
        }
        hasher.update(part);
        sealed.write_all(part).map_err(&memory)?;
        copied += count as u64;
    }
    if copied != bytes {
        let relation = if copied > bytes {
            "more than"
        } else {
            "fewer than"
        };
        return Err(Error::BadImage(format!(
            "rootfs.squashfs has {relation} the expected {bytes} bytes"
        )));
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn digest(file: &mut File) -> io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(file)?;
    Ok(hasher.finalize().to_hex().to_string())
}
