//! The archive of a directory, which nobody has written.

use std::fs;
use std::io;

use super::*;
use crate::AsArchive;

fn of_directory(path: &Path) -> Result<AsArchive, Refused> {
    AsArchive::of_directory(File::open(path).unwrap())
}

fn whole(archive: &AsArchive) -> Vec<u8> {
    let mut read = vec![0; usize::try_from(archive.bytes()).unwrap()];
    archive.read_exact_at(&mut read, 0).unwrap();
    read
}

#[test]
fn a_directory_gives_the_bytes_of_its_archive_at_every_offset() {
    let contents = Contents::usual();
    let (written, directory) = (contents.archive(), tempfile::tempdir().unwrap());
    contents.directory(directory.path());
    fs::write(directory.path().join("holiday.jpg"), "beside it").unwrap();
    let file = directory.path().join("site.bundle");
    fs::write(&file, &written).unwrap();
    let archive = of_directory(directory.path()).unwrap();
    let of_file = AsArchive::of_file(File::open(file).unwrap()).unwrap();
    assert_eq!(whole(&archive), written);
    assert_eq!(whole(&of_file), written);
    assert_eq!(archive.summary(), of_file.summary());
    assert_eq!(archive.summary().digest, contents.index().digest());
    for size in [1, 7, 512, 1000] {
        for at in (0..written.len() - size).step_by(97) {
            let mut read = vec![0; size];
            archive.read_exact_at(&mut read, at as u64).unwrap();
            assert_eq!(read, written[at..at + size], "{size} bytes at {at}");
        }
    }
    let end = archive.read_exact_at(&mut [0; 2], archive.bytes() - 1);
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_directory_that_is_no_bundle_or_changes_is_refused_by_the_name_of_the_file() {
    let empty = tempfile::tempdir().unwrap();
    let refused = of_directory(empty.path()).unwrap_err();
    assert!(said(&refused).contains("oci-layout"), "{}", said(&refused));

    let (contents, directory) = (Contents::usual(), tempfile::tempdir().unwrap());
    contents.directory(directory.path());
    let archive = of_directory(directory.path()).unwrap();
    let layer = Digest::of(b"layer of b").hex();
    let path = directory.path().join("blobs/sha256").join(&layer);
    let mut read = vec![0; usize::try_from(archive.bytes()).unwrap()];
    for change in [Some("layer"), None] {
        match change {
            Some(shorter) => fs::write(&path, shorter).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = archive.read_exact_at(&mut read, 0).unwrap_err();
        assert!(error.to_string().contains(&layer), "{error}");
    }
    // A document that says what comes is missing.
    let manifest = contents.images[0].manifest.digest.hex();
    fs::remove_file(directory.path().join("blobs/sha256").join(&manifest)).unwrap();
    let refused = said(&of_directory(directory.path()).unwrap_err());
    assert!(refused.contains(&manifest), "{refused}");
}
