#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::test_tar::{TarBuilder, TestEntry, describe, gzip, zstd};
use super::*;
use crate::containers::manifest::Compression;
use crate::error_chain::chain;

/// Root keeps owners as a node does; everybody else tests the rest.
fn ownership() -> Ownership {
    if rustix::process::geteuid().is_root() {
        Ownership::Keep
    } else {
        Ownership::Ignore
    }
}

fn unpack_with(layers: &[Vec<u8>], limits: Limits) -> (tempfile::TempDir, Result<(), UnpackError>) {
    let outer = tempfile::tempdir().unwrap();
    let root = outer.path().join("rootfs");
    fs::create_dir(&root).unwrap();
    let mut unpacker = Unpacker::new(&root, limits, ownership()).unwrap();
    let result = layers
        .iter()
        .try_for_each(|tar| unpacker.layer(&describe(tar, tar, Compression::None), &tar[..]));
    (outer, result)
}

fn unpack(layers: &[Vec<u8>]) -> (tempfile::TempDir, Result<(), UnpackError>) {
    unpack_with(layers, Limits::default())
}

fn unpacked(layers: &[Vec<u8>]) -> tempfile::TempDir {
    let (outer, result) = unpack(layers);
    result.unwrap();
    outer
}

fn tar() -> TarBuilder {
    TarBuilder::default()
}

#[track_caller]
fn refused(layers: &[Vec<u8>], expected: &str) {
    let (outer, result) = unpack(layers);
    let said = chain(&result.expect_err("should have been refused"));
    assert!(said.contains(expected), "{said}");
    let beside: Vec<_> = fs::read_dir(outer.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(beside, ["rootfs"], "something was written outside");
}

fn read(outer: &tempfile::TempDir, path: &str) -> String {
    fs::read_to_string(outer.path().join("rootfs").join(path)).unwrap()
}

fn exists(outer: &tempfile::TempDir, path: &str) -> bool {
    outer
        .path()
        .join("rootfs")
        .join(path)
        .symlink_metadata()
        .is_ok()
}

#[test]
fn files_links_modes_and_times() {
    let layer = tar()
        .entry(TestEntry {
            name: b"./",
            kind: b'5',
            mode: 0o755,
            mtime: 7,
            ..TestEntry::default()
        })
        .directory("./etc/")
        .entry(TestEntry {
            name: b"etc/tool",
            content: b"x",
            mode: 0o4755,
            mtime: 1000,
            ..TestEntry::default()
        })
        .file("implied/parent/file", b"y")
        .file("/absolute", b"z")
        .symlink("bin/sh", "/etc/tool")
        .hard_link("bin/tool", "etc/tool")
        .entry(TestEntry {
            name: b"pipe",
            kind: b'6',
            ..TestEntry::default()
        })
        .entry(TestEntry {
            name: b"dev/null",
            kind: b'3',
            ..TestEntry::default()
        })
        .entry(TestEntry {
            name: b"old/style/",
            kind: 0,
            ..TestEntry::default()
        })
        .pax(&[
            ("path", b"a/very/long/name"),
            ("mtime", b"12.5"),
            ("SCHILY.xattr.trusted.overlay.opaque", b"y"),
        ])
        .file("short", b"pax")
        .finish();
    let outer = unpacked(&[layer]);
    let root = outer.path().join("rootfs");
    let tool = fs::metadata(root.join("etc/tool")).unwrap();
    assert_eq!(
        (tool.mode() & 0o7777, tool.mtime(), tool.nlink()),
        (0o4755, 1000, 2)
    );
    assert_eq!(fs::metadata(&root).unwrap().mtime(), 7);
    assert_eq!(
        fs::metadata(root.join("implied")).unwrap().mode() & 0o777,
        0o755
    );
    assert_eq!(
        fs::read_link(root.join("bin/sh")).unwrap().to_str(),
        Some("/etc/tool")
    );
    assert_eq!(read(&outer, "absolute"), "z");
    assert_eq!(read(&outer, "a/very/long/name"), "pax");
    let long = fs::metadata(root.join("a/very/long/name")).unwrap();
    assert_eq!((long.mtime(), long.mtime_nsec()), (12, 500_000_000));
    let attribute = rustix::fs::getxattr(
        root.join("a/very/long/name"),
        "trusted.overlay.opaque",
        &mut [0_u8; 8],
    );
    assert!(
        attribute.is_err(),
        "attributes of overlay mounts must not come from an image"
    );
    assert!(fs::metadata(root.join("old/style")).unwrap().is_dir());
    assert!(exists(&outer, "pipe") && !exists(&outer, "dev/null"));
}

#[test]
fn owners_and_capabilities_are_kept_by_root() {
    // cap_net_raw=ep, revision 2; with a line end inside, as a binary value may have.
    let capability =
        b"\x01\x00\x00\x02\x00\x20\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    let layer = tar()
        .pax(&[
            ("SCHILY.xattr.security.capability", capability),
            ("uid", b"70000"),
        ])
        .entry(TestEntry {
            name: b"ping",
            owner: (1, 42),
            mode: 0o2755,
            content: b"x",
            ..TestEntry::default()
        })
        .finish();
    let outer = unpacked(&[layer]);
    let path = outer.path().join("rootfs/ping");
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o2755);
    if ownership() == Ownership::Keep {
        assert_eq!((metadata.uid(), metadata.gid()), (70000, 42));
        let mut value = [0_u8; 64];
        let length = rustix::fs::getxattr(&path, "security.capability", &mut value).unwrap();
        assert_eq!(&value[..length], capability);
    }
}

#[test]
fn later_layers_replace_and_hide() {
    let lower = tar()
        .file("same", b"old")
        .file("gone", b"x")
        .directory("dir")
        .file("dir/lower", b"x")
        .file("dir/both", b"old")
        .directory("whole")
        .file("whole/deep/file", b"x")
        .directory("becomes-file")
        .file("becomes-file/x", b"x")
        .file("becomes-dir", b"x")
        .symlink("lib", "usr/lib")
        .file("kept/a", b"x")
        .finish();
    let upper = tar()
        .file("same", b"new")
        .file(".wh.gone", b"")
        .file("dir/upper", b"x")
        .file("dir/both", b"new")
        .file("dir/.wh..wh..opq", b"")
        .file(".wh.whole", b"")
        .file("whole/new", b"x")
        .file("becomes-file", b"file")
        .file("becomes-dir/y", b"y")
        .directory("lib")
        .file("lib/own", b"x")
        .file("kept/.wh.never-there", b"")
        .file("nowhere/.wh.x", b"")
        .file("same.wh.x", b"no whiteout")
        .finish();
    // A file in the way of an implied directory is refused, so give it the entry that real layers have.
    let upper_error = unpack(&[lower.clone(), upper.clone()]).1.unwrap_err();
    assert!(
        chain(&upper_error).contains("not a directory"),
        "{}",
        chain(&upper_error)
    );

    let explicit = tar().directory("becomes-dir").finish();
    let outer = unpacked(&[lower, explicit, upper]);
    assert_eq!(read(&outer, "same"), "new");
    assert!(!exists(&outer, "gone") && !exists(&outer, ".wh.gone"));
    assert_eq!(read(&outer, "dir/both"), "new");
    assert!(exists(&outer, "dir/upper") && !exists(&outer, "dir/lower"));
    assert!(exists(&outer, "whole/new") && !exists(&outer, "whole/deep"));
    assert_eq!(read(&outer, "becomes-file"), "file");
    assert_eq!(read(&outer, "becomes-dir/y"), "y");
    assert!(
        fs::symlink_metadata(outer.path().join("rootfs/lib"))
            .unwrap()
            .is_dir()
    );
    assert!(exists(&outer, "kept/a") && !exists(&outer, "nowhere"));
    assert_eq!(read(&outer, "same.wh.x"), "no whiteout");
}

#[test]
fn whiteouts_hide_lower_layers_only_in_any_order() {
    let lower = tar()
        .file("d/a", b"1")
        .file("d/sub/b", b"1")
        .file("d/sub/c", b"1")
        .finish();
    // The whiteout comes last; what this layer brought stays.
    let upper = tar()
        .file("d/sub/c", b"2")
        .file("d/new", b"2")
        .file(".wh.d", b"")
        .finish();
    let outer = unpacked(&[lower.clone(), upper]);
    assert!(!exists(&outer, "d/a") && !exists(&outer, "d/sub/b"));
    assert_eq!(read(&outer, "d/sub/c") + &read(&outer, "d/new"), "22");

    let all_gone = tar().file(".wh.d", b"").finish();
    assert!(!exists(&unpacked(&[lower.clone(), all_gone]), "d"));
    let opaque_root = tar().file("only", b"1").file(".wh..wh..opq", b"").finish();
    let outer = unpacked(&[lower, opaque_root]);
    assert!(exists(&outer, "only") && !exists(&outer, "d"));
}

#[test]
fn upward_paths_are_refused_by_name() {
    refused(
        &[tar().file("../evil", b"x").finish()],
        "entry \"../evil\" is refused: its name is refused: the path goes upwards",
    );
    refused(&[tar().file("a/../../evil", b"x").finish()], "a/../../evil");
    refused(
        &[tar().pax(&[("path", b"../evil")]).file("ok", b"x").finish()],
        "../evil",
    );
    refused(
        &[tar().pax(&[("path", b"a\0b")]).file("ok", b"x").finish()],
        "zero byte",
    );
    refused(
        &[tar()
            .entry(TestEntry {
                name: b"L",
                kind: b'L',
                content: b"../evil\0",
                ..TestEntry::default()
            })
            .file("ok", b"")
            .finish()],
        "../evil",
    );
    refused(
        &[tar().hard_link("x", "../../etc/passwd").finish()],
        "hard link is refused",
    );
    refused(
        &[tar().file("a/.wh...", b"").finish()],
        "whiteout names nothing",
    );
    refused(
        &[
            tar().file("d/x", b"").finish(),
            tar().file("d/.wh..", b"").finish(),
        ],
        "whiteout names nothing",
    );
}

#[test]
fn symlink_escapes_are_refused_by_name() {
    let outside = tempfile::tempdir().unwrap();
    let outside_path = outside.path().to_str().unwrap();
    for target in [
        outside_path,
        "/",
        "/etc",
        "..",
        "../..",
        "../outside",
        "./../x",
    ] {
        let evil = || tar().symlink("evil", target);
        refused(
            &[evil().file("evil/file", b"x").finish()],
            "\"/evil/file\" cannot be unpacked: its path leads out of the image through the symbolic link \"/evil\"",
        );
        refused(&[evil().directory("evil/dir").finish()], "/evil/dir");
        refused(
            &[evil().hard_link("stolen", "evil/passwd").finish()],
            "\"/stolen\"",
        );
        refused(&[evil().symlink("evil/link", "x").finish()], "/evil/link");
    }
    for target in ["..", "../../etc"] {
        let layers = [
            tar().symlink("evil", target).finish(),
            tar().file("evil/file", b"x").finish(),
        ];
        refused(&layers, "leads out of the image");
        let whiteout = [
            layers[0].clone(),
            tar().file("evil/.wh.passwd", b"").finish(),
        ];
        refused(&whiteout, "leads out of the image");
    }
    let absolute = [
        tar().symlink("evil", outside_path).finish(),
        tar().file("evil/file", b"x").finish(),
    ];
    refused(&absolute, "leads nowhere in the image");
    // Nothing is found past a name that is not there, so nothing can be reached through it.
    refused(
        &[tar()
            .symlink("evil", "x/../../..")
            .file("evil/file", b"x")
            .finish()],
        "leads nowhere in the image",
    );
    let chained = tar()
        .symlink("a", "b")
        .symlink("b", "..")
        .file("a/file", b"x")
        .finish();
    refused(&[chained], "leads out of the image");
    let deep = tar()
        .directory("d")
        .symlink("d/up", "../..")
        .file("d/up/file", b"x")
        .finish();
    refused(&[deep], "leads out of the image");
    refused(
        &[tar()
            .symlink("a", "b")
            .symlink("b", "a")
            .file("a/x", b"")
            .finish()],
        "finding its directory",
    );
    refused(
        &[tar().symlink("a", "b").file("a/x", b"").finish()],
        "leads nowhere",
    );
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn links_inside_the_image_work() {
    let lower = tar()
        .directory("run")
        .directory("usr/lib")
        .symlink("var/run", "/run")
        .symlink("lib", "usr/lib")
        .finish();
    let upper = tar()
        .file("var/run/app/data", b"1")
        .file("lib/new/x", b"2")
        .finish();
    let outer = unpacked(&[lower, upper]);
    assert_eq!(
        read(&outer, "run/app/data") + &read(&outer, "usr/lib/new/x"),
        "12"
    );
    assert!(
        fs::symlink_metadata(outer.path().join("rootfs/var/run"))
            .unwrap()
            .is_symlink()
    );
    // The last part of a path is replaced, never followed.
    let replaced = unpacked(&[tar()
        .symlink("file", "/etc/passwd")
        .file("file", b"own")
        .finish()]);
    assert_eq!(read(&replaced, "file"), "own");
}

#[test]
fn other_hostile_entries_are_refused() {
    let special = |kind, name: &'static [u8]| {
        tar()
            .entry(TestEntry {
                name,
                kind,
                ..TestEntry::default()
            })
            .finish()
    };
    refused(&[special(b'3', b"sda")], "it is a device");
    refused(&[special(b'4', b"dev/sda")], "it is a device");
    refused(&[special(b'4', b"dev/null")], "it is a device");
    refused(&[special(b'S', b"x")], "sparse");
    refused(&[special(b'?', b"x")], "type '?'");
    refused(
        &[tar().file("f", b"").file("f/x", b"").finish()],
        "not a directory",
    );
    refused(
        &[tar().hard_link("x", "missing").finish()],
        "hard link to \"/missing\"",
    );
    refused(
        &[tar().hard_link("x", "no/such").finish()],
        "which the image does not have",
    );
    refused(&[tar().file(".", b"").finish()], "root");
    refused(
        &[tar().symlink("x", "").finish()],
        "target of the symbolic link",
    );
    refused(
        &[tar().pax(&[("size", b"5")]).file("x", b"").finish()],
        "contradicts",
    );
    refused(
        &[tar()
            .pax(&[("GNU.sparse.major", b"1")])
            .file("x", b"")
            .finish()],
        "contradicts",
    );
    refused(
        &[tar().pax(&[("uid", b"4294967295")]).file("x", b"").finish()],
        "malformed",
    );
    refused(
        &[tar()
            .pax(&[("comment", &[b'x'; 300 * 1024])])
            .file("x", b"")
            .finish()],
        "pax header is larger",
    );
    refused(
        &[tar()
            .file(&"d/".repeat(40), b"")
            .pax(&[("path", "d/".repeat(300).as_bytes())])
            .file("x", b"")
            .finish()],
        "levels",
    );
}

fn unpack_blob(layer: &Layer, blob: &[u8], limits: Limits) -> Result<(), UnpackError> {
    let root = tempfile::tempdir().unwrap();
    Unpacker::new(root.path(), limits, ownership())
        .unwrap()
        .layer(layer, blob)
}

#[test]
fn all_three_kinds_of_layers_are_read() {
    let plain = tar().file("a", &vec![7; 300_000]).file("b", b"2").finish();
    let unpack = |blob: &[u8], compression| {
        unpack_blob(
            &describe(blob, &plain, compression),
            blob,
            Limits::default(),
        )
    };
    unpack(&plain, Compression::None).unwrap();
    unpack(&gzip(&plain), Compression::Gzip).unwrap();
    unpack(&zstd(&plain), Compression::Zstd).unwrap();
    let (first, second) = plain.split_at(1000);
    unpack(&[gzip(first), gzip(second)].concat(), Compression::Gzip).unwrap();
    let skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc";
    unpack(
        &[&zstd(first)[..], skippable, &zstd(second), skippable].concat(),
        Compression::Zstd,
    )
    .unwrap();
    assert!(matches!(
        unpack(&plain, Compression::Gzip),
        Err(UnpackError::Archive(_))
    ));
    assert!(matches!(
        unpack(&gzip(&plain), Compression::Zstd),
        Err(UnpackError::Archive(_))
    ));
    assert!(matches!(
        unpack(&gzip(&plain), Compression::None),
        Err(UnpackError::Archive(_))
    ));
}

#[test]
fn wrong_bytes_are_told_apart() {
    let plain = tar()
        .file("a", b"hello")
        .file("b", &(0..=255).cycle().take(100_000).collect::<Vec<u8>>())
        .finish();
    let blob = gzip(&plain);
    let layer = describe(&blob, &plain, Compression::Gzip);
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
    // What follows the archive's end belongs to it.
    let trailing = [&plain[..], b"trailing"].concat();
    let hidden = describe(&gzip(&trailing), &plain, Compression::Gzip);
    assert!(matches!(
        unpack_blob(&hidden, &gzip(&trailing), limits),
        Err(UnpackError::DiffId { .. })
    ));
    // The right blob, packed badly: a half archive, a half gzip stream.
    let half = gzip(&plain[..700]);
    let error = unpack_blob(
        &describe(&half, &plain[..700], Compression::Gzip),
        &half,
        limits,
    )
    .unwrap_err();
    assert!(matches!(error, UnpackError::Archive(_)), "{error}");
    let half = &blob[..blob.len() / 2];
    let error = unpack_blob(&describe(half, &plain, Compression::Gzip), half, limits).unwrap_err();
    assert!(matches!(error, UnpackError::Archive(_)), "{error}");
    // A header that promises more than there is.
    let liar = tar()
        .entry(TestEntry {
            name: b"x",
            size: Some(1 << 32),
            ..TestEntry::default()
        })
        .finish();
    let error = unpack_blob(&describe(&liar, &liar, Compression::None), &liar, limits).unwrap_err();
    assert!(matches!(error, UnpackError::Archive(_)), "{error}");
}

#[test]
fn bombs_are_stopped() {
    let megabytes = |count: usize| tar().file("zeros", &vec![0; count << 20]).finish();
    let limits = Limits {
        unpacked_bytes: 8 << 20,
        entries: 10,
        ratio: 200,
    };

    let big = gzip(&megabytes(9));
    let error = unpack_blob(&describe(&big, b"", Compression::Gzip), &big, limits).unwrap_err();
    assert!(
        matches!(error, UnpackError::TooLarge { limit } if limit == 8 << 20),
        "{error}"
    );
    // The limit is the image's, not the layer's.
    let half = megabytes(5);
    let (_, error) = unpack_with(&[half.clone(), half], limits);
    assert!(matches!(error, Err(UnpackError::TooLarge { .. })));

    let wide = Limits {
        unpacked_bytes: 1 << 40,
        ..limits
    };
    for (blob, compression) in [
        (gzip(&megabytes(40)), Compression::Gzip),
        (zstd(&megabytes(40)), Compression::Zstd),
    ] {
        let error = unpack_blob(&describe(&blob, b"", compression), &blob, wide).unwrap_err();
        assert!(
            matches!(error, UnpackError::TooDense { limit: 200 }),
            "{error}"
        );
    }
    // Zeros behind the end of the archive are a bomb as well.
    let tail = gzip(&[tar().finish(), vec![0; 40 << 20]].concat());
    let error = unpack_blob(&describe(&tail, b"", Compression::Gzip), &tail, wide).unwrap_err();
    assert!(matches!(error, UnpackError::TooDense { .. }), "{error}");

    let many = (0..11)
        .fold(tar(), |tar, number| tar.file(&number.to_string(), b""))
        .finish();
    let error = unpack_blob(&describe(&many, &many, Compression::None), &many, limits).unwrap_err();
    assert!(
        matches!(error, UnpackError::TooMany { limit: 10 }),
        "{error}"
    );
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
        compression: Compression::None,
    };
    let mut unpacker = Unpacker::new(root.path(), Limits::default(), ownership()).unwrap();
    let error = unpacker.layer(&layer, Broken(600)).unwrap_err();
    assert!(matches!(error, UnpackError::Blob(_)), "{error}");
    assert_eq!(chain(&error), "reading the blob failed: reset by peer");
}
