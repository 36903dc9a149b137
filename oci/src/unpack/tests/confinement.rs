//! Nothing is written outside of the image, wherever its paths and links lead.

use super::super::test_tar::TestEntry;
use super::*;

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
