//! The directories of the base that an extension must not hide. An overlay merges directories, and takes everything else for the whole: a link in the
//! place of `usr/sbin`, as of systems that have one directory of programs, takes all of the base's away. The node would be ready without them,
//! and fail at the first volume of a pod.

use std::fs;

use super::{Reader, Unusable, is_no_directory};

/// Directories of the base with its programs and libraries, each after the one that it is in.
const MERGED: [&str; 6] = ["usr", "opt", "usr/bin", "usr/lib", "usr/lib64", "usr/sbin"];
/// The base's own programs, which nothing takes the place of.
const OWN: &str = "usr/lib/instar";

impl Reader<'_> {
    /// Checks that the tree hides nothing of the base.
    pub(super) fn hides_nothing(&self) -> Result<(), Unusable> {
        for path in MERGED {
            if self.kind(path)?.is_some_and(|kind| !kind.is_dir()) {
                return Err(self.hides(path, "have a directory there, and no link or file"));
            }
        }
        match self.kind(OWN)? {
            Some(_) => Err(self.hides(OWN, "take it out")),
            None => Ok(()),
        }
    }

    /// The kind of an entry; `None` if there is none. Links are not followed.
    fn kind(&self, path: &str) -> Result<Option<fs::FileType>, Unusable> {
        let path = self.tree.join(path);
        match fs::symlink_metadata(&path) {
            Ok(metadata) => Ok(Some(metadata.file_type())),
            Err(error) if is_no_directory(&error) => Ok(None),
            Err(source) => Err(Unusable::Io { path, source }),
        }
    }

    fn hides(&self, path: &'static str, advice: &'static str) -> Unusable {
        Unusable::Hides {
            name: self.name.clone(),
            path,
            advice,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::{Architecture, Extension, ExtensionName, Host};

    #[test]
    fn what_would_take_programs_from_the_node_is_refused() {
        let name: ExtensionName = "kubernetes".parse().unwrap();
        // a directory of the tree, whether it is a link → whether the tree is refused
        for (path, is_link, is_refused) in [
            ("usr/sbin", false, false),
            ("usr/share/instar", false, false),
            ("usr/libexec", true, false),
            ("usr/sbin", true, true),
            ("usr/lib64", true, true),
            ("usr", true, true),
            ("opt", true, true),
            ("usr/lib/instar", false, true),
        ] {
            let tree = tempfile::tempdir().unwrap();
            let at = tree.path().join(path);
            fs::create_dir_all(at.parent().unwrap()).unwrap();
            match is_link {
                true => symlink("bin", &at).unwrap(),
                false => fs::create_dir(&at).unwrap(),
            }
            let reader = Reader {
                tree: tree.path(),
                name: &name,
            };
            let judged = reader.hides_nothing();
            assert_eq!(judged.is_err(), is_refused, "{path} {judged:?}");
        }
    }

    /// Its node was ready with it, and would not be without.
    #[test]
    fn one_that_a_node_has_taken_already_is_read_all_the_same() {
        let name: ExtensionName = "kubernetes".parse().unwrap();
        let tree = tempfile::tempdir().unwrap();
        let releases = tree.path().join("usr/lib/extension-release.d");
        fs::create_dir_all(&releases).unwrap();
        fs::write(releases.join("extension-release.kubernetes"), "ID=_any\n").unwrap();
        symlink("bin", tree.path().join("usr/sbin")).unwrap();
        let host = Host::instar("v0.1.0", Architecture::OWN);
        let refused = Extension::read(tree.path(), &name, host, "node-1").unwrap_err();
        assert!(matches!(refused, Unusable::Hides { .. }), "{refused}");
        Extension::read_taken(tree.path(), &name, host, "node-1").unwrap();
    }
}
