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

/// A layer of few KiB may give one file as many names as an image may have entries.
#[test]
fn a_file_of_many_names_is_read_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("read"), "one").unwrap();
    fs::write(path("not read"), "another").unwrap();
    let open = |name| File::open(path(name)).unwrap();
    let answer = |(), content| Ok(content);
    let hashes = with_threads(&answer, |contents: &mut Contents<(), (), ContentHash>| {
        let mut hash_of = |name, inode| {
            contents.add((), (), open(name), inode);
            contents.take().unwrap().unwrap().1
        };
        let inode = Some((1, 2));
        [
            hash_of("read", inode),
            hash_of("not read", inode),
            hash_of("not read", None),
            hash_of("not read", Some((1, 3))),
        ]
    });
    let (one, another) = (blake3::hash(b"one"), blake3::hash(b"another"));
    assert_eq!(hashes, [one, one, another, another]);
}

#[test]
fn a_seal_takes_no_longer_for_more_names_of_a_file() {
    let time_with = |names: u32| {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("file")).unwrap();
        file.set_len(64 << 20).unwrap();
        for name in 1..names {
            let link = directory.path().join(name.to_string());
            fs::hard_link(directory.path().join("file"), link).unwrap();
        }
        let began = std::time::Instant::now();
        let seal = sealed(directory.path()).0;
        assert_eq!(seal.bytes, u64::from(names) << 26);
        began.elapsed()
    };
    let (one, many) = (time_with(1), time_with(1000));
    println!("{one:?} for one name, {many:?} for many");
    // Each thread may begin before another has the hash.
    assert!(many < one * 20, "{one:?} for one name, {many:?} for many");
}
