//! Extensions over real directories: overlays and files of the kernel, in a mount namespace. Needs root, and a kernel with overlayfs.
#![allow(clippy::unwrap_used, clippy::panic)]

mod namespace;

use std::fs;
use std::path::{Path, PathBuf};

use machined::etc_files::EtcFiles;
use machined::os_extensions::{Layers, Tree};
use machined::values::{Digest, EtcFile};
use namespace::isolated;

/// Mounts do not leave the namespace: unshare makes them private.
const NAMESPACES: &[&str] = &["--mount"];

/// A system with a /usr and an /etc of its own, trees of extensions, and a directory in memory.
struct System(tempfile::TempDir);

impl System {
    fn new() -> Self {
        let system = System(tempfile::tempdir().unwrap());
        for (name, text) in [
            ("usr/own", "own"),
            ("etc/own", "own"),
            ("a/usr/a", "a"),
            ("b/usr/b", "b"),
        ] {
            let path = system.path(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        system
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The layers of a machined that starts in the same generation, with the disk there.
    fn layers(&self) -> Layers {
        let layers = Layers::at(self.path("usr"), self.path("memory"));
        layers.adopt().unwrap();
        layers.open();
        layers
    }

    fn etc_files(&self) -> EtcFiles {
        let files = EtcFiles::at(self.path("etc"), &self.path("memory/etc-files"));
        files.adopt().unwrap();
        files
    }

    fn tree(&self, name: &str) -> Tree {
        Tree {
            image: Digest::of(name.as_bytes()),
            path: self.path(name),
        }
    }

    /// The names in one of its directories.
    fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }
}

/// The numbers of the mounts at a path: those of another mount are others.
fn mounts_at(path: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = path.to_str().unwrap();
    let lines = table
        .lines()
        .filter(|line| line.split(' ').nth(4) == Some(at));
    lines
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

fn file(name: &str) -> EtcFile {
    EtcFile {
        name: name.to_owned(),
        mode: 0o644,
        contents: name.to_owned(),
    }
}

#[test]
fn an_overlay_outlives_machined_and_goes_before_the_disk() {
    isolated(
        "an_overlay_outlives_machined_and_goes_before_the_disk",
        NAMESPACES,
        || {
            let (system, usr) = (System::new(), |system: &System| system.path("usr"));
            let both = [system.tree("a"), system.tree("b")];
            let layers = system.layers();
            layers.put(&both[..1]).unwrap();
            layers.put(&both).unwrap();
            assert_eq!(system.names("usr"), ["a", "b", "own"]);
            let mounts = mounts_at(&usr(&system));
            assert_eq!(mounts.len(), 1);

            let again = system.layers();
            again.put(&both).unwrap();
            assert_eq!(mounts_at(&usr(&system)), mounts, "it was laid again");
            assert_eq!(again.laid(), both.each_ref().map(|tree| tree.image).into());
            assert_eq!(again.own_usr(), system.path("memory/usr"));
            let own = fs::read_dir(again.own_usr()).unwrap().count();
            assert_eq!(own, 1, "extensions are among the machine's own files");

            again.close().unwrap();
            assert_eq!(system.names("usr"), ["own"]);
            assert!(mounts_at(&usr(&system)).is_empty());
            assert!(again.put(&both).is_err(), "its disk is away");
        },
    );
}

/// A machined that died between two steps leaves both overlays; a tree that has vanished leaves the old one.
#[test]
fn what_was_left_halfway_ends() {
    isolated("what_was_left_halfway_ends", NAMESPACES, || {
        let (system, away) = (System::new(), System::new());
        system.layers().put(&[system.tree("a")]).unwrap();
        // The same overlay lies there twice, as if the first one had not been taken away.
        let usr = system.path("usr");
        let moved = away.path("usr");
        namespace::run(
            "mount",
            &["--bind", usr.to_str().unwrap(), moved.to_str().unwrap()],
        );
        namespace::run(
            "mount",
            &["--bind", moved.to_str().unwrap(), usr.to_str().unwrap()],
        );
        assert_eq!(mounts_at(&usr).len(), 2);

        let again = system.layers();
        assert_eq!(again.in_force().unwrap(), Some(vec![system.tree("a")]));
        assert_eq!(mounts_at(&usr).len(), 1);

        let vanished = [system.tree("a"), system.tree("vanished")];
        let error = format!("{:#}", again.put(&vanished).unwrap_err());
        assert!(error.contains("vanished/usr"), "{error}");
        assert_eq!(again.in_force().unwrap(), Some(vec![system.tree("a")]));
        assert_eq!(system.names("usr"), ["a", "own"]);
        again.close().unwrap();
        assert!(mounts_at(&usr).is_empty());
    });
}

#[test]
fn files_below_etc_are_all_there_or_none() {
    isolated("files_below_etc_are_all_there_or_none", NAMESPACES, || {
        let system = System::new();
        let files = system.etc_files();
        files.set_of_config(vec![file("config")]).unwrap();
        let one = [("x".to_owned(), vec![file("first")])];
        files.set_of_extensions(one.clone().into()).unwrap();
        assert_eq!(system.names("etc"), ["config", "first", "own"]);
        assert!(
            fs::write(system.path("etc/own"), "").is_err(),
            "it is not write-protected"
        );

        // No directory takes so long a name.
        let long = "z".repeat(300);
        let two = [("x".to_owned(), vec![file("second"), file(&long)])];
        files.set_of_extensions(two.into()).unwrap_err();
        assert_eq!(system.names("etc"), ["config", "first", "own"]);

        let again = system.etc_files();
        assert_eq!(again.of_extensions(), one.into());
        again.set_of_config(vec![file("config")]).unwrap();
        assert_eq!(system.names("etc"), ["config", "first", "own"]);
        again.set_of_extensions([].into()).unwrap();
        assert_eq!(system.names("etc"), ["config", "own"]);
    });
}
