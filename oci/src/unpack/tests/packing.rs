//! However a layer is packed, it is read; bytes that are not the announced ones are told apart.

use super::super::test_tar::{TestEntry, gzip, zstd};
use super::*;

#[test]
fn layers_are_read_however_they_are_packed() {
    let plain = tar().file("a", &vec![7; 300_000]).file("b", b"2").finish();
    let unpack =
        |blob: &[u8]| unpack_blob(&describe(blob, &plain), blob, Limits::default()).unwrap();
    unpack(&plain);
    unpack(&gzip(&plain));
    unpack(&zstd(&plain));
    let (first, second) = plain.split_at(1000);
    unpack(&[gzip(first), gzip(second)].concat());
    // Parallel packers write a skippable frame before each of theirs, chunked layers have their table in one at the end, and both may have
    // empty frames.
    let skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc";
    let other = b"\x5f\x2a\x4d\x18\x00\x00\x00\x00";
    let (first, second) = (zstd(first), zstd(second));
    unpack(&[&first[..], skippable, &second, skippable].concat());
    unpack(&[&skippable[..], other, &first, &zstd(b""), other, &second].concat());
    unpack(&[&first[..], &second].concat());
}

#[test]
fn the_first_bytes_may_come_one_by_one() {
    struct Slow<'a>(&'a [u8]);
    impl Read for Slow<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let most = buffer.len().min(1);
            self.0.read(&mut buffer[..most])
        }
    }
    let plain = tar().file("a", b"x").finish();
    for blob in [plain.clone(), gzip(&plain), zstd(&plain)] {
        let root = tempfile::tempdir().unwrap();
        let mut unpacker = Unpacker::new(root.path(), Limits::default(), ownership()).unwrap();
        unpacker
            .layer(&describe(&blob, &plain), Slow(&blob))
            .unwrap();
    }
}

/// The output of `zstd` itself with unusual options. Many frames of `-T` are not tested: they need pzstd, which Debian's package does not
/// have.
#[test]
fn what_the_tool_packs_is_read() {
    let plain = tar().file("a", &vec![7; 300_000]).file("b", b"2").finish();
    for options in [
        &["-3"][..],
        &["-19"],
        &["--no-check", "-1"],
        &["--long=24", "-3"],
        &["--fast"],
        &["-B1", "-T2"],
    ] {
        let blob = piped("zstd", options, &plain);
        let result = unpack_blob(&describe(&blob, &plain), &blob, Limits::default());
        result.unwrap_or_else(|error| panic!("{options:?}: {}", chain(&error)));
    }
    // A larger window than a node has memory for.
    let plain = tar().file("a", &vec![7; 300_000]).finish();
    let blob = piped("zstd", &["--ultra", "-22", "--long=27"], &plain);
    let error = unpack_blob(&describe(&blob, &plain), &blob, Limits::default()).unwrap_err();
    assert!(chain(&error).contains("window"), "{}", chain(&error));
}

#[test]
fn wrong_bytes_are_told_apart() {
    let plain = tar()
        .file("a", b"hello")
        .file("b", &(0..=255).cycle().take(100_000).collect::<Vec<u8>>())
        .finish();
    let blob = gzip(&plain);
    let layer = describe(&blob, &plain);
    let limits = Limits::default();

    let cut = unpack_blob(&layer, &blob[..blob.len() / 2], limits).unwrap_err();
    assert!(
        matches!(cut, UnpackError::BlobTruncated { read, .. } if read == blob.len() as u64 / 2),
        "{cut}"
    );
    let long = unpack_blob(&layer, &[&blob[..], b"more"].concat(), limits).unwrap_err();
    assert!(matches!(long, UnpackError::BlobTooLong { .. }), "{long}");
    for at in [0, 12, blob.len() / 2, blob.len() - 2] {
        let mut flipped = blob.clone();
        flipped[at] ^= 0x40;
        let error = unpack_blob(&layer, &flipped, limits).unwrap_err();
        assert!(
            matches!(error, UnpackError::BlobDigest { .. }),
            "byte {at}: {error}"
        );
    }
    let other = Layer {
        diff_id: Digest::of(b"other"),
        ..layer.clone()
    };
    let error = unpack_blob(&other, &blob, limits).unwrap_err();
    assert!(matches!(error, UnpackError::DiffId { .. }), "{error}");
    // Bytes after the archive's end belong to it.
    let trailing = [&plain[..], b"trailing"].concat();
    let hidden = describe(&gzip(&trailing), &plain);
    assert!(matches!(
        unpack_blob(&hidden, &gzip(&trailing), limits),
        Err(UnpackError::DiffId { .. })
    ));
    // The right blob, packed badly: half an archive, half a gzip stream.
    let half = gzip(&plain[..700]);
    let error = unpack_blob(&describe(&half, &plain[..700]), &half, limits).unwrap_err();
    assert!(matches!(error, UnpackError::Archive(_)), "{error}");
    let half = &blob[..blob.len() / 2];
    let error = unpack_blob(&describe(half, &plain), half, limits).unwrap_err();
    assert!(matches!(error, UnpackError::Archive(_)), "{error}");
    // A header that announces more content than there is.
    let liar = tar()
        .entry(TestEntry {
            name: b"x",
            size: Some(1 << 32),
            ..TestEntry::default()
        })
        .finish();
    let error = unpack_blob(&describe(&liar, &liar), &liar, limits).unwrap_err();
    assert!(matches!(error, UnpackError::Archive(_)), "{error}");
}

#[test]
fn a_broken_connection_is_told_as_one() {
    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0 == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::ConnectionReset,
                    "reset by peer",
                ));
            }
            let count = self.0.min(buffer.len());
            self.0 -= count;
            buffer[..count].fill(0x1f);
            Ok(count)
        }
    }
    let root = tempfile::tempdir().unwrap();
    let layer = Layer {
        digest: Digest::of(b""),
        size: 1000,
        diff_id: Digest::of(b""),
    };
    let mut unpacker = Unpacker::new(root.path(), Limits::default(), ownership()).unwrap();
    let error = unpacker.layer(&layer, Broken(600)).unwrap_err();
    assert!(matches!(error, UnpackError::Blob(_)), "{error}");
    assert_eq!(chain(&error), "reading the blob failed: reset by peer");
}
