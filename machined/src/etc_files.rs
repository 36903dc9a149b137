//! Files below /etc, from the machine config and from extensions.
//!
//! The image's /etc is read-only. Once one of them has a file for it, a copy in memory takes its place: the image's files, those of
//! extensions over them, and the config's over all. Both mounts end with the generation. Readers see the old or the new content of a file, never half of it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::io;
use std::mem::discriminant;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::base::lock::Lock as _;
use crate::base::whole_file;
use crate::mounts::filesystem::{self, MountFlags};
use crate::values::EtcFile;

/// Why /etc does not match the config.
#[derive(Debug, thiserror::Error)]
pub enum EtcFilesError {
    /// A file cannot be written or removed.
    #[error("cannot write /etc/{name}")]
    File {
        /// The file, below /etc.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// The image has a directory where the file would be, or a file where the directory would be.
    #[error(
        "/etc/{0} cannot be a file: the image has something else at this path, or a file above it"
    )]
    InTheWay(String),
    /// The copy of the image's /etc cannot be mounted.
    #[error("cannot {step} at {path}")]
    Mount {
        /// The step that failed.
        step: &'static str,
        /// The path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The files that /etc has beside the image's; clones share them.
#[derive(Debug, Clone, Default)]
pub struct EtcFiles {
    wanted: Arc<Mutex<Wanted>>,
}

#[derive(Debug, Default)]
struct Wanted {
    of_config: Vec<EtcFile>,
    of_extensions: Vec<EtcFile>,
}

impl Wanted {
    /// All files, each once: the config's own take precedence, also over a file where one of them needs a directory, or below one of them.
    fn all(&self) -> Vec<EtcFile> {
        let of_config = self.of_config.iter().map(|it| Path::new(&it.name));
        let named: BTreeSet<&Path> = of_config.clone().collect();
        let needed: BTreeSet<&Path> = of_config.flat_map(Path::ancestors).collect();
        let of_extensions = self.of_extensions.iter();
        let others = of_extensions.filter(|it| {
            let path = Path::new(&it.name);
            !needed.contains(path) && !path.ancestors().any(|above| named.contains(above))
        });
        others.chain(&self.of_config).cloned().collect()
    }

    /// Keeps the files of those extensions that have a place beside those of the image, the config and earlier extensions; the later one
    /// takes precedence. Returns why the others have none, by their names.
    fn take(
        &mut self,
        extensions: Vec<(String, Vec<EtcFile>)>,
        image: &Path,
    ) -> Result<BTreeMap<String, String>, EtcFilesError> {
        let (mut taken, mut refused) = (BTreeMap::new(), BTreeMap::new());
        for (name, files) in extensions {
            let mut tried: BTreeMap<String, EtcFile> = taken.clone();
            tried.extend(files.into_iter().map(|file| (file.name.clone(), file)));
            let wanted = Wanted {
                // Whether the config's own have a place is another question.
                of_config: Vec::new(),
                of_extensions: tried.values().cloned().collect(),
            };
            match entries(image, &wanted.all()) {
                Ok(_) => taken = tried,
                Err(error @ EtcFilesError::InTheWay(_)) => {
                    refused.insert(name, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        self.of_extensions = taken.into_values().collect();
        Ok(refused)
    }
}

impl EtcFiles {
    /// Makes /etc contain these files of the config, and no others of it. Blocks.
    ///
    /// # Errors
    /// The first failure; the files before it are written.
    pub fn set_of_config(&self, files: Vec<EtcFile>) -> Result<(), EtcFilesError> {
        let mut wanted = self.wanted.locked();
        wanted.of_config = files;
        apply(&wanted.all())
    }

    /// Makes /etc contain these files of extensions, and no others of them. Returns the extensions that have no place there, with the
    /// reasons: none of their files is there. Blocks.
    ///
    /// # Errors
    /// The first failure; then those of before count again.
    pub fn set_of_extensions(
        &self,
        extensions: Vec<(String, Vec<EtcFile>)>,
    ) -> Result<BTreeMap<String, String>, EtcFilesError> {
        let mut wanted = self.wanted.locked();
        let before = wanted.of_extensions.clone();
        let (tree, etc) = (Tree::below(Path::new("/run/etc-files")), Path::new("/etc"));
        let image = match is_same_directory(etc, &tree.merged) {
            true => &tree.image,
            false => etc,
        };
        let refused = wanted.take(extensions, image)?;
        if wanted.of_extensions == before {
            return Ok(refused);
        }
        let applied = apply(&wanted.all());
        if applied.is_err() {
            wanted.of_extensions = before;
            if let Err(error) = apply(&wanted.all()) {
                tracing::error!("/etc does not match the config: {error}");
            }
        }
        applied.map(|()| refused)
    }
}

/// Makes /etc contain these files and those of the image, and no others.
fn apply(files: &[EtcFile]) -> Result<(), EtcFilesError> {
    let tree = Tree::below(Path::new("/run/etc-files"));
    let etc = Path::new("/etc");
    let is_mounted = is_same_directory(etc, &tree.merged);
    if files.is_empty() && !is_mounted {
        return Ok(());
    }
    if !is_mounted {
        tree.mount_image(etc)?;
    }
    tree.merge(files)?;
    if !is_mounted {
        tree.mount_merged(etc)?;
    }
    Ok(())
}

fn is_same_directory(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// The directory in which the image's files stay visible, and the one that takes their place.
struct Tree {
    image: PathBuf,
    merged: PathBuf,
}

impl Tree {
    fn below(directory: &Path) -> Self {
        Self {
            image: directory.join("image"),
            merged: directory.join("merged"),
        }
    }

    fn mount_image(&self, etc: &Path) -> Result<(), EtcFilesError> {
        for directory in [&self.image, &self.merged] {
            let made = fs::create_dir_all(directory);
            made.map_err(failed("make a directory", directory))?;
        }
        // An earlier machined of this generation may have died after this step.
        if is_same_directory(etc, &self.image) {
            return Ok(());
        }
        filesystem::bind(etc, &self.image)
            .map_err(failed("mount the image's /etc", &self.image))?;
        // Otherwise the next mount at /etc would appear here as well.
        filesystem::make_private(&self.image).map_err(failed("make a mount private", &self.image))
    }

    fn mount_merged(&self, etc: &Path) -> Result<(), EtcFilesError> {
        let mounted = filesystem::bind(&self.merged, etc);
        mounted.map_err(failed("mount the files of the config", etc))?;
        let flags =
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let protected = filesystem::change_bind(etc, flags);
        protected.map_err(failed("write-protect the files of the config", etc))
    }

    /// Fills the directory: replaces files that differ, each as a whole, and removes others.
    fn merge(&self, files: &[EtcFile]) -> Result<(), EtcFilesError> {
        let wanted = entries(&self.image, files)?;
        let mut there = BTreeMap::new();
        list(&self.merged, Path::new(""), &mut there)
            .map_err(failed("read the files of before", &self.merged))?;
        let write = |path: &Path, done: io::Result<()>| {
            done.map_err(|source| EtcFilesError::File {
                name: path.display().to_string(),
                source,
            })
        };
        let stays = |path: &PathBuf, entry: &Entry| {
            let wanted = wanted.get(path).map(discriminant);
            wanted == Some(discriminant(entry))
        };
        // Backwards, because a directory comes before its content.
        for (path, entry) in there
            .iter()
            .rev()
            .filter(|(path, entry)| !stays(path, entry))
        {
            write(path, remove(&self.merged.join(path), entry))?;
        }
        for (path, entry) in wanted
            .iter()
            .filter(|(path, entry)| there.get(*path) != Some(*entry))
        {
            write(path, entry.write(&self.merged.join(path)))?;
        }
        Ok(())
    }
}

/// Returns what /etc is to contain: the image's entries, and these files.
fn entries(image: &Path, files: &[EtcFile]) -> Result<BTreeMap<PathBuf, Entry>, EtcFilesError> {
    let mut wanted = BTreeMap::new();
    list(image, Path::new(""), &mut wanted).map_err(failed("read the image's /etc", image))?;
    for file in files {
        let path = PathBuf::from(&file.name);
        let is_free = !matches!(wanted.get(&path), Some(Entry::Directory | Entry::Link(_)));
        let mut above = path.ancestors().skip(1);
        if !is_free || above.any(|it| !matches!(wanted.get(it), None | Some(Entry::Directory))) {
            return Err(EtcFilesError::InTheWay(file.name.clone()));
        }
        let above = path.ancestors().skip(1);
        for directory in above.filter(|it| !it.as_os_str().is_empty()) {
            wanted.insert(directory.to_owned(), Entry::Directory);
        }
        let entry = Entry::File(file.mode, file.contents.clone().into_bytes());
        wanted.insert(path, entry);
    }
    Ok(wanted)
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EtcFilesError {
    let path = path.to_owned();
    move |source| EtcFilesError::Mount { step, path, source }
}

/// An entry below /etc.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Directory,
    Link(PathBuf),
    /// Permission bits and content.
    File(u32, Vec<u8>),
}

impl Entry {
    fn write(&self, path: &Path) -> io::Result<()> {
        match self {
            Entry::Directory => match fs::create_dir(path) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => fs::set_permissions(path, Permissions::from_mode(0o755)),
            },
            Entry::Link(target) => symlink(target, path),
            Entry::File(mode, content) => {
                // At no time may more users read the file than its mode allows.
                whole_file::replace(path, mode & 0o600, content)?;
                fs::set_permissions(path, Permissions::from_mode(*mode))
            }
        }
    }
}

fn remove(path: &Path, entry: &Entry) -> io::Result<()> {
    match entry {
        Entry::Directory => fs::remove_dir(path),
        Entry::Link(_) | Entry::File(..) => fs::remove_file(path),
    }
}

fn list(root: &Path, below: &Path, entries: &mut BTreeMap<PathBuf, Entry>) -> io::Result<()> {
    for found in fs::read_dir(root.join(below))? {
        let found = found?;
        let (path, kind) = (below.join(found.file_name()), found.file_type()?);
        if kind.is_dir() {
            list(root, &path, entries)?;
            entries.insert(path, Entry::Directory);
        } else if kind.is_symlink() {
            entries.insert(path, Entry::Link(fs::read_link(found.path())?));
        } else if kind.is_file() {
            let mode = found.metadata()?.permissions().mode() & 0o7777;
            entries.insert(path, Entry::File(mode, fs::read(found.path())?));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file(name: &str, contents: &str) -> EtcFile {
        EtcFile {
            name: name.to_owned(),
            mode: 0o640,
            contents: contents.to_owned(),
        }
    }

    fn tree() -> (tempfile::TempDir, Tree) {
        let root = tempfile::tempdir().unwrap();
        let tree = Tree::below(root.path());
        fs::create_dir_all(tree.image.join("ssl/certs")).unwrap();
        fs::create_dir_all(&tree.merged).unwrap();
        fs::write(tree.image.join("ssl/certs/all.crt"), "certificates").unwrap();
        fs::write(tree.image.join("issue"), "of the image").unwrap();
        symlink("/run/etc/hosts", tree.image.join("hosts")).unwrap();
        (root, tree)
    }

    #[test]
    fn files_of_the_config_lie_over_those_of_the_image_and_leave_them_as_they_were() {
        let (_root, tree) = tree();
        let files = [file("issue", "ours"), file("app/conf.d/a", "1")];
        tree.merge(&files).unwrap();
        let read = |name: &str| fs::read_to_string(tree.merged.join(name)).unwrap();
        assert_eq!((&*read("issue"), &*read("app/conf.d/a")), ("ours", "1"));
        assert_eq!(read("ssl/certs/all.crt"), "certificates");
        let link = fs::read_link(tree.merged.join("hosts")).unwrap();
        assert_eq!(link, Path::new("/run/etc/hosts"));
        let mode = fs::metadata(tree.merged.join("app/conf.d/a"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o7777, 0o640);

        tree.merge(&[]).unwrap();
        assert_eq!(read("issue"), "of the image");
        assert!(!tree.merged.join("app").exists());
    }

    #[test]
    fn a_file_of_the_config_takes_precedence_over_one_of_an_extension() {
        let wanted = Wanted {
            of_config: vec![file("motd", "config")],
            of_extensions: vec![file("app", "extension"), file("motd", "extension")],
        };
        let (_root, tree) = tree();
        tree.merge(&wanted.all()).unwrap();
        let read = |name: &str| fs::read_to_string(tree.merged.join(name)).unwrap();
        assert_eq!((&*read("motd"), &*read("app")), ("config", "extension"));
    }

    #[test]
    fn a_file_takes_no_other_things_place() {
        let (_root, tree) = tree();
        for name in ["ssl", "issue/x", "hosts", "hosts/x"] {
            let error = tree.merge(&[file(name, "")]).unwrap_err();
            assert!(
                matches!(error, EtcFilesError::InTheWay(_)),
                "{name}: {error}"
            );
        }
    }

    #[test]
    fn one_confext_without_a_place_keeps_no_others_out() {
        let image = tempfile::tempdir().unwrap();
        fs::create_dir(image.path().join("ssl")).unwrap();
        let files = |names: &[&str]| -> Vec<EtcFile> {
            let file = |name: &&str| EtcFile {
                name: (*name).to_owned(),
                mode: 0o644,
                contents: String::new(),
            };
            names.iter().map(file).collect()
        };
        let mut wanted = Wanted {
            of_config: files(&["a/b", "c"]),
            ..Wanted::default()
        };
        let extensions = [
            ("good", files(&["a", "c/d", "e/f"])),
            ("over-image", files(&["g", "ssl"])),
            ("over-other", files(&["e"])),
            ("last", files(&["h"])),
        ];
        let extensions = extensions.map(|(name, files)| (name.to_owned(), files));
        let refused = wanted.take(extensions.into(), image.path()).unwrap();
        assert!(
            refused.keys().eq(["over-image", "over-other"]),
            "{refused:?}"
        );
        let all = wanted.all();
        let all: BTreeSet<&str> = all.iter().map(|it| it.name.as_str()).collect();
        // The config's own take the place of what is above or below them.
        assert_eq!(all, BTreeSet::from(["a/b", "c", "e/f", "h"]));
    }
}
