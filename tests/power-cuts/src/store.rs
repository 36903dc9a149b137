//! The image store on EPHEMERAL in a state: every image that is named is whole, every blob has the content of its name, and what the records
//! name is there.
//!
//! Whole means equal to the image of that name in a state without a fault, in every path, type, content, mode, owner and time. The reading is
//! not the node's: the directory is read out of the repaired partition by debugfs, which needs root to keep owners.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use blake3::Hash;
use instar_values::Digest;

use crate::records;

/// The directory of the store on EPHEMERAL.
pub(crate) const STORE: &str = "/lib/instar";
/// The record of the bundles that brought images, in that directory.
const BUNDLES: &str = "bundles.json";
/// The beginning of an image's record, up to the hash over the rest of it.
const CHECK: &[u8] = b"{\"check\":\"";
const HEX: usize = 64;

/// The content of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Store {
    /// The hash over all files of each image, by its name.
    images: BTreeMap<String, Hash>,
    /// The hash over each shared file, by its name.
    objects: BTreeMap<String, Hash>,
    /// The hashes over the files of all images: a shared file is one of them. A node gives it its name only after the image is on the disk, so
    /// neither end of a stage needs to have that name.
    files: HashSet<Hash>,
    /// The names of the whole blobs.
    blobs: BTreeSet<String>,
    /// A sentence for each image or blob that a record names and that is not there. Wrong unless the store has the same gap at an end: the
    /// image was removed, or its blobs were not kept.
    gaps: BTreeSet<String>,
    /// A sentence for each part that is wrong by itself.
    wrong: Vec<String>,
}

impl Store {
    /// Reads a store that was copied to this directory; a missing one is empty.
    pub(crate) fn read(directory: &Path) -> io::Result<Self> {
        let mut store = Store::default();
        for (name, path) in entries(&directory.join("images"))? {
            // Work that was cut off has no name of an image.
            if Digest::from_hex(&name).is_err() {
                continue;
            }
            if !is_record_whole(&path.join("image.json")) {
                store
                    .wrong
                    .push(format!("the record of the image {name} is damaged"));
            }
            let mut hasher = blake3::Hasher::new();
            for part in ["rootfs", "tree.json", "tree.hashes"] {
                store.add(&mut hasher, &path.join(part))?;
            }
            store.images.insert(name, hasher.finalize());
        }
        for (name, path) in entries(&directory.join("blobs/sha256"))? {
            match Digest::of(&fs::read(&path)?).hex() == name {
                false => store
                    .wrong
                    .push(format!("the blob {name} has another content")),
                true => {
                    store.blobs.insert(name);
                }
            }
        }
        store.compare_records(directory)?;
        for (_, group) in entries(&directory.join("objects"))? {
            for (name, path) in entries(&group)? {
                store.objects.insert(name, hash_of_file(&path)?);
            }
        }
        Ok(store)
    }

    /// Looks for the images that the record of bundles names, and for the blobs that the images' own records name.
    fn compare_records(&mut self, directory: &Path) -> io::Result<()> {
        let brought = match fs::read(directory.join(BUNDLES)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Some(BTreeSet::new()),
            record => records::brought_images(&record?),
        };
        if brought.is_none() {
            let damaged = "the record of bundles is damaged";
            self.wrong.push(damaged.to_owned());
        }
        for image in brought.unwrap_or_default() {
            if !self.images.contains_key(&image.hex()) {
                let gap = format!("the image {image} is not here, which a bundle brought");
                self.gaps.insert(gap);
            }
        }
        for name in self.images.keys() {
            let path = directory.join("images").join(name).join("image.json");
            // A record that is missing or damaged is complained of already.
            let blobs = fs::read(path).ok();
            let blobs = blobs.and_then(|record| records::blobs_of_image(&record));
            for blob in blobs.unwrap_or_default() {
                if !self.blobs.contains(&blob.hex()) {
                    let gap = format!("the image {name} is without its blob {blob}");
                    self.gaps.insert(gap);
                }
            }
        }
        Ok(())
    }

    /// Adds a tree to the hash over an image, and its files to those of all images: names, types, contents and targets, modes, owners and
    /// times, in order.
    fn add(&mut self, hasher: &mut blake3::Hasher, path: &Path) -> io::Result<()> {
        let metadata = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                hasher.update(b"missing");
                return Ok(());
            }
            metadata => metadata?,
        };
        if metadata.is_dir() {
            add_numbers(hasher, &metadata);
            for (name, path) in entries(path)? {
                hasher.update(b"entry").update(name.as_bytes());
                self.add(hasher, &path)?;
            }
            hasher.update(b"end");
        } else if metadata.is_symlink() {
            // debugfs gives links no owner and no time.
            let target = fs::read_link(path)?;
            hasher
                .update(b"link")
                .update(target.as_os_str().as_encoded_bytes());
        } else if metadata.is_file() {
            let file = hash_of_file(path)?;
            hasher.update(b"file").update(file.as_bytes());
            self.files.insert(file);
        } else {
            add_numbers(hasher, &metadata);
            hasher.update(b"other");
        }
        Ok(())
    }

    /// Whether it has parts of every kind.
    pub(crate) fn has_everything(&self) -> bool {
        !self.images.is_empty() && !self.blobs.is_empty() && !self.objects.is_empty()
    }

    /// The first thing that is wrong, given the contents that the store may have.
    pub(crate) fn complaint(&self, known: &[Store]) -> Option<String> {
        let is_known = |name: &str, hash: &Hash, of: fn(&Store) -> &BTreeMap<String, Hash>| {
            known.iter().any(|store| of(store).get(name) == Some(hash))
        };
        let image = self
            .images
            .iter()
            .find(|(name, hash)| !is_known(name, hash, |store| &store.images));
        let is_file = |hash: &Hash| known.iter().any(|store| store.files.contains(hash));
        let object = self
            .objects
            .iter()
            .find(|(name, hash)| !is_known(name, hash, |store| &store.objects) && !is_file(hash));
        let mut gaps = self.gaps.iter();
        let gap = gaps.find(|gap| !known.iter().any(|store| store.gaps.contains(*gap)));
        let wrong = self.wrong.first().or(gap).cloned();
        wrong
            .or_else(|| image.map(|(name, _)| format!("the image {name} is not whole")))
            .or_else(|| {
                object.map(|(name, _)| format!("the shared file {name} is no file of an image"))
            })
    }
}

fn is_record_whole(path: &Path) -> bool {
    let Ok(record) = fs::read(path) else {
        return false;
    };
    let checked = record.strip_prefix(CHECK);
    let split = checked.and_then(|checked| checked.split_at_checked(HEX));
    split.is_some_and(|(check, rest)| check == blake3::hash(rest).to_hex().as_bytes())
}

/// Names and paths in a directory, in order; a missing one is empty.
fn entries(directory: &Path) -> io::Result<BTreeMap<String, std::path::PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries?,
    };
    entries
        .map(|entry| {
            let entry = entry?;
            Ok((
                entry.file_name().to_string_lossy().into_owned(),
                entry.path(),
            ))
        })
        .collect()
}

/// The hash over a file's content, mode, owner and time.
fn hash_of_file(path: &Path) -> io::Result<Hash> {
    let mut hasher = blake3::Hasher::new();
    add_numbers(&mut hasher, &fs::symlink_metadata(path)?);
    hasher.update(blake3::hash(&fs::read(path)?).as_bytes());
    Ok(hasher.finalize())
}

fn add_numbers(hasher: &mut blake3::Hasher, metadata: &fs::Metadata) {
    for number in [metadata.mode(), metadata.uid(), metadata.gid()] {
        hasher.update(&number.to_le_bytes());
    }
    hasher.update(&metadata.mtime().to_le_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const IMAGE: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn store() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("images").join(IMAGE);
        fs::create_dir_all(image.join("rootfs/d")).unwrap();
        fs::write(image.join("rootfs/d/file"), "content").unwrap();
        let rest = format!("\",\"digest\":1,\"blobs\":[\"{}\"]}}", Digest::of(b"x"));
        let check = blake3::hash(rest.as_bytes()).to_hex();
        fs::write(
            image.join("image.json"),
            format!("{{\"check\":\"{check}{rest}"),
        )
        .unwrap();
        fs::create_dir_all(directory.path().join("blobs/sha256")).unwrap();
        let blob = directory
            .path()
            .join("blobs/sha256")
            .join(Digest::of(b"x").hex());
        fs::write(blob, "x").unwrap();
        fs::create_dir_all(directory.path().join("objects/aa")).unwrap();
        let brought =
            format!("[{{\"bundle\":\"sha256:{IMAGE}\",\"images\":[\"sha256:{IMAGE}\"]}}]");
        fs::write(directory.path().join(BUNDLES), brought).unwrap();
        for part in ["rootfs/d/file", "rootfs/d", "rootfs"] {
            set_time(&image.join(part), 1_000_000_000);
        }
        let object = directory.path().join("objects/aa").join(IMAGE);
        fs::hard_link(image.join("rootfs/d/file"), object).unwrap();
        directory
    }

    fn set_time(path: &Path, seconds: u64) {
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        fs::File::open(path).unwrap().set_modified(time).unwrap();
    }

    #[test]
    fn half_an_image_and_half_a_blob_are_noticed() {
        let known = [Store::read(store().path()).unwrap()];
        assert_eq!(known[0].complaint(&known), None);
        assert_eq!(Store::default().complaint(&known), None, "nothing is whole");
        let image = format!("images/{IMAGE}");
        for (path, content) in [
            (format!("{image}/rootfs/d/file"), Some("")),
            (format!("{image}/rootfs/d/file"), None),
            (format!("{image}/tree.json"), Some("{}")),
            (format!("{image}/image.json"), Some("{\"check\":")),
            (format!("{image}/image.json"), None),
            (format!("blobs/sha256/{}", Digest::of(b"x").hex()), Some("")),
            (format!("blobs/sha256/{}", Digest::of(b"x").hex()), None),
            (format!("objects/aa/{IMAGE}"), Some("cont")),
            (BUNDLES.to_owned(), Some("[{")),
        ] {
            let directory = store();
            let path = directory.path().join(path);
            // Another file: a shared one has another name.
            let removed = fs::remove_file(&path);
            match content {
                Some(content) => fs::write(&path, content).unwrap(),
                None => removed.unwrap(),
            }
            let found = Store::read(directory.path()).unwrap();
            assert!(found.complaint(&known).is_some(), "{}", path.display());
        }
        let other_mode = store();
        let file = other_mode.path().join(&image).join("rootfs/d/file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o4755)).unwrap();
        let other_time = store();
        set_time(&other_time.path().join(&image).join("rootfs/d"), 1);
        for directory in [other_mode, other_time] {
            let found = Store::read(directory.path()).unwrap();
            assert!(found.complaint(&known).is_some());
        }
        // A shared file that neither end has, as a node names it after its image is on the disk.
        let late = store();
        let objects = late.path().join("objects");
        let before = Store::read(late.path()).unwrap();
        fs::rename(objects.join("aa"), objects.join("bb")).unwrap();
        let name = objects.join("bb").join(IMAGE.replace('a', "b"));
        fs::rename(objects.join("bb").join(IMAGE), &name).unwrap();
        let found = Store::read(late.path()).unwrap();
        assert_ne!(found, before);
        assert_eq!(found.complaint(&known), None);
        // The record of bundles names an image that is gone: an end may have it so, but no state in between alone.
        let directory = store();
        fs::remove_dir_all(directory.path().join("images").join(IMAGE)).unwrap();
        let removed = Store::read(directory.path()).unwrap();
        assert!(removed.complaint(&known).is_some());
        let ends = [known[0].clone(), removed.clone()];
        assert_eq!(removed.complaint(&ends), None);
        // What was cut off is nobody's.
        let directory = store();
        fs::create_dir_all(directory.path().join("images/.incoming-x/rootfs")).unwrap();
        fs::create_dir_all(directory.path().join("blobs/partial")).unwrap();
        fs::write(directory.path().join("blobs/partial/x"), "half").unwrap();
        assert_eq!(Store::read(directory.path()).unwrap(), known[0]);
    }
}
