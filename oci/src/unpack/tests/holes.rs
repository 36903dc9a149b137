//! Sparse files.

use std::os::unix::fs::MetadataExt;

use super::*;

/// The maps as GNU tar writes them.
#[test]
fn sparse_files_get_their_holes_back() {
    let expected = |outer: &tempfile::TempDir, path: &str| {
        let content = fs::read(outer.path().join("rootfs").join(path)).unwrap();
        assert_eq!(content.len(), 1_000_000, "{path}");
        let mut wanted = vec![0; 1_000_000];
        wanted[512..517].copy_from_slice(b"hello");
        wanted[500_000..500_003].copy_from_slice(b"you");
        assert!(content == wanted, "{path}");
        let blocks = fs::metadata(outer.path().join("rootfs").join(path)).unwrap();
        assert!(blocks.blocks() * 512 < 500_000, "{path} has no holes");
    };
    let map = b"3\n512\n5\n500000\n3\n1000000\n0\n";
    let mut in_front = map.to_vec();
    in_front.resize(512, 0);
    in_front.extend_from_slice(b"helloyou");
    let layer = tar()
        .pax(&[
            ("GNU.sparse.size", b"1000000"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.offset", b"512"),
            ("GNU.sparse.numbytes", b"5"),
            ("GNU.sparse.offset", b"500000"),
            ("GNU.sparse.numbytes", b"3"),
        ])
        .file("v0.0", b"helloyou")
        .pax(&[
            ("GNU.sparse.map", b"512,5,500000,3"),
            ("GNU.sparse.size", b"1000000"),
            ("GNU.sparse.numblocks", b"2"),
            ("GNU.sparse.name", b"v0.1"),
        ])
        .file("GNUSparseFile.0/v0.1", b"helloyou")
        .pax(&[
            ("path", b"GNUSparseFile.0/v1.0"),
            ("GNU.sparse.major", b"1"),
            ("GNU.sparse.minor", b"0"),
            ("GNU.sparse.name", b"v1.0"),
            ("GNU.sparse.realsize", b"1000000"),
        ])
        .file("GNUSparseFile.0/v1.0", &in_front)
        .file("last", b"here")
        .finish();
    let outer = unpacked(&[layer]);
    for path in ["v0.0", "v0.1", "v1.0"] {
        expected(&outer, path);
    }
    assert_eq!(read(&outer, "last"), "here");
    assert!(!exists(&outer, "GNUSparseFile.0"));

    // And from the tool itself, in each of its formats, with more pieces than a header has room for.
    let source = tempfile::tempdir().unwrap();
    let path = source.path().join("file");
    let mut content = vec![0; 60 << 16];
    for piece in 0..60 {
        content[piece << 16] = b'x';
    }
    let file = fs::File::create(&path).unwrap();
    for piece in 0..60_u64 {
        use std::os::unix::fs::FileExt;
        file.write_all_at(b"x", piece << 16).unwrap();
    }
    file.set_len(content.len() as u64).unwrap();
    for format in [
        &["--format=gnu"][..],
        &["--format=pax", "--sparse-version=0.0"],
        &["--format=pax", "--sparse-version=0.1"],
        &["--format=pax", "--sparse-version=1.0"],
    ] {
        let directory = source.path().to_str().unwrap();
        let arguments = [format, &["--sparse", "-cC", directory, "file"]].concat();
        let outer = unpacked(&[piped("tar", &arguments, b"")]);
        assert!(
            fs::read(outer.path().join("rootfs/file")).unwrap() == content,
            "{format:?}"
        );
    }
}

#[test]
fn sparse_files_that_lie_are_refused() {
    let layer = |records: &[(&str, &[u8])], content: &[u8]| {
        [tar().pax(records).file("x", content).finish()]
    };
    let size: (&str, &[u8]) = ("GNU.sparse.size", b"100");
    refused(
        &layer(&[("GNU.sparse.map", b"50,5,0,5"), size], b"0123456789"),
        "contradicts itself",
    );
    refused(
        &layer(&[("GNU.sparse.map", b"0,5"), size], b"0123456789"),
        "contradicts itself",
    );
    refused(
        &layer(&[("GNU.sparse.map", b"0,5,x"), size], b"01234"),
        "cannot be read",
    );
    let first: [(&str, &[u8]); 3] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.realsize", b"100"),
    ];
    refused(&layer(&first, b"9\n"), "not a readable archive");
    let mut many = b"999999\n".to_vec();
    many.resize(512, b'0');
    refused(&layer(&first, &many), "more than 65536 pieces");
}

/// Holes take no disk, but whoever reads the file reads them: the seal does.
#[test]
fn holes_count_towards_a_limit() {
    let limits = Limits {
        unpacked_bytes: 2 << 20,
        ..Limits::default()
    };
    let sparse = |bytes: u64| {
        let size = bytes.to_string();
        let records: [(&str, &[u8]); 2] = [
            ("GNU.sparse.map", b"0,5"),
            ("GNU.sparse.size", size.as_bytes()),
        ];
        tar().pax(&records).file("sparse", b"hello").finish()
    };
    let (outer, taken) = unpack_with(&[sparse(3 << 19)], limits);
    taken.unwrap();
    let file = fs::metadata(outer.path().join("rootfs/sparse")).unwrap();
    assert_eq!(file.len(), 3 << 19);

    let plain = tar().file("plain", &[1; 600_000]).finish();
    for hollow in [
        vec![sparse(1 << 43)],
        vec![sparse(u64::MAX)],
        vec![sparse((2 << 20) + 6)],
        // Of all layers, in any order, and what a later layer replaces as well.
        vec![sparse(3 << 19), sparse(3 << 19)],
        vec![sparse(3 << 19), plain.clone()],
        vec![plain, sparse(3 << 19)],
    ] {
        let (_, refused) = unpack_with(&hollow, limits);
        let error = refused.expect_err("should have been refused");
        assert!(
            matches!(error, UnpackError::TooHollow { limit } if limit == 2 << 20),
            "{error}"
        );
    }
}

/// If the room on the disk is the limit on the unpacked bytes, holes need not fit into it.
#[test]
fn holes_take_no_room() {
    let room = Limits {
        unpacked_bytes: 1 << 20,
        ..Limits::default()
    };
    let records: [(&str, &[u8]); 2] = [("GNU.sparse.map", b"0,5"), ("GNU.sparse.size", b"2000000")];
    let layer = tar().pax(&records).file("sparse", b"hello").finish();
    for (limit, is_taken) in [(2 << 20, true), (2_000_000, false)] {
        let root = tempfile::tempdir().unwrap();
        let unpacker = Unpacker::new(root.path(), room, ownership()).unwrap();
        let mut unpacker = unpacker.with_holes(limit);
        let unpacked = unpacker.layer(&describe(&layer, &layer), &layer[..]);
        assert_eq!(unpacked.is_ok(), is_taken, "{unpacked:?}");
    }
}
