//! The directory in which the image's files stay visible, and the one that takes their place.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::entries::{self, Entries};
use super::error::EtcFilesError;
use super::exchange::{Failed, exchange};
use crate::mounts::filesystem::{self, MountFlags, UnmountFlags};
use crate::values::EtcFile;

/// /etc, and its parts in memory.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    etc: PathBuf,
    image: PathBuf,
    merged: PathBuf,
    /// New files, before they come into their places.
    beside: PathBuf,
}

impl Tree {
    pub(super) fn new(etc: PathBuf, home: &Path) -> Self {
        Tree {
            etc,
            image: home.join("image"),
            merged: home.join("merged"),
            beside: home.join("beside"),
        }
    }

    /// Whether the directory in memory has taken the place of the image's.
    pub(super) fn is_covered(&self) -> bool {
        is_same_directory(&self.etc, &self.merged)
    }

    /// Reads the entries of the image's own /etc.
    pub(super) fn of_image(&self) -> Result<Entries, EtcFilesError> {
        let image = match self.is_covered() {
            true => &self.image,
            false => &self.etc,
        };
        entries::read(image).map_err(failed("read the image's /etc", image))
    }

    /// Makes /etc contain these files and those of the image, and no others.
    pub(super) fn apply(&self, files: &[EtcFile]) -> Result<(), EtcFilesError> {
        let is_covered = self.is_covered();
        if files.is_empty() && !is_covered {
            return Ok(());
        }
        if !is_covered {
            self.show_image()?;
        }
        self.merge(files)?;
        if !is_covered {
            self.cover()?;
        }
        Ok(())
    }

    fn show_image(&self) -> Result<(), EtcFilesError> {
        for directory in [&self.image, &self.merged] {
            let made = fs::create_dir_all(directory);
            made.map_err(failed("make a directory", directory))?;
        }
        // An earlier machined of this generation may have died after this step.
        if !is_same_directory(&self.etc, &self.image) {
            filesystem::bind(&self.etc, &self.image)
                .map_err(failed("mount the image's /etc", &self.image))?;
        }
        // Otherwise the next mount at /etc would appear here as well.
        filesystem::make_private(&self.image).map_err(failed("make a mount private", &self.image))
    }

    fn cover(&self) -> Result<(), EtcFilesError> {
        let etc = &self.etc;
        let mounted = filesystem::bind(&self.merged, etc);
        mounted.map_err(failed("mount the files of the config", etc))?;
        self.protect().inspect_err(|_| {
            if let Err(error) = filesystem::unmount(etc, UnmountFlags::DETACH) {
                tracing::error!(
                    "{} is not write-protected, and stays: {error}",
                    etc.display()
                );
            }
        })
    }

    /// Write-protects /etc: only its parts in memory are changed. A machined may have died before it did.
    pub(super) fn protect(&self) -> Result<(), EtcFilesError> {
        let flags =
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let protected = filesystem::change_bind(&self.etc, flags);
        protected.map_err(failed("write-protect the files of the config", &self.etc))
    }

    /// Fills the directory: all of its entries become the wanted ones, or none.
    fn merge(&self, files: &[EtcFile]) -> Result<(), EtcFilesError> {
        let image = entries::read(&self.image);
        let image = image.map_err(failed("read the image's /etc", &self.image))?;
        let wanted = entries::with(&image, files)?;
        let there = entries::read(&self.merged);
        let there = there.map_err(failed("read the previous files", &self.merged))?;
        let exchanged = exchange(&self.merged, &there, &wanted, &self.beside);
        exchanged.map_err(|why| match why {
            Failed::Beside(error) => failed("make a directory", &self.beside)(error),
            Failed::Entry(path, source) => EtcFilesError::File {
                name: path.display().to_string(),
                source,
            },
        })
    }
}

fn is_same_directory(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |path: &Path| fs::metadata(path).map(|it| (it.dev(), it.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

fn failed(step: &'static str, path: &Path) -> impl FnOnce(io::Error) -> EtcFilesError {
    let path = path.to_owned();
    move |source| EtcFilesError::Mount { step, path, source }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::{PermissionsExt as _, symlink};

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
        let tree = Tree::new("/etc".into(), root.path());
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
    fn files_of_which_one_cannot_be_written_are_not_there_at_all() {
        let (_root, tree) = tree();
        tree.merge(&[file("issue", "before")]).unwrap();
        let there = entries::read(&tree.merged).unwrap();
        // No directory takes a longer name.
        let long = "z".repeat(300);
        let files = [file("app", "1"), file("issue", "after"), file(&long, "")];
        let error = tree.merge(&files).unwrap_err();
        assert!(
            matches!(&error, EtcFilesError::File { name, .. } if *name == long),
            "{error}"
        );
        assert_eq!(entries::read(&tree.merged).unwrap(), there);
    }
}
