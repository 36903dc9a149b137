#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

/// Makes an image of files of these contents, all of one time, and shares it; returns its root.
fn image(directory: &Path, objects: &Objects, name: &str, files: &[(&str, &[u8])]) -> PathBuf {
    let root = directory.join(name);
    fs::create_dir_all(root.join("d")).unwrap();
    for (path, content) in files {
        fs::write(root.join(path), content).unwrap();
        set_time(&root.join(path));
    }
    set_time(&root.join("d"));
    set_time(&root);
    let seal =
        |root: &Path| seal::seal(root, &mut io::sink(), &seal::Nothing, &mut |_| Ok(())).unwrap();
    let before = seal(&root);
    let mut sharing = Sharing::default();
    let sealed = seal::seal(&root, &mut io::sink(), objects, &mut |file| {
        sharing.add(file)
    });
    assert_eq!(sealed.unwrap(), before);
    assert_eq!(seal(&root), before, "sharing changes nothing");
    objects.publish(&root, &sharing.finish()).unwrap();
    root
}

fn set_time(path: &Path) {
    let file = File::open(path).unwrap();
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
}

fn inode(path: &Path) -> (u64, u64) {
    let metadata = fs::metadata(path).unwrap();
    (metadata.ino(), metadata.nlink())
}

#[test]
fn equal_files_of_images_are_one() {
    let directory = tempfile::tempdir().unwrap();
    let objects = Objects::new(directory.path());
    let (same, other, small) = ([1; 5000], [2; 5000], [3; 4096]);
    let first = image(
        directory.path(),
        &objects,
        "first",
        &[
            ("d/a", &same),
            ("copy", &same),
            ("own", &other),
            ("small", &small),
        ],
    );
    let second = image(
        directory.path(),
        &objects,
        "second",
        &[("d/b", &same), ("small", &small)],
    );
    let (shared, links) = inode(&second.join("d/b"));
    assert_eq!(links, 3, "two images, and the object");
    assert!([inode(&first.join("d/a")).0, inode(&first.join("copy")).0].contains(&shared));
    assert_ne!(inode(&first.join("d/a")).0, inode(&first.join("copy")).0);
    assert_eq!(inode(&second.join("small")).1, 1);

    assert_eq!(objects.repeated_bytes().unwrap(), 5000);
    image(directory.path(), &objects, "third", &[("d/c", &same)]);
    assert_eq!(objects.repeated_bytes().unwrap(), 10_000);
    fs::remove_dir_all(directory.path().join("third")).unwrap();
    assert_eq!(objects.repeated_bytes().unwrap(), 5000);

    fs::remove_dir_all(&first).unwrap();
    assert_eq!(objects.repeated_bytes().unwrap(), 0);
    assert_eq!(
        objects.collect().unwrap(),
        5000,
        "the file that one image had"
    );
    assert_eq!(objects.collect().unwrap(), 0);
    fs::remove_dir_all(&second).unwrap();
    assert_eq!(objects.collect().unwrap(), 5000);
}

#[test]
fn a_damaged_object_is_not_linked_again() {
    let directory = tempfile::tempdir().unwrap();
    let objects = Objects::new(directory.path());
    let first = image(directory.path(), &objects, "first", &[("a", &[1; 5000])]);
    let mut damaged = vec![1; 5000];
    damaged[4000] = 0;
    fs::write(first.join("a"), damaged).unwrap();
    set_time(&first.join("a"));
    let second = image(directory.path(), &objects, "second", &[("a", &[1; 5000])]);
    assert_eq!(fs::read(second.join("a")).unwrap(), [1; 5000]);
    let third = image(directory.path(), &objects, "third", &[("a", &[1; 5000])]);
    assert_eq!(inode(&third.join("a")), inode(&second.join("a")));
}

#[test]
fn what_images_link_themselves_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let objects = Objects::new(directory.path());
    image(directory.path(), &objects, "first", &[("a", &[1; 5000])]);
    let root = directory.path().join("second");
    fs::create_dir_all(root.join("d")).unwrap();
    fs::write(root.join("a"), [1; 5000]).unwrap();
    fs::hard_link(root.join("a"), root.join("b")).unwrap();
    let second = image(directory.path(), &objects, "second", &[("a", &[1; 5000])]);
    assert_eq!(inode(&second.join("a")), inode(&second.join("b")));
    assert_eq!(inode(&second.join("a")).1, 2);
}
