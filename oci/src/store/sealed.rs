//! The seals of the store's images.
//!
//! ```text
//! <image>/tree.json     the digest over all that is in rootfs, the number of entries, their bytes
//! <image>/tree.hashes   8 bytes of each entry's hash, to name the entry that has changed
//! ```

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::Path;

use crate::objects::{NewObjects, Objects, Sharing};
use crate::seal::{self, Seal};
use crate::store_error::{StoreError, failed};
use instar_base::whole_file;

const SEAL: &str = "tree.json";
const LIST: &str = "tree.hashes";

/// The state of an image's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Files {
    /// All are as they were unpacked.
    Whole,
    /// A version before seals has unpacked them.
    Unsealed,
    /// They have changed: how.
    Damaged(String),
}

/// Seals an image that was unpacked into this directory, and shares its files.
pub(super) fn seal(directory: &Path, objects: &Objects) -> Result<NewObjects, StoreError> {
    let mut sharing = Sharing::default();
    write_seal(directory, |root, list| {
        seal::seal(root, list, objects, &mut |file| sharing.add(file))
    })?;
    tracing::debug!(
        "{} bytes are shared with other images",
        sharing.shared_bytes()
    );
    Ok(sharing.finish())
}

/// Seals an image of a version before seals as it is.
pub(super) fn seal_old(directory: &Path) -> Result<(), StoreError> {
    write_seal(directory, |root, list| {
        seal::seal(root, list, &seal::Nothing, &mut |_| Ok(()))
    })
}

fn write_seal(
    directory: &Path,
    seal: impl FnOnce(&Path, &mut dyn io::Write) -> io::Result<Seal>,
) -> Result<(), StoreError> {
    let (root, list) = (directory.join("rootfs"), directory.join(LIST));
    let sealed = File::create(&list).and_then(|file| {
        let mut writer = BufWriter::new(file);
        let seal = seal(&root, &mut writer)?;
        writer.flush()?;
        Ok(serde_json::to_vec(&seal)?)
    });
    let sealed = sealed.map_err(failed("sealing", &root))?;
    let path = directory.join(SEAL);
    whole_file::replace(&path, 0o644, &sealed).map_err(failed("writing", &path))
}

/// Compares the files of the image in this directory with its seal.
pub(super) fn check(directory: &Path) -> Files {
    let (root, path) = (directory.join("rootfs"), directory.join(SEAL));
    let seal = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Files::Unsealed,
        // A disk that cannot read it has damaged it.
        Err(error) => return Files::Damaged(format!("{SEAL} cannot be read: {error}")),
    };
    let Ok(seal) = serde_json::from_slice::<Seal>(&seal) else {
        return Files::Damaged(format!("{SEAL} cannot be read"));
    };
    let list = File::open(directory.join(LIST));
    let mut list: Box<dyn io::Read> = match list {
        Ok(list) => Box::new(BufReader::new(list)),
        Err(_) => Box::new(io::empty()),
    };
    match seal::seal_again(&root, &mut list) {
        Ok((actual, _)) if actual == seal => Files::Whole,
        Ok((_, Some(first))) => Files::Damaged(format!("{first} is not as it was unpacked")),
        Ok((_, None)) => Files::Damaged(format!("{SEAL} is not of these files")),
        Err(error) => Files::Damaged(format!("its files cannot be read: {error}")),
    }
}
