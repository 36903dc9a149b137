//! Bundles of which something was altered, cut off or added: each is refused, with the place.

use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};

use super::*;

/// The beginnings of the members of an archive by their headers, and of its end.
fn members(archive: &[u8]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut at = 0;
    while archive[at] != 0 {
        let name = archive[at..at + 100]
            .split(|&byte| byte == 0)
            .next()
            .unwrap();
        let size = std::str::from_utf8(&archive[at + 124..at + 135]).unwrap();
        let size = usize::from_str_radix(size, 8).unwrap();
        found.push((at, String::from_utf8(name.to_vec()).unwrap()));
        at += 512 + size.next_multiple_of(512);
    }
    found.push((at, "the end".to_owned()));
    found
}

#[test]
fn every_altered_byte_is_refused() {
    let good = Contents::usual().archive();
    let scratch = Scratch::new();
    assert!(scratch.verify(&good).is_ok());
    let file = File::options().write(true).open(&scratch.path).unwrap();
    for (at, &byte) in good.iter().enumerate() {
        let bad = byte ^ 1 << (at % 8);
        file.write_all_at(&[bad], at as u64).unwrap();
        let refused = scratch.verify_again().unwrap_err();
        // Documents and blobs are judged when they end: the place is where they begin.
        let place = refused.place.at.unwrap();
        assert!(place <= at as u64, "byte {at}: {}", said(&refused));
        file.write_all_at(&[byte], at as u64).unwrap();
    }
}

#[test]
fn every_end_that_comes_early_is_refused_as_incomplete() {
    let good = Contents::usual().archive();
    let scratch = Scratch::new();
    let mut cuts: Vec<usize> = vec![good.len() - 1, good.len() - 512];
    for (at, _) in members(&good) {
        cuts.extend([at, at + 1, at + 511, at + 512, at + 513]);
    }
    for cut in cuts {
        let refused = scratch.verify(&good[..cut]).unwrap_err();
        assert!(refused.fault.is_incomplete(), "{cut}: {}", said(&refused));
    }
}

#[test]
fn what_is_added_left_out_or_moved_is_refused() {
    let good = Contents::usual().archive();
    let scratch = Scratch::new();
    let members = members(&good);
    for pair in members.windows(2) {
        let (begin, end) = (pair[0].0, pair[1].0);
        let member = &good[begin..end];
        let without = [&good[..begin], &good[end..]].concat();
        let twice = [&good[..end], &good[begin..]].concat();
        for bad in [without, twice] {
            let refused = scratch.verify(&bad).unwrap_err();
            assert!(
                refused.place.at.unwrap() as usize <= end,
                "{}",
                said(&refused)
            );
        }
        let end_of_all = members.last().unwrap().0;
        let last = [
            &good[..begin],
            &good[end..end_of_all],
            member,
            &good[end_of_all..],
        ]
        .concat();
        assert!(end == end_of_all || scratch.verify(&last).is_err());
        let ended = [&good[..begin], &[0; 1024][..]].concat();
        assert!(scratch.verify(&ended).unwrap_err().fault.is_incomplete() || begin == 0);
    }
    let longer = [&good[..], b"\0"].concat();
    let refused = scratch.verify(&longer).unwrap_err();
    assert!(said(&refused).ends_with("there are more bytes after its end"));
}

#[test]
fn headers_are_compared_and_not_interpreted() {
    let good = Contents::usual().archive();
    let scratch = Scratch::new();
    let last = members(&good).iter().rev().nth(1).unwrap().0;
    let with = |change: &dyn Fn(&mut tar::Header)| {
        let mut bad = good.clone();
        let mut header = tar::Header::from_byte_slice(&bad[last..last + 512]).clone();
        change(&mut header);
        header.set_cksum();
        bad[last..last + 512].copy_from_slice(header.as_bytes());
        said(&scratch.verify(&bad).unwrap_err())
    };
    let named = |name: &[u8]| {
        let name = name.to_vec();
        with(&move |header| header.as_mut_bytes()[..100].copy_from_slice(&padded(&name)))
    };
    assert!(named(b"../../etc/passwd").contains("the header names \"../../etc/passwd\""));
    assert!(named(b"/etc/passwd").contains("is not that of blobs/sha256/"));
    assert!(named(&[b'\xff'; 100]).contains("altered"));
    assert!(with(&|header| header.set_mode(0o755)).contains("altered"));
    assert!(with(&|header| header.set_entry_type(tar::EntryType::Symlink)).contains("altered"));
    assert!(with(&|header| header.set_size(u64::MAX)).contains("altered"));
    assert!(with(&|header| header.set_mtime(1)).contains("altered"));
}

fn padded(name: &[u8]) -> [u8; 100] {
    let mut padded = [0; 100];
    padded[..name.len()].copy_from_slice(name);
    padded
}

#[test]
fn other_files_are_no_bundle() {
    let scratch = Scratch::new();
    for other in [vec![0; 4096], vec![b'x'; 4096]] {
        let refused = scratch.verify(&other).unwrap_err();
        assert!(
            said(&refused).contains("it is no bundle"),
            "{}",
            said(&refused)
        );
    }
    assert!(scratch.verify(b"").unwrap_err().fault.is_incomplete());
    let empty = tempfile::tempdir().unwrap();
    let refused = verify(Files::open(empty.path()).unwrap(), &mut |_| {}).unwrap_err();
    assert!(refused.fault.is_incomplete(), "{}", said(&refused));
}

#[test]
fn every_altered_byte_of_a_directory_is_refused() {
    let contents = Contents::usual();
    let directory = tempfile::tempdir().unwrap();
    contents.directory(directory.path());
    let blobs = contents.blobs.keys();
    let mut files: Vec<PathBuf> = blobs
        .map(|digest| directory.path().join("blobs/sha256").join(digest.hex()))
        .collect();
    files.extend(
        ["oci-layout", "index.json", "instar-bundle.json"].map(|it| directory.path().join(it)),
    );
    let judge = || verify(Files::open(directory.path()).unwrap(), &mut |_| {});
    for file in files {
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&file, &bad).unwrap();
            assert!(judge().is_err(), "{file:?}, byte {at}");
        }
        for bad in [&good[1..], &[&good[..], b"x"].concat(), b""] {
            fs::write(&file, bad).unwrap();
            assert!(judge().is_err(), "{file:?}");
        }
        fs::remove_file(&file).unwrap();
        assert!(judge().unwrap_err().fault.is_incomplete(), "{file:?}");
        symlink("/etc/passwd", &file).unwrap();
        assert!(said(&judge().unwrap_err()).contains("no regular file"));
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert!(judge().is_err(), "{file:?}");
        fs::remove_dir(&file).unwrap();
        fs::write(&file, &good).unwrap();
    }
    assert!(judge().is_ok());
    fs::write(directory.path().join("blobs/sha256/other"), "").unwrap();
    assert!(said(&judge().unwrap_err()).contains("does not name the file \"other\""));
}

/// Whoever copies the directory to a stick with a Mac leaves them there.
#[test]
fn files_that_desktops_make_are_no_part_of_a_bundle() {
    let contents = Contents::usual();
    let directory = tempfile::tempdir().unwrap();
    contents.directory(directory.path());
    let judge = || verify(Files::open(directory.path()).unwrap(), &mut |_| {});
    let blob = contents.blobs.keys().next().unwrap().hex();
    for folder in ["blobs", "blobs/sha256"].map(|it| directory.path().join(it)) {
        for name in [".DS_Store", "._sha256", "Thumbs.db", "desktop.ini"] {
            fs::write(folder.join(name), "of a desktop").unwrap();
        }
        fs::write(folder.join(format!("._{blob}")), "of a Mac").unwrap();
    }
    assert!(judge().is_ok());
    for other in [".hidden", "Thumbs.db.old", "_._"] {
        let other = directory.path().join("blobs/sha256").join(other);
        fs::write(&other, "").unwrap();
        assert!(said(&judge().unwrap_err()).contains("does not name the file"));
        fs::remove_file(&other).unwrap();
    }
    // A blob that has got such a name is missing.
    let blobs = directory.path().join("blobs/sha256");
    fs::rename(blobs.join(&blob), blobs.join(format!("._{blob}"))).unwrap();
    assert!(judge().unwrap_err().fault.is_incomplete());
}

#[test]
fn a_directory_is_not_left_by_links() {
    let contents = Contents::usual();
    let (directory, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    contents.directory(directory.path());
    let blobs = directory.path().join("blobs");
    fs::rename(&blobs, other.path().join("blobs")).unwrap();
    symlink(other.path().join("blobs"), &blobs).unwrap();
    let refused = verify(Files::open(directory.path()).unwrap(), &mut |_| {}).unwrap_err();
    assert!(
        said(&refused).contains("no regular file"),
        "{}",
        said(&refused)
    );
}
