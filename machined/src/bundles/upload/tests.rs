//! The file of an upload, from its first byte to its removal.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Read as _;

use super::*;

fn uploads() -> (tempfile::TempDir, Uploads) {
    let directory = tempfile::tempdir().unwrap();
    let uploads = Uploads::new(directory.path().join("uploads"));
    (directory, uploads)
}

#[test]
fn an_upload_goes_on_where_it_was_cut_off() {
    let (directory, uploads) = uploads();
    let digest = Digest::of(b"bundle");
    assert_eq!(uploads.begin(digest, 6).unwrap(), 0);
    assert_eq!(uploads.write(digest, 0, b"bun").unwrap(), 3);
    assert_eq!(uploads.begin(digest, 6).unwrap(), 3);
    let wrong = uploads.write(digest, 2, b"dle").unwrap_err();
    assert!(matches!(
        wrong,
        UploadError::Offset {
            expected: 3,
            given: 2
        }
    ));
    assert!(matches!(
        uploads.take(digest),
        Err(UploadError::Incomplete { .. })
    ));

    // A restart of machined.
    let uploads = Uploads::new(directory.path().join("uploads"));
    assert!(matches!(
        uploads.write(digest, 3, b"dle"),
        Err(UploadError::NotBegun(_))
    ));
    assert_eq!(uploads.begin(digest, 6).unwrap(), 3);
    assert!(matches!(
        uploads.write(digest, 3, b"dle!"),
        Err(UploadError::TooLong(6))
    ));
    assert_eq!(uploads.write(digest, 3, b"dle").unwrap(), 6);
    let mut read = String::new();
    uploads
        .take(digest)
        .unwrap()
        .read_to_string(&mut read)
        .unwrap();
    assert_eq!(read, "bundle");
    assert!(matches!(
        uploads.begin(digest, 6),
        Err(UploadError::Taken(_))
    ));
    assert!(matches!(
        uploads.write(digest, 6, b""),
        Err(UploadError::Taken(_))
    ));
    uploads.release(digest);
    assert_eq!(uploads.begin(digest, 6).unwrap(), 6);
    uploads.end(digest).unwrap();
    assert_eq!(uploads.begin(digest, 6).unwrap(), 0);
}

#[test]
fn there_is_one_at_a_time() {
    let (_directory, uploads) = uploads();
    let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
    uploads.begin(one, 3).unwrap();
    uploads.write(one, 0, b"o").unwrap();
    let busy = uploads.begin(other, 5).unwrap_err();
    assert!(matches!(busy, UploadError::Busy { .. }), "{busy}");
    let long_ago = Instant::now().checked_sub(SILENCE);
    uploads.slot.locked().as_mut().unwrap().last_byte = long_ago;
    assert_eq!(uploads.begin(other, 5).unwrap(), 0);
    assert!(matches!(
        uploads.write(one, 1, b"n"),
        Err(UploadError::NotBegun(_))
    ));
    assert_eq!(fs::read_dir(&uploads.directory).unwrap().count(), 1);
}

#[test]
fn what_the_rules_refuse_is_imported_later_and_stands_in_nobodys_way() {
    let (_directory, uploads) = uploads();
    let (refused, other) = (Digest::of(b"refused"), Digest::of(b"other"));
    uploads.begin(refused, 3).unwrap();
    uploads.write(refused, 0, b"abc").unwrap();
    uploads.take(refused).unwrap();
    uploads.leave(refused);
    assert_eq!(uploads.begin(refused, 3).unwrap(), 3);
    uploads.take(refused).unwrap();
    uploads.leave(refused);
    assert_eq!(uploads.begin(other, 5).unwrap(), 0);
}

#[test]
fn a_file_that_nobody_goes_on_with_is_removed() {
    let (_directory, uploads) = uploads();
    assert!(!uploads.forget(Duration::ZERO).unwrap());
    let digest = Digest::of(b"bundle");
    let age = |hours: u64| {
        let now = std::time::SystemTime::now();
        let file = fs::read_dir(&uploads.directory).unwrap().next().unwrap();
        let file = File::options().write(true).open(file.unwrap().path());
        let old = now.checked_sub(Duration::from_secs(hours * 3600)).unwrap();
        file.unwrap().set_modified(old).unwrap();
    };
    uploads.begin(digest, 3).unwrap();
    uploads.write(digest, 0, b"abc").unwrap();
    age(25);
    // Its caller has just asked for it.
    assert!(!uploads.forget(FORGOTTEN).unwrap());
    uploads.take(digest).unwrap();
    uploads.slot.locked().as_mut().unwrap().last_byte = None;
    assert!(!uploads.forget(FORGOTTEN).unwrap());
    // The rules refuse it, and stay as they are.
    uploads.leave(digest);
    age(23);
    assert!(!uploads.forget(FORGOTTEN).unwrap());
    assert_eq!(uploads.begin(digest, 3).unwrap(), 3);
    uploads.leave(digest);
    // A pull lacks room.
    assert!(uploads.forget(SILENCE).unwrap());
    assert_eq!(fs::read_dir(&uploads.directory).unwrap().count(), 0);
    assert!(uploads.take(digest).is_err());
    // A restart of machined.
    uploads.begin(digest, 3).unwrap();
    age(25);
    let uploads = Uploads::new(uploads.directory.clone());
    assert!(uploads.forget(FORGOTTEN).unwrap());
    assert!(!uploads.forget(FORGOTTEN).unwrap());
}

#[test]
fn more_than_there_is_room_for_is_refused_with_the_numbers() {
    let (_directory, uploads) = uploads();
    let error = uploads.begin(Digest::of(b"huge"), 1 << 60).unwrap_err();
    assert!(matches!(error, UploadError::NoRoom { .. }));
    assert!(error.to_string().contains("are free on /var"), "{error}");
    assert_eq!(fs::read_dir(&uploads.directory).unwrap().count(), 0);

    // What is kept for upgrades is no room.
    let UploadError::NoRoom { free, reserve, .. } = error else {
        panic!("{error}");
    };
    assert!(reserve > 0);
    let whole = free.saturating_sub(reserve / 2) / 3;
    let error = uploads.begin(Digest::of(b"large"), whole).unwrap_err();
    assert!(matches!(error, UploadError::NoRoom { .. }), "{error}");
}
