//! The file of an upload, from its first byte to its removal.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Read as _;
use std::sync::mpsc::channel;

use super::*;
use crate::base::blocking_io;

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
    let (mut file, taken) = uploads.take(digest).unwrap();
    file.read_to_string(&mut read).unwrap();
    assert_eq!(read, "bundle");
    assert!(matches!(
        uploads.begin(digest, 6),
        Err(UploadError::Taken(_))
    ));
    assert!(matches!(
        uploads.write(digest, 6, b""),
        Err(UploadError::Taken(_))
    ));
    taken.release();
    let busy = uploads.begin(Digest::of(b"other"), 6).unwrap_err();
    assert!(matches!(busy, UploadError::Busy { .. }), "{busy}");
    assert_eq!(uploads.begin(digest, 6).unwrap(), 6);
    let (_, taken) = uploads.take(digest).unwrap();
    taken.end().unwrap();
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
    drop(uploads.take(refused).unwrap());
    assert_eq!(uploads.begin(refused, 3).unwrap(), 3);
    drop(uploads.take(refused).unwrap());
    assert_eq!(uploads.begin(other, 5).unwrap(), 0);
}

/// The thread takes the file though nobody waits for it any more.
#[tokio::test]
async fn a_caller_who_hangs_up_while_the_file_is_taken_blocks_no_other_upload() {
    let (_directory, uploads) = uploads();
    let (one, other) = (Digest::of(b"one"), Digest::of(b"other"));
    uploads.begin(one, 3).unwrap();
    uploads.write(one, 0, b"abc").unwrap();
    let ((begin, begins), (done, is_done)) = (channel(), channel());
    let taker = uploads.clone();
    let taking = blocking_io::within(blocking_io::ANSWER, move || {
        begins.recv().unwrap();
        let taken = taker.take(one).unwrap();
        done.send(()).unwrap();
        taken
    });
    // The call is polled once, then dropped.
    assert!(tokio::time::timeout(Duration::ZERO, taking).await.is_err());
    begin.send(()).unwrap();
    is_done.recv().unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while let Err(refused) = uploads.begin(other, 5) {
        assert!(Instant::now() < until, "{refused}");
        std::thread::sleep(Duration::from_millis(5));
    }
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
    let taken = uploads.take(digest).unwrap();
    uploads.slot.locked().as_mut().unwrap().last_byte = None;
    assert!(!uploads.forget(FORGOTTEN).unwrap());
    // The rules refuse it, and stay as they are.
    drop(taken);
    age(23);
    assert!(!uploads.forget(FORGOTTEN).unwrap());
    assert_eq!(uploads.begin(digest, 3).unwrap(), 3);
    drop(uploads.take(digest).unwrap());
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
