//! Extensions of a machine that has not booted, whose /etc is a directory of the test. Its mounts need a namespace.

#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(
    clippy::duplicate_mod,
    reason = "the other tests that need it are in another room"
)]
#[path = "../../../tests/namespace/mod.rs"]
mod namespace;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use namespace::{block_on, isolated};

use super::*;
use crate::etc_files::EtcFiles;
use crate::mounts::filesystem::{UnmountFlags, unmount};
use crate::oci::take_file;
use crate::os_extensions::{CheckedTrees, Layers};
use crate::sequences::image_pins::machine_for_tests::{configured, unbooted};

/// As an ordinary user may make them.
const NAMESPACES: &[&str] = &["--user", "--map-root-user", "--mount"];
/// The file of the confext.
const SETTING: &str = "site/setting";

/// A disk and a generation on it.
struct Host {
    directory: tempfile::TempDir,
}

impl Host {
    /// A host whose system has the directory `ssl` in /etc.
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["etc/ssl", "usr"] {
            fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        Host { directory }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    /// Starts machined in a generation, whose memory is the directory of this name.
    async fn machined(&self, generation: &str) -> Machine {
        let machine = unbooted(self.directory.path()).await;
        let mut machine = Arc::into_inner(machine).unwrap();
        let memory = self.path(generation);
        machine.etc_files = EtcFiles::at(self.path("etc"), &memory);
        machine.os_extensions.layers = Layers::at(self.path("usr"), memory.clone());
        machine.os_extensions.checked = CheckedTrees::at(memory.join("checked.json"));
        machine
    }

    fn setting(&self) -> String {
        fs::read_to_string(self.path("etc").join(SETTING)).unwrap()
    }
}

/// Puts the file of a confext into the store, by its content; returns its document.
fn confext(machine: &Machine, name: &str, files: &[(&str, &str)]) -> String {
    let digest = Digest::of(format!("{name} {files:?}").as_bytes());
    let image = name_of_file(name, digest).unwrap();
    let release = format!("extension-release.d/extension-release.{name}");
    let fill = |rootfs: &Path| {
        for (file, text) in files.iter().chain(&[(&*release, "ID=_any\n")]) {
            let path = rootfs.join("etc").join(file);
            fs::create_dir_all(path.parent().unwrap())?;
            fs::write(path, text)?;
        }
        Ok(1)
    };
    take_file(&machine.images, &image, 1, fill).unwrap();
    let (kind, hex) = (
        "apiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig",
        digest.hex(),
    );
    format!("{kind}\nname: {name}\ntarget: os\nurl: http://files.test/{name}.raw\nsha256: {hex}\n")
}

/// Carries out a config of these documents.
async fn carry_out(machine: &Machine, documents: &[&str]) -> Duration {
    turn(machine, &configured(documents), None).await
}

fn problem(machine: &Machine, name: &str) -> Option<String> {
    let known = machine.store.get::<Problem>(&format!("{SUBJECT}{name}"));
    known.map(|problem| problem.reason)
}

#[test]
fn the_image_of_before_stays_in_force_while_the_next_one_has_no_place() {
    let test = "sequences::os_extensions::tests::the_image_of_before_stays_in_force_while_the_next_one_has_no_place";
    isolated(test, NAMESPACES, || block_on(conflicts()));
}

async fn conflicts() {
    let host = Host::new();
    let machine = host.machined("first").await;
    let first = confext(&machine, "site", &[(SETTING, "first")]);
    let other = confext(&machine, "other", &[("app/a", "of the other one")]);
    carry_out(&machine, &[&first, &other]).await;
    assert_eq!(host.setting(), "first");
    let in_force = machine.os_extensions.record.get();

    // The system has a directory there, or another extension has.
    for place in ["ssl", "app"] {
        let next = confext(
            &machine,
            "site",
            &[(SETTING, "next"), (place, "no directory")],
        );
        let again = carry_out(&machine, &[&next, &other]).await;
        assert_eq!((host.setting().as_str(), again), ("first", AGAIN));
        assert_eq!(machine.os_extensions.record.get(), in_force);
        let why = problem(&machine, "site").unwrap();
        assert!(why.contains(&format!("/etc/{place}")), "{why}");
        assert_eq!(problem(&machine, "other"), None);
    }

    // Neither the next generation fetches or asks for anything.
    unmount(&host.path("etc"), UnmountFlags::DETACH).unwrap();
    let next = confext(
        &machine,
        "site",
        &[(SETTING, "last"), ("ssl", "no directory")],
    );
    let booted = host.machined("second").await;
    booted.os_extensions.record.set(in_force).await.unwrap();
    carry_out(&booted, &[&next, &other]).await;
    assert_eq!(host.setting(), "first");
    assert!(problem(&booted, "site").is_some());

    // One that has a place takes it.
    let good = confext(&booted, "site", &[(SETTING, "good")]);
    assert_eq!(carry_out(&booted, &[&good, &other]).await, IDLE);
    assert_eq!(
        (host.setting().as_str(), problem(&booted, "site")),
        ("good", None)
    );
    carry_out(&booted, &[]).await;
    assert!(!host.path("etc").join(SETTING).exists());
}

#[test]
fn a_machined_that_starts_again_takes_no_file_away_and_writes_none_again() {
    let test = "sequences::os_extensions::tests::a_machined_that_starts_again_takes_no_file_away_and_writes_none_again";
    isolated(test, NAMESPACES, || block_on(restarts()));
}

async fn restarts() {
    let host = Host::new();
    let machine = host.machined("first").await;
    let site = confext(&machine, "site", &[(SETTING, "first")]);
    carry_out(&machine, &[&site]).await;
    let inode = || fs::metadata(host.path("etc").join(SETTING)).unwrap().ino();
    let before = inode();

    let again = host.machined("first").await;
    again.etc_files.adopt().unwrap();
    again.os_extensions.adopt();
    // The config's own files come first.
    again.etc_files.set_of_config(Vec::new()).unwrap();
    assert_eq!((host.setting().as_str(), inode()), ("first", before));
    let record = machine.os_extensions.record.get();
    again.os_extensions.record.set(record).await.unwrap();
    assert_eq!(carry_out(&again, &[&site]).await, IDLE);
    assert_eq!(inode(), before);
    assert_eq!(problem(&again, "site"), None);
}

#[test]
fn a_record_that_is_ahead_of_etc_is_carried_out_by_the_next_machined() {
    let test = "sequences::os_extensions::tests::a_record_that_is_ahead_of_etc_is_carried_out_by_the_next_machined";
    isolated(test, NAMESPACES, || block_on(ahead()));
}

async fn ahead() {
    let host = Host::new();
    let machine = host.machined("first").await;
    let site = confext(&machine, "site", &[(SETTING, "first")]);
    carry_out(&machine, &[&site]).await;
    let mut files = machine.etc_files.of_extensions();
    for file in files.values_mut().flatten() {
        if file.name == SETTING {
            file.contents = "next".to_owned();
        }
    }
    // This machined dies between the record and /etc.
    let record = serde_json::to_vec(&files).unwrap();
    fs::write(host.path("first/extensions.json"), record).unwrap();

    let again = host.machined("first").await;
    again.etc_files.adopt().unwrap();
    again.etc_files.set_of_extensions(files.clone()).unwrap();
    assert_eq!(host.setting(), "next");
    let inode = || fs::metadata(host.path("etc").join(SETTING)).unwrap().ino();
    let before = inode();
    again.etc_files.set_of_extensions(files).unwrap();
    assert_eq!(inode(), before);
}
