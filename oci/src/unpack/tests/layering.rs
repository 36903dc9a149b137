//! Layers on top of each other: what a later one replaces and hides.

use super::*;

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
