//! The files of extensions that `bundle create` takes in: named as they lie, with the digests by which configs name them.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use instar_bundle::{BundledFile, NotAFile};
use instar_client::{Failure, FailureKind};
use instar_oci::bundled::LocalFile;
use instar_values::Digest;
use instar_values::digest::Hasher;

/// The suffix of files that are a file system.
const RAW: &str = ".raw";
/// The first bytes of a squashfs.
const SQUASHFS: &[u8] = b"hsqs";
/// Size of the pieces that are read.
const PIECE: usize = 1 << 20;

/// Reads the files once, for their digests.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<LocalFile>, Failure> {
    paths.iter().map(|path| read_one(path)).collect()
}

fn read_one(path: &Path) -> Result<LocalFile, Failure> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let cannot = |error| Failure::io(format!("cannot read {}", path.display()), error);
    let content = File::open(path).and_then(content).map_err(cannot)?;
    let of_no_use = |error: NotAFile| {
        let message = format!("cannot take {} into the bundle", path.display());
        Failure::new(FailureKind::Failed, message).because(error)
    };
    let file = BundledFile::new(&name, content.digest, content.size).map_err(of_no_use)?;
    // Better known here than at the machine.
    if name.ends_with(RAW) && !content.begins_as_squashfs {
        let message = format!(
            "cannot take {} into the bundle: it is no squashfs, and machines read no other file system of an extension",
            path.display()
        );
        return Err(Failure::new(FailureKind::Failed, message));
    }
    let path = path.to_owned();
    Ok(LocalFile { file, path })
}

/// The facts about a file that was read.
struct Content {
    digest: Digest,
    size: u64,
    begins_as_squashfs: bool,
}

fn content(mut file: File) -> io::Result<Content> {
    let (mut hasher, mut size, mut begins_as_squashfs) = (Hasher::default(), 0, false);
    let mut piece = vec![0; PIECE];
    loop {
        let count = file.read(&mut piece)?;
        let read = piece.get(..count).unwrap_or_default();
        if read.is_empty() {
            break;
        }
        if size == 0 {
            begins_as_squashfs = read.starts_with(SQUASHFS);
        }
        hasher.update(read);
        size += count as u64;
    }
    Ok(Content {
        digest: hasher.finish(),
        size,
        begins_as_squashfs,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn written(name: &str, content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        (directory, path)
    }

    #[test]
    fn a_file_is_known_by_its_name_and_digest() {
        let mut content = SQUASHFS.to_vec();
        content.resize(PIECE + 7, 9);
        let (_directory, path) = written("site-v1-x86-64.raw", &content);
        let files = read(std::slice::from_ref(&path)).unwrap();
        let [LocalFile { file, path: known }] = files.as_slice() else {
            unreachable!("one path makes one file");
        };
        assert_eq!(file.name(), "site-v1-x86-64.raw");
        assert_eq!(file.digest(), Digest::of(&content));
        assert_eq!(file.size(), content.len() as u64);
        assert_eq!(*known, path);
        // A list of a publisher has no suffix.
        let (_directory, list) = written("SHA256SUMS", b"a list");
        read(&[list]).unwrap();
    }

    #[test]
    fn what_machines_do_not_take_is_refused() {
        for (name, why) in [
            ("site.raw", "it is no squashfs"),
            ("si te", "is no name of a file in a bundle"),
        ] {
            let (_directory, path) = written(name, b"something");
            let said = read(&[path]).unwrap_err().chain();
            assert!(said.contains(why), "{said}");
        }
        let said = read(&[PathBuf::from("/nowhere/site.raw")]).unwrap_err();
        assert!(said.chain().contains("cannot read /nowhere/site.raw"));
    }
}
