//! An archive that unpacks to more than it may is stopped.

use super::super::test_tar::{gzip, zstd};
use super::*;

/// Directories on the disk count, not only entries.
#[test]
fn directories_without_an_entry_count() {
    let limits = Limits {
        entries: 1000,
        ..Limits::default()
    };
    let deep = |count| {
        let path = |number| format!("{number}/{}x", "d/".repeat(198));
        (0..count)
            .fold(tar(), |tar, number| {
                tar.pax(&[("path", path(number).as_bytes())]).file("x", b"")
            })
            .finish()
    };
    let (_outer, few) = unpack_with(&[deep(4)], limits);
    few.unwrap();
    let (_outer, many) = unpack_with(&[deep(6)], limits);
    let said = chain(&many.unwrap_err());
    assert!(said.contains("more than 1000 files"), "{said}");
    // Directories of several layers count together.
    let other = tar().directory(&"e/".repeat(40)).finish();
    let (_outer, both) = unpack_with(&[deep(4), other.clone()], limits);
    both.unwrap();
    let more = (0..6).fold(tar(), |tar, number| {
        tar.file(&format!("{number}/{}x", "f/".repeat(45)), b"")
    });
    let (_outer, both) = unpack_with(&[deep(4), more.finish()], limits);
    assert!(both.is_err());
}

#[test]
fn bombs_are_stopped() {
    let megabytes = |count: usize| tar().file("zeros", &vec![0; count << 20]).finish();
    let limits = Limits {
        unpacked_bytes: 8 << 20,
        entries: 10,
        ratio: 200,
        ratio_from: 32 << 20,
    };

    let big = gzip(&megabytes(9));
    let error = unpack_blob(&describe(&big, b""), &big, limits).unwrap_err();
    assert!(
        matches!(error, UnpackError::TooLarge { limit } if limit == 8 << 20),
        "{error}"
    );
    // The limit is for the image, not for each layer.
    let half = megabytes(5);
    let (_, error) = unpack_with(&[half.clone(), half], limits);
    assert!(matches!(error, Err(UnpackError::TooLarge { .. })));

    let wide = Limits {
        unpacked_bytes: 1 << 40,
        ..limits
    };
    for blob in [gzip(&megabytes(40)), zstd(&megabytes(40))] {
        let error = unpack_blob(&describe(&blob, b""), &blob, wide).unwrap_err();
        assert!(
            matches!(error, UnpackError::TooDense { limit: 200 }),
            "{error}"
        );
    }
    // Below the absolute size it is taken for a preallocated file.
    let preallocated = megabytes(31);
    let blob = gzip(&preallocated);
    unpack_blob(&describe(&blob, &preallocated), &blob, wide).unwrap();
    assert!(Limits::default().ratio_from > 300 << 20);
    // Zeros behind the end of the archive are a bomb as well.
    let tail = gzip(&[tar().finish(), vec![0; 40 << 20]].concat());
    let error = unpack_blob(&describe(&tail, b""), &tail, wide).unwrap_err();
    assert!(matches!(error, UnpackError::TooDense { .. }), "{error}");

    let many = (0..11)
        .fold(tar(), |tar, number| tar.file(&number.to_string(), b""))
        .finish();
    let error = unpack_blob(&describe(&many, &many), &many, limits).unwrap_err();
    assert!(
        matches!(error, UnpackError::TooMany { limit: 10 }),
        "{error}"
    );
}
