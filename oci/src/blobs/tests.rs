#![allow(clippy::unwrap_used, clippy::panic)]

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;

use super::*;

const CONTENT: &[u8] = b"the content of a blob";

fn blobs() -> (tempfile::TempDir, Blobs) {
    let directory = tempfile::tempdir().unwrap();
    let blobs = Blobs::new(directory.path());
    (directory, blobs)
}

fn missing(blobs: &Blobs, content: &[u8]) -> IncomingBlob {
    let received = blobs.try_receive(Digest::of(content), content.len() as u64);
    match received.unwrap() {
        Some(Receiving::Missing(incoming)) => incoming,
        other => panic!("{other:?}"),
    }
}

fn read(blobs: &Blobs, digest: Digest) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut reader = blobs.open(digest).unwrap().unwrap().checked();
    reader.read_to_end(&mut bytes).map(|_| bytes)
}

#[test]
fn a_reader_that_finds_damage_removes_the_blob_and_no_other_file_of_its_name() {
    let (_directory, blobs) = blobs();
    let digest = Digest::of(CONTENT);
    let receive = || {
        let mut incoming = missing(&blobs, CONTENT);
        incoming.write(CONTENT).unwrap();
        incoming.commit().unwrap()
    };
    let damage = || {
        let file = File::options().write(true).open(blobs.path(digest));
        file.unwrap().write_all_at(b"!", 3).unwrap();
    };
    receive();
    damage();
    let slow = blobs.open(digest).unwrap().unwrap();
    let error = read(&blobs, digest).unwrap_err();
    assert!(error.to_string().contains("damaged on the disk"), "{error}");
    assert!(blobs.open(digest).unwrap().is_none(), "it stays");
    // One that was opened before finds the same damage, after the blob has come again.
    receive();
    io::copy(&mut slow.checked(), &mut io::sink()).unwrap_err();
    assert_eq!(read(&blobs, digest).unwrap(), CONTENT);
}

#[test]
fn a_blob_is_received_in_pieces_and_over_restarts() {
    let (directory, blobs) = blobs();
    let digest = Digest::of(CONTENT);
    assert!(blobs.open(digest).unwrap().is_none());
    assert!(blobs.list().unwrap().is_empty());

    let mut incoming = missing(&blobs, CONTENT);
    incoming.write(&CONTENT[..5]).unwrap();
    assert!(matches!(
        incoming.commit(),
        Err(StoreError::BlobTruncated { length: 5, .. })
    ));
    // Another process, as after a restart.
    let blobs = Blobs::new(directory.path());
    assert_eq!(blobs.list_partial().unwrap()[0].bytes, 5);
    let mut incoming = missing(&blobs, CONTENT);
    assert_eq!(incoming.length(), 5);
    incoming.write(&CONTENT[5..]).unwrap();
    let stored = incoming.commit().unwrap();
    assert_eq!(
        (stored.digest(), stored.size()),
        (digest, CONTENT.len() as u64)
    );
    assert_eq!(read(&blobs, digest).unwrap(), CONTENT);
    assert_eq!(blobs.document(digest, 1000).unwrap().unwrap(), CONTENT);
    assert_eq!(blobs.document(digest, 3).unwrap(), None);
    assert!(blobs.list_partial().unwrap().is_empty());
    let again = blobs.try_receive(digest, CONTENT.len() as u64).unwrap();
    assert!(matches!(again, Some(Receiving::Stored(_))));
}

#[tokio::test]
async fn a_blob_has_one_writer_at_a_time() {
    let (_directory, blobs) = blobs();
    let (digest, size) = (Digest::of(CONTENT), CONTENT.len() as u64);
    let mut first = missing(&blobs, CONTENT);
    assert!(blobs.try_receive(digest, size).unwrap().is_none());
    missing(&blobs, b"another");
    let second = blobs.receive(digest, size);
    let write = async move {
        tokio::task::yield_now().await;
        first.write(CONTENT).unwrap();
        first.commit().unwrap();
    };
    let (second, ()) = tokio::join!(second, write);
    assert!(matches!(second.unwrap(), Receiving::Stored(_)));
    drop(missing(&blobs, b"yet another"));
    assert!(blobs.shared.writers.locked().len() <= 1);
}

#[test]
fn a_blob_of_another_content_is_not_taken() {
    let (_directory, blobs) = blobs();
    let mut incoming = missing(&blobs, CONTENT);
    incoming.write(&[0; CONTENT.len()]).unwrap();
    assert!(matches!(
        incoming.write(b"x"),
        Err(StoreError::BlobTooLong { .. })
    ));
    assert!(matches!(
        incoming.commit(),
        Err(StoreError::BlobDigest { .. })
    ));
    assert!(blobs.open(Digest::of(CONTENT)).unwrap().is_none());
    assert_eq!(missing(&blobs, CONTENT).length(), 0);
    // What is longer than the blob can be is none of it.
    let path = blobs.partial_path(Digest::of(CONTENT));
    fs::write(path, [0; 100]).unwrap();
    assert_eq!(missing(&blobs, CONTENT).length(), 0);
}

#[test]
fn a_flipped_byte_is_found_at_the_end_of_reading() {
    let (_directory, blobs) = blobs();
    let digest = Digest::of(CONTENT);
    let mut incoming = missing(&blobs, CONTENT);
    incoming.write(CONTENT).unwrap();
    incoming.commit().unwrap();
    let file = File::options().write(true).open(blobs.path(digest));
    file.unwrap().write_all_at(b"X", 7).unwrap();
    let error = read(&blobs, digest).unwrap_err();
    assert!(error.to_string().contains("damaged on the disk"), "{error}");
    assert_eq!(blobs.document(digest, 1000).unwrap(), None);
    assert!(blobs.open(digest).unwrap().is_none(), "it is removed");
}

#[test]
fn a_reader_follows_the_writer_to_its_end() {
    let (_directory, blobs) = blobs();
    let (mut writer, mut reader) = missing(&blobs, CONTENT).followed();
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| (bytes, reader))
    });
    for piece in CONTENT.chunks(4) {
        writer.write(piece).unwrap();
    }
    drop(writer);
    let (bytes, reader) = reading.join().unwrap().unwrap();
    assert_eq!(bytes, CONTENT);
    blobs.keep(&[reader.into_partial()]).unwrap();
    assert_eq!(read(&blobs, Digest::of(CONTENT)).unwrap(), CONTENT);

    let (writer, mut reader) = missing(&blobs, b"other").followed();
    writer.fail(io::Error::other("broken"));
    let error = reader.read(&mut [0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "broken");
    assert_eq!(reader.read(&mut [0; 4]).unwrap(), 0);
}

#[test]
fn a_name_is_given_to_the_file_that_was_compared_alone() {
    let (_directory, blobs) = blobs();
    let (mut writer, reader) = missing(&blobs, CONTENT).followed();
    writer.write(CONTENT).unwrap();
    drop(writer);
    let compared = reader.into_partial();
    blobs.remove(Digest::of(CONTENT)).unwrap();
    let mut other = missing(&blobs, CONTENT);
    other.write(b"not compared").unwrap();
    blobs.keep(&[compared]).unwrap();
    assert!(blobs.open(Digest::of(CONTENT)).unwrap().is_none());
    assert_eq!(other.length(), 12);
}
