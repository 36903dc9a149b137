#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::test_tar::{TarBuilder, TestEntry, describe, gzip, zstd};
use super::*;
use instar_base::error_chain::chain;

/// As root the tests keep owners, as a node does; other users test the rest.
pub(super) fn ownership() -> Ownership {
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
        .try_for_each(|tar| unpacker.layer(&describe(tar, tar), &tar[..]));
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

pub(super) fn tar() -> TarBuilder {
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
    // A file at the place of an implied directory is refused, so it gets an entry as in real layers.
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
    // The whiteout comes last; files of this layer stay.
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

/// Links work as in a chroot: an absolute link starts at the image's root, and `..` ends there.
#[test]
fn links_are_resolved_below_the_root() {
    let outside = tempfile::tempdir().unwrap();
    let outside_path = outside.path().to_str().unwrap();
    let below = outside_path.trim_start_matches('/').to_owned();
    for (target, lands) in [
        ("/etc", "etc"),
        ("/", ""),
        ("..", ""),
        ("../../../etc", "etc"),
        ("/../../etc/.", "etc"),
        ("./../x", "x"),
        ("//etc//", "etc"),
        (outside_path, &below),
    ] {
        let link = || tar().symlink("link", target);
        let land = |name: &str| Path::new(lands).join(name).to_str().unwrap().to_owned();
        let result = unpacked(&[link().file("link/file", b"x").finish()]);
        assert_eq!(read(&result, &land("file")), "x", "{target}");
        assert!(exists(&result, "link"));
        let result = unpacked(&[link().directory("link/dir/").finish()]);
        assert!(exists(&result, &land("dir")), "{target}");
        let result = unpacked(&[link().symlink("link/other", "x").finish()]);
        assert!(exists(&result, &land("other")), "{target}");
        let result = unpacked(&[link()
            .file(&land("a"), b"x")
            .hard_link("b", "link/a")
            .finish()]);
        assert_eq!(read(&result, "b"), "x", "{target}");
        // Links over layers, and whiteouts behind them.
        let lower = link().file(&land("gone"), b"x").finish();
        let upper = tar()
            .file("link/.wh.gone", b"")
            .file("link/new", b"x")
            .finish();
        let result = unpacked(&[lower, upper]);
        assert!(!exists(&result, &land("gone")), "{target}");
        assert_eq!(read(&result, &land("new")), "x", "{target}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);

    // A link to a link, a link to a later entry, a link past a missing path.
    let result = unpacked(&[tar()
        .symlink("a", "b")
        .symlink("b", "/c/d")
        .file("a/one", b"1")
        .symlink("up", "missing/../../../e")
        .file("up/two", b"2")
        .file("c/d/three", b"3")
        .finish()]);
    assert_eq!(
        read(&result, "c/d/one") + &read(&result, "e/two") + &read(&result, "c/d/three"),
        "123"
    );
}

#[test]
fn links_that_lead_nowhere_or_too_deep_are_refused() {
    let around = || tar().symlink("a", "b").symlink("b", "a");
    refused(
        &[around().file("a/x", b"").finish()],
        "more than 40 symbolic links",
    );
    refused(
        &[tar().symlink("a", "a/b").file("a/x", b"").finish()],
        "more than 40 symbolic links",
    );
    refused(
        &[tar()
            .file("f", b"")
            .symlink("a", "f")
            .file("a/x", b"")
            .finish()],
        "not a directory",
    );
    refused(
        &[tar().hard_link("x", "a/b").symlink("a", "c").finish()],
        "which the image does not have",
    );
    // Each link doubles the depth.
    let deep = "d/".repeat(40);
    let mut deeper = tar().directory(&deep);
    for level in 0..9 {
        let below = match level {
            0 => deep.clone(),
            _ => format!("l{}/{deep}", level - 1),
        };
        deeper = deeper
            .symlink(&format!("l{level}"), &below)
            .directory(&format!("l{level}/{deep}"));
    }
    refused(&[deeper.finish()], "levels deep");
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
        &[tar().pax(&[("size", b"many")]).file("x", b"").finish()],
        "unreadable size",
    );
    refused(
        &[tar().pax(&[("size", b"50000")]).file("x", b"").finish()],
        "not a readable archive",
    );
    refused(
        &[tar()
            .pax(&[("GNU.sparse.major", b"1")])
            .file("x", b"")
            .finish()],
        "its version is not known",
    );
    refused(
        &[tar()
            .pax(&[("GNU.sparse.map", b"0,5"), ("GNU.sparse.size", b"5")])
            .symlink("x", "y")
            .finish()],
        "only a regular file can have holes",
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

fn unpack_blob(layer: &Layer, blob: &[u8], limits: Limits) -> Result<(), UnpackError> {
    let root = tempfile::tempdir().unwrap();
    Unpacker::new(root.path(), limits, ownership())
        .unwrap()
        .layer(layer, blob)
}

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

fn piped(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut process = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} cannot be run: {error}"));
    let mut stdin = process.stdin.take().unwrap();
    let input = input.to_vec();
    let writer = thread::spawn(move || stdin.write_all(&input));
    let output = process.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    output.stdout
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
