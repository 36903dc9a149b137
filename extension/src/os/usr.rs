//! The files of an extension below `/usr`: none in the place of the system's own, and none that nothing would read.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::failed;
use crate::{ExtensionName, Unusable};

/// Limit on the files and directories of an extension.
const MOST: usize = 100_000;

/// Places whose files would have no effect, or one that nobody looks for, and the advice for their author.
const WITHOUT_EFFECT: [(&str, &str); 11] = [
    (
        "usr/lib/systemd",
        "the system runs no units: run the program in a container (ContainerConfig)",
    ),
    (
        "usr/local/lib/systemd",
        "the system runs no units: run the program in a container (ContainerConfig)",
    ),
    (
        "usr/lib/modules",
        "kernel modules come with the system's own image alone",
    ),
    (
        "usr/lib/firmware",
        "the kernel does not look for firmware in an extension",
    ),
    (
        "usr/lib/sysctl.d",
        "kernel parameters belong in the config (SysctlConfig)",
    ),
    (
        "usr/lib/modules-load.d",
        "modules to load belong in the config (KernelModuleConfig)",
    ),
    (
        "usr/lib/tmpfiles.d",
        "directories for data belong in the config (UserVolumeConfig)",
    ),
    ("usr/lib/sysusers.d", "the system makes no users"),
    ("usr/lib/udev", "the system has no udev"),
    ("usr/lib/binfmt.d", "the system registers no formats"),
    (
        "usr/lib/instar",
        "this folder is the system's own, and no extension's",
    ),
];
/// A folder of libraries that programs prefer to those of the same names elsewhere, wherever it is.
const PREFERRED_LIBRARIES: &str = "glibc-hwcaps";

/// Checks the files of a tree; `system` is the system's own `/usr`, if it is there to be compared.
pub(super) fn check(
    tree: &Path,
    name: &ExtensionName,
    system: Option<&Path>,
) -> Result<(), Unusable> {
    let usr = Path::new("usr");
    let top = fs::symlink_metadata(tree.join(usr)).map_err(failed(usr))?;
    if !top.is_dir() {
        return Err(Unusable::WithoutEffect {
            name: name.clone(),
            path: PathBuf::from("/usr"),
            advice: "it is no directory",
        });
    }
    let mut open = vec![usr.to_owned()];
    let mut found = 0;
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(tree.join(&directory)).map_err(failed(&directory))? {
            let entry = entry.map_err(failed(&directory))?;
            let path = directory.join(entry.file_name());
            found += 1;
            if found > MOST {
                return Err(Unusable::TooMuch {
                    name: name.clone(),
                    path: PathBuf::from("/usr"),
                    limit: format!("{MOST} files and directories"),
                });
            }
            let metadata = entry.metadata().map_err(failed(&path))?;
            may_be_there(&path, &metadata, name, system)?;
            if metadata.is_symlink() {
                stays_below_usr(&tree.join(&path), &path, name)?;
            }
            if metadata.is_dir() {
                open.push(path);
            }
        }
    }
    Ok(())
}

/// Checks one file or directory. A link or a device could cover a file of the system without having its name.
fn may_be_there(
    path: &Path,
    metadata: &Metadata,
    name: &ExtensionName,
    system: Option<&Path>,
) -> Result<(), Unusable> {
    let shown = || Path::new("/").join(path);
    let kind = metadata.file_type();
    if !kind.is_dir() && !kind.is_file() && !kind.is_symlink() {
        return Err(Unusable::NoFile {
            name: name.clone(),
            path: shown(),
            may_be: "a file nor a directory nor a link",
        });
    }
    let is_preferred = path
        .file_name()
        .is_some_and(|name| name == PREFERRED_LIBRARIES);
    let advice = match is_preferred {
        true => Some("programs of the system would take these libraries instead of its own"),
        false => WITHOUT_EFFECT
            .iter()
            .find(|(place, _)| path == Path::new(place))
            .map(|(_, advice)| *advice),
    };
    if let Some(advice) = advice {
        return Err(Unusable::WithoutEffect {
            name: name.clone(),
            path: shown(),
            advice,
        });
    }
    let (Some(system), Ok(below)) = (system, path.strip_prefix("usr")) else {
        return Ok(());
    };
    match fs::symlink_metadata(system.join(below)) {
        Ok(own) if own.is_dir() && kind.is_dir() => Ok(()),
        Ok(_) => Err(Unusable::OfTheSystem {
            name: name.clone(),
            path: shown(),
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(path)(error)),
    }
}

/// Checks a link. A container that mounts its path would get any directory of the machine that it leads to.
fn stays_below_usr(link: &Path, path: &Path, name: &ExtensionName) -> Result<(), Unusable> {
    let target = fs::read_link(link).map_err(failed(path))?;
    let refused = |advice| {
        Err(Unusable::WithoutEffect {
            name: name.clone(),
            path: Path::new("/").join(path),
            advice,
        })
    };
    let mut at: Vec<&std::ffi::OsStr> = match path.parent() {
        Some(parent) if !target.is_absolute() => parent.iter().collect(),
        _ => Vec::new(),
    };
    let (mut stays, mut has_gone_down) = (true, false);
    for component in target.components() {
        match component {
            Component::Normal(part) => {
                has_gone_down = true;
                at.push(part);
            }
            // The part before may be a link, and for the kernel `..` goes up from where that leads. The directories above this link are
            // none: they are directories of this tree, and of every other one that is beside it.
            Component::ParentDir if has_gone_down => {
                return refused("it is a link with `..` after a name: write its target without");
            }
            Component::ParentDir => {
                at.pop();
                stays &= !at.is_empty();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    if stays && at.first().is_some_and(|first| *first == "usr") {
        return Ok(());
    }
    refused("it is a link that leads out of /usr")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Architecture, Host, OsExtension};
    use std::os::unix::fs::symlink;

    const RELEASE: (&str, &str) = (
        "usr/lib/extension-release.d/extension-release.data",
        "ID=instar\nSYSEXT_LEVEL=1.0\n",
    );

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// The system has /usr/bin/crun, and /usr/lib64 as a link.
    fn system() -> tempfile::TempDir {
        let system = tempfile::tempdir().unwrap();
        write(system.path(), "bin/crun", "a program");
        symlink("lib", system.path().join("lib64")).unwrap();
        system
    }

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let tree = tempfile::tempdir().unwrap();
        for (path, text) in files {
            write(tree.path(), path, text);
        }
        tree
    }

    fn read(tree: &Path) -> Result<OsExtension, String> {
        let system = system();
        let host = Host::instar("v0.1.0", Architecture::X86_64);
        let name = "data".parse().unwrap();
        let read = OsExtension::read(tree, &name, host, Some(system.path()));
        read.map_err(|error| error.to_string())
    }

    #[test]
    fn files_beside_those_of_the_system_are_added() {
        let tree = tree(&[
            RELEASE,
            ("usr/share/data/a", "1"),
            ("usr/bin/tool", "a program"),
        ]);
        symlink("tool", tree.path().join("usr/bin/other")).unwrap();
        assert_eq!(read(tree.path()), Ok(OsExtension::Usr));
    }

    #[test]
    fn a_file_of_the_system_is_not_replaced() {
        for (path, named) in [
            ("usr/bin/crun", "/usr/bin/crun"),
            ("usr/bin/crun/x", "/usr/bin/crun"),
            ("usr/lib64/libc.so.6", "/usr/lib64"),
        ] {
            let refused = read(tree(&[RELEASE, (path, "")]).path()).unwrap_err();
            let said = format!("data has {named}, which the system has as well");
            assert!(refused.starts_with(&said), "{path}: {refused}");
        }
        let linking = tree(&[RELEASE]);
        symlink("/var", linking.path().join("usr/bin")).unwrap();
        let refused = read(linking.path()).unwrap_err();
        assert!(refused.starts_with("data has /usr/bin, "), "{refused}");
    }

    #[test]
    fn files_without_an_effect_are_refused_with_advice() {
        for (place, _) in WITHOUT_EFFECT {
            let path = format!("{place}/x");
            let refused = read(tree(&[RELEASE, (&path, "")]).path()).unwrap_err();
            let said = format!("data has /{place}, which has no place in an extension");
            assert!(refused.starts_with(&said), "{refused}");
        }
        let unit = "usr/lib/systemd/system/tool.service";
        let refused = read(tree(&[RELEASE, (unit, "")]).path()).unwrap_err();
        assert!(
            refused.contains("run the program in a container"),
            "{refused}"
        );
        let library = "usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libc.so.6";
        let refused = read(tree(&[RELEASE, (library, "")]).path()).unwrap_err();
        assert!(
            refused.contains("programs of the system would take"),
            "{refused}"
        );
    }

    #[test]
    fn files_elsewhere_and_other_systems_are_refused() {
        for (files, why) in [
            (vec![RELEASE, ("opt/x", "")], "data has /opt"),
            (vec![RELEASE, ("var/x", "")], "data has /var"),
            (vec![RELEASE, ("etc/x", "")], "data has /usr"),
            (vec![("usr/share/x", "")], "data has no /usr/lib"),
            (
                vec![(RELEASE.0, "ID=flatcar\nVERSION_ID=1\n")],
                "data is for ID",
            ),
            (
                vec![(RELEASE.0, "ID=instar\nSYSEXT_LEVEL=2.0\n")],
                "data is for SYSEXT_LEVEL",
            ),
            (
                vec![(RELEASE.0, "ID=_any\nARCHITECTURE=arm64\n")],
                "data is for ARCHITECTURE",
            ),
        ] {
            let refused = read(tree(&files).path()).unwrap_err();
            assert!(refused.starts_with(why), "{why}: {refused}");
        }
    }

    #[test]
    fn a_link_stays_below_usr() {
        let with = |target: &str| {
            let tree = tree(&[RELEASE, ("usr/share/data/a", "")]);
            symlink(target, tree.path().join("usr/share/link")).unwrap();
            read(tree.path())
        };
        for target in ["data", "./data/a", "../bin/tool", "/usr/bin/tool"] {
            assert_eq!(with(target), Ok(OsExtension::Usr), "{target}");
        }
        for target in ["/var/lib", "/", "../../etc", "../../../usr"] {
            let refused = with(target).unwrap_err();
            assert!(refused.contains("leads out of /usr"), "{target}: {refused}");
        }
        // With a link `d` to `..`, the second one would lead to /system/state.
        for target in ["/usr/../etc", "/usr/share/d/../system/state", "d/../x"] {
            let refused = with(target).unwrap_err();
            assert!(refused.contains("after a name"), "{target}: {refused}");
        }
        let tree = tempfile::tempdir().unwrap();
        symlink("/usr", tree.path().join("usr")).unwrap();
        assert!(read(tree.path()).is_err());
    }

    #[test]
    fn a_socket_is_no_file() {
        let tree = tree(&[RELEASE]);
        let _socket =
            std::os::unix::net::UnixListener::bind(tree.path().join("usr/socket")).unwrap();
        let refused = read(tree.path()).unwrap_err();
        assert!(
            refused.contains("/usr/socket, which is neither a file"),
            "{refused}"
        );
    }
}
