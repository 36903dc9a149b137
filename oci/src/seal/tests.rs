#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::PathBuf;

use super::*;

fn tree() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("rootfs");
    fs::create_dir_all(root.join("a/b/c")).unwrap();
    for number in 0..100 {
        fs::write(
            root.join(format!("a/b/{number}")),
            vec![number as u8; number * 100],
        )
        .unwrap();
    }
    fs::write(root.join("a-file"), "x").unwrap();
    fs::hard_link(root.join("a-file"), root.join("a/hard")).unwrap();
    symlink("../nowhere", root.join("a/link")).unwrap();
    (directory, root)
}

fn sealed(root: &Path) -> (Seal, Vec<u8>) {
    let mut list = Vec::new();
    let seal = seal(root, &mut list, &Nothing, &mut |_| Ok(())).unwrap();
    (seal, list)
}

#[test]
fn a_seal_is_the_same_for_the_same_tree_alone() {
    let (directory, root) = tree();
    let (seal, list) = sealed(&root);
    assert_eq!(seal.entries, 1 + 3 + 100 + 2 + 1);
    assert_eq!(
        seal.bytes,
        (0..100).map(|number| number * 100).sum::<u64>() + 2
    );
    assert_eq!(list.len() as u64, seal.entries * 8);
    assert_eq!(sealed(&root).0, seal);
    let moved = directory.path().join("moved");
    fs::rename(&root, &moved).unwrap();
    assert_eq!(seal_again(&moved, &mut &list[..]).unwrap(), (seal, None));
}

#[test]
fn every_change_is_found_and_named() {
    type Change = (&'static str, &'static str, fn(&Path));
    let changes: [Change; 7] = [
        ("content", "/a/b/42", |path| {
            let mut content = fs::read(path).unwrap();
            content[17] ^= 1;
            let time = fs::metadata(path).unwrap().modified().unwrap();
            fs::write(path, content).unwrap();
            File::options()
                .write(true)
                .open(path)
                .unwrap()
                .set_modified(time)
                .unwrap();
        }),
        ("time", "/a/b/7", |path| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        }),
        ("mode", "/a/hard", |path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o4755)).unwrap();
        }),
        ("target", "/a", |path| {
            fs::remove_file(path.join("link")).unwrap();
            symlink("../somewhere", path.join("link")).unwrap();
        }),
        ("type", "/a/b", |path| {
            fs::remove_file(path.join("1")).unwrap();
            fs::create_dir(path.join("1")).unwrap();
        }),
        ("new", "/a/b/c", |path| {
            fs::write(path.join("n"), "").unwrap()
        }),
        ("gone", "/a/b", |path| {
            fs::remove_file(path.join("99")).unwrap()
        }),
    ];
    for (what, path, change) in changes {
        let (_directory, root) = tree();
        let (seal, list) = sealed(&root);
        change(&root.join(&path[1..]));
        let (again, first) = seal_again(&root, &mut &list[..]).unwrap();
        assert_ne!(again, seal, "{what}");
        assert_eq!(first.as_deref(), Some(path), "{what}");
    }
}

#[test]
fn paths_longer_than_the_kernel_takes_are_sealed() {
    let (_directory, root) = tree();
    let name = "n".repeat(250);
    let deep = (0..40).fold(
        rustix::fs::open(
            &root,
            rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        )
        .unwrap(),
        |parent, _| {
            let mode = rustix::fs::Mode::RWXU;
            rustix::fs::mkdirat(&parent, &*name, mode).unwrap();
            let flags = rustix::fs::OFlags::DIRECTORY;
            rustix::fs::openat(&parent, &*name, flags, rustix::fs::Mode::empty()).unwrap()
        },
    );
    let (before, list) = sealed(&root);
    rustix::fs::mkdirat(&deep, "last", rustix::fs::Mode::RWXU).unwrap();
    let (after, first) = seal_again(&root, &mut &list[..]).unwrap();
    assert_eq!(after.entries, before.entries + 1);
    assert!(first.unwrap().len() > 10_000);
}
