//! The files of an extension below `/etc`.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::failed;
use crate::{ExtensionName, Hierarchy, Unusable};

/// Limits: files and directories of an extension, and the bytes of all its files. They are copied to memory.
const MOST: usize = 1000;
const LARGEST: u64 = 1 << 20;

/// A file below `/etc`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcText {
    /// Its path below `/etc`.
    pub path: String,
    /// Its permission bits.
    pub mode: u32,
    /// Its content.
    pub text: String,
}

/// Reads the files of a tree, without those that say which system it fits.
pub(super) fn texts(tree: &Path, name: &ExtensionName) -> Result<Vec<EtcText>, Unusable> {
    let etc = tree.join("etc");
    let releases = tree.join(Hierarchy::Etc.releases());
    let (mut open, mut texts) = (vec![etc.clone()], Vec::new());
    let (mut found, mut left) = (0, LARGEST);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory).map_err(failed(&directory))? {
            let path = entry.map_err(failed(&directory))?.path();
            found += 1;
            if found > MOST {
                return Err(too_much(name, format!("{MOST} files and directories")));
            }
            let metadata = fs::symlink_metadata(&path).map_err(failed(&path))?;
            if path == releases {
                continue;
            }
            if metadata.is_dir() {
                open.push(path);
                continue;
            }
            let below = path.strip_prefix(&etc).unwrap_or(&path);
            let no_text = || Unusable::NoFile {
                name: name.clone(),
                path: Path::new("/etc").join(below),
                may_be: "a text in UTF-8 nor a directory",
            };
            if !metadata.is_file() {
                return Err(no_text());
            }
            let mut bytes = Vec::new();
            let file = fs::File::open(&path).map_err(failed(&path))?;
            let read = file.take(left + 1).read_to_end(&mut bytes);
            read.map_err(failed(&path))?;
            let length = bytes.len() as u64;
            left = left
                .checked_sub(length)
                .ok_or_else(|| too_much(name, format!("{LARGEST} bytes in all")))?;
            texts.push(EtcText {
                path: below.to_str().ok_or_else(no_text)?.to_owned(),
                mode: metadata.permissions().mode() & 0o777,
                text: String::from_utf8(bytes).map_err(|_| no_text())?,
            });
        }
    }
    texts.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(texts)
}

fn too_much(name: &ExtensionName, limit: String) -> Unusable {
    Unusable::TooMuch {
        name: name.clone(),
        path: PathBuf::from("/etc"),
        limit,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Architecture, Host, OsExtension};

    const RELEASE: (&str, &[u8]) = (
        "etc/extension-release.d/extension-release.site",
        b"ID=instar\nCONFEXT_LEVEL=1.0\n",
    );

    fn tree(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        tree
    }

    fn read(tree: &Path) -> Result<OsExtension, String> {
        let host = Host::instar("v0.1.0", Architecture::X86_64);
        let read = OsExtension::read(tree, &"site".parse().unwrap(), host, None);
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn a_confext_is_its_texts_without_its_release_file() {
        let tree = tree(&[RELEASE, ("etc/app/b", b"2\n"), ("etc/app/a", b"1\n")]);
        let secret = fs::Permissions::from_mode(0o600);
        fs::set_permissions(tree.path().join("etc/app/a"), secret).unwrap();
        let Ok(OsExtension::Etc(texts)) = read(tree.path()) else {
            panic!("{:?}", read(tree.path()));
        };
        let shown: Vec<_> = texts
            .iter()
            .map(|it| (it.path.as_str(), it.mode & 0o700, it.text.as_str()))
            .collect();
        assert_eq!(shown, [("app/a", 0o600, "1\n"), ("app/b", 0o600, "2\n")]);
    }

    #[test]
    fn a_confext_that_cannot_be_used_is_refused_with_the_reason() {
        let large = vec![b'x'; 1 << 20];
        for (files, why) in [
            (
                vec![RELEASE, ("usr/share/x", b"".as_slice())],
                "site has /usr",
            ),
            (vec![("etc/x", b"")], "site has no /etc/extension-release.d"),
            (
                vec![(RELEASE.0, b"ID=instar\nCONFEXT_LEVEL=2.0\n".as_slice())],
                "site is for CONFEXT_LEVEL",
            ),
            (
                vec![(RELEASE.0, b"ID=instar\nSYSEXT_LEVEL=1.0\n".as_slice())],
                "its release file for site has no VERSION_ID",
            ),
            (
                vec![RELEASE, ("etc/x", b"\xff".as_slice())],
                "site has /etc/x, which is neither a text",
            ),
            (
                vec![RELEASE, ("etc/x", &large), ("etc/y", b"y")],
                "site: /etc is more than a machine reads",
            ),
        ] {
            let refused = read(tree(&files).path()).unwrap_err();
            assert!(refused.starts_with(why), "{why}: {refused}");
        }
        let linking = tree(&[RELEASE]);
        std::os::unix::fs::symlink("/var/x", linking.path().join("etc/x")).unwrap();
        let refused = read(linking.path()).unwrap_err();
        assert!(refused.starts_with("site has /etc/x"), "{refused}");
    }
}
