//! Files, links, directories and their attributes come out of an archive as they went in.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::super::test_tar::TestEntry;
use super::*;

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
            mode: 0o622,
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
    let pipe = fs::symlink_metadata(root.join("pipe")).unwrap();
    assert_eq!(pipe.mode() & 0o7777, 0o622);
    assert!(!exists(&outer, "dev/null"));
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

/// A directory keeps the time of its entry, whatever is added to it or removed from it afterwards.
#[test]
fn directories_keep_their_time() {
    let directory = |name: &'static [u8], mtime| TestEntry {
        name,
        kind: b'5',
        mode: 0o755,
        mtime,
        ..TestEntry::default()
    };
    let lower = tar()
        .entry(directory(b"./", 1))
        .entry(directory(b"a", 2))
        .entry(directory(b"a/b", 3))
        .file("a/b/c/d/file", b"x")
        .file("a/file", b"x")
        .entry(directory(b"z", 4))
        .file("z/gone", b"x")
        .file("z/stays", b"x")
        .finish();
    let upper = tar()
        .file("a/b/new", b"x")
        .file("z/.wh.gone", b"")
        .file("y/implied", b"x")
        .file("a/file", b"again")
        .symlink("a/b/link", "new")
        .finish();
    let outer = unpacked(&[lower, upper]);
    let time = |path: &str| {
        fs::metadata(outer.path().join("rootfs").join(path))
            .unwrap()
            .mtime()
    };
    assert_eq!(["", "a", "a/b", "z"].map(time), [1, 2, 3, 4]);
    assert!(!exists(&outer, "z/gone") && exists(&outer, "z/stays"));
}

#[test]
fn devices_are_left_out_and_counted() {
    let device = |name: &'static [u8], kind| TestEntry {
        name,
        kind,
        // As other tools write it, though `tar` never does.
        size: Some(4096),
        ..TestEntry::default()
    };
    let lower = tar()
        .file("replaced", b"x")
        .entry(device(b"dev/null", b'3'))
        .file("after", b"x")
        .finish();
    let upper = tar()
        .entry(device(b"dev/sda", b'4'))
        .entry(device(b"replaced", b'3'))
        .entry(device(b"x/y", b'4'))
        .finish();
    let outer = tempfile::tempdir().unwrap();
    let mut unpacker = Unpacker::new(outer.path(), Limits::default(), ownership()).unwrap();
    unpacker
        .layer(&describe(&lower, &lower), &lower[..])
        .unwrap();
    assert!(unpacker.left_out().is_none());
    unpacker
        .layer(&describe(&upper, &upper), &upper[..])
        .unwrap();
    let said = unpacker.left_out().unwrap().to_string();
    assert!(
        said.starts_with("3 device nodes are left out, the first is /dev/sda;"),
        "{said}"
    );
    for path in ["dev/null", "dev/sda", "replaced", "x/y"] {
        assert!(!outer.path().join(path).exists(), "{path}");
    }
    assert!(outer.path().join("after").exists());
}

#[test]
fn the_size_of_the_pax_header_counts() {
    let layer = tar()
        .pax(&[("size", b"700")])
        .entry(TestEntry {
            name: b"file",
            content: &[b'x'; 700],
            size: Some(0),
            ..TestEntry::default()
        })
        .pax(&[("size", b"3")])
        .entry(TestEntry {
            name: b"shorter",
            content: b"yes",
            size: Some(1 << 30),
            ..TestEntry::default()
        })
        // Links and directories have no content, whatever size their header names.
        .entry(TestEntry {
            name: b"directory",
            kind: b'5',
            mode: 0o755,
            size: Some(4096),
            ..TestEntry::default()
        })
        .entry(TestEntry {
            name: b"link",
            kind: b'2',
            link: b"file",
            size: Some(4),
            ..TestEntry::default()
        })
        .file("last", b"here")
        .finish();
    let outer = unpacked(&[layer]);
    assert_eq!(read(&outer, "file"), "x".repeat(700));
    assert_eq!(read(&outer, "shorter") + &read(&outer, "last"), "yeshere");
}
