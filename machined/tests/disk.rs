//! Real partitions and filesystems on loop devices. Needs root, e2fsprogs and gdisk.
#![allow(clippy::unwrap_used, clippy::panic)]

mod namespace;

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use machined::disk::{DiskSelector, Ephemeral, EphemeralStatus, EphemeralWish, Places};
use namespace::{block_on, isolated, run};

const SIZE: u64 = 256 * 1024 * 1024;
/// Mounts stay in here: unshare makes them private.
const NAMESPACES: &[&str] = &["--mount"];

/// An image file on a loop device, and a place to mount to.
struct Machine {
    device: String,
    directory: tempfile::TempDir,
    ephemeral: Ephemeral,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("disk.img");
        fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
        let device = run(
            "losetup",
            &["--find", "--show", "--partscan", image.to_str().unwrap()],
        )
        .trim()
        .to_owned();
        let target = directory.path().join("var");
        fs::create_dir(&target).unwrap();
        let ephemeral = Ephemeral::new(Places {
            target,
            ..Places::default()
        });
        Self {
            device,
            directory,
            ephemeral,
        }
    }

    fn image(&self) -> std::path::PathBuf {
        self.directory.path().join("disk.img")
    }

    fn var(&self, path: &str) -> std::path::PathBuf {
        self.directory.path().join("var").join(path)
    }

    fn wish(&self, wipe: bool) -> EphemeralWish {
        EphemeralWish {
            disk: Some(DiskSelector::Path(self.device.clone().into())),
            wipe,
        }
    }

    fn mount(&self, wipe: bool) -> Result<EphemeralStatus, String> {
        block_on(self.ephemeral.mount(&self.wish(wipe))).map_err(|error| error.to_string())?;
        Ok(self.ephemeral.status().borrow().clone())
    }

    fn unmount(&self) -> Result<(), String> {
        block_on(self.ephemeral.unmount()).map_err(|error| error.to_string())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.unmount();
        run("losetup", &["--detach", &self.device]);
    }
}

#[test]
fn a_blank_disk_is_made_and_then_reused() {
    isolated("a_blank_disk_is_made_and_then_reused", NAMESPACES, || {
        let machine = Machine::new();
        let first = machine.mount(false).unwrap();
        assert!(first.mounted && first.fresh, "{first:?}");
        assert_eq!(
            first.device.as_deref(),
            Some(format!("{}p1", machine.device).as_str())
        );
        let checked = run("sgdisk", &["--verify", &machine.device]);
        assert!(checked.contains("No problems found"), "{checked}");
        let options = run(
            "findmnt",
            &["-no", "OPTIONS,FSTYPE", machine.var("").to_str().unwrap()],
        );
        assert!(
            options.contains("nosuid,nodev")
                && !options.contains("noexec")
                && options.contains("ext4"),
            "{options}"
        );
        fs::write(machine.var("keep"), "kept").unwrap();

        machine.unmount().unwrap();
        assert!(!machine.ephemeral.status().borrow().mounted);
        machine.unmount().expect("twice is fine");

        let second = machine.mount(true).unwrap();
        assert!(
            !second.fresh,
            "ours is reused, even when the config still says wipe"
        );
        assert_eq!(fs::read_to_string(machine.var("keep")).unwrap(), "kept");
    });
}

#[test]
fn a_foreign_disk_is_not_touched() {
    isolated("a_foreign_disk_is_not_touched", NAMESPACES, || {
        let machine = Machine::new();
        run("mkfs.ext4", &["-q", &machine.device]);
        run("sync", &[]);
        let before = fs::read(machine.image()).unwrap();
        let error = machine.mount(false).unwrap_err();
        assert!(
            error.contains(&machine.device) && error.contains("ext2/3/4") && error.contains("wipe"),
            "{error}"
        );
        run("sync", &[]);
        assert!(
            before == fs::read(machine.image()).unwrap(),
            "not a byte has changed"
        );
        let dry = block_on(machine.ephemeral.dry_run(&machine.wish(true)))
            .unwrap()
            .unwrap()
            .to_string();
        assert!(dry.contains("DESTROYING an ext2/3/4 filesystem"), "{dry}");
        run("sync", &[]);
        assert!(
            before == fs::read(machine.image()).unwrap(),
            "a dry run is dry"
        );
        assert!(machine.mount(true).unwrap().fresh);
    });
}

#[test]
fn a_disk_in_use_is_refused() {
    isolated("a_disk_in_use_is_refused", NAMESPACES, || {
        let machine = Machine::new();
        run("mkfs.ext4", &["-q", &machine.device]);
        let other = machine.directory.path().join("other");
        fs::create_dir(&other).unwrap();
        run("mount", &[&machine.device, other.to_str().unwrap()]);
        let error = machine.mount(true).unwrap_err();
        assert!(
            error.contains("cannot open") && error.contains("mounted"),
            "{error}"
        );
        run("umount", &[other.to_str().unwrap()]);
    });
}

#[test]
fn a_grown_disk_gives_its_space() {
    isolated("a_grown_disk_gives_its_space", NAMESPACES, || {
        let machine = Machine::new();
        let small = machine.mount(false).unwrap().size;
        fs::write(machine.var("keep"), "kept").unwrap();
        machine.unmount().unwrap();
        fs::OpenOptions::new()
            .write(true)
            .open(machine.image())
            .unwrap()
            .set_len(2 * SIZE)
            .unwrap();
        run("losetup", &["--set-capacity", &machine.device]);
        let grown = machine.mount(false).unwrap();
        assert_eq!(grown.size, small + SIZE);
        assert!(!grown.fresh);
        assert_eq!(fs::read_to_string(machine.var("keep")).unwrap(), "kept");
        // That the filesystem follows is tested in a machine (tests/e2e/disk.rs): a container may not grow one.
        assert!(run("sgdisk", &["--verify", &machine.device]).contains("No problems found"));
    });
}

#[test]
fn a_lost_primary_table_is_repaired() {
    isolated("a_lost_primary_table_is_repaired", NAMESPACES, || {
        let machine = Machine::new();
        machine.mount(false).unwrap();
        fs::write(machine.var("keep"), "kept").unwrap();
        machine.unmount().unwrap();
        run(
            "dd",
            &[
                "if=/dev/urandom",
                &format!("of={}", machine.device),
                "bs=512",
                "seek=1",
                "count=33",
                "conv=notrunc,fsync",
                "status=none",
            ],
        );
        assert!(!machine.mount(false).unwrap().fresh);
        assert_eq!(fs::read_to_string(machine.var("keep")).unwrap(), "kept");
        assert!(run("sgdisk", &["--verify", &machine.device]).contains("No problems found"));
    });
}

#[test]
fn a_partition_whose_mkfs_was_interrupted_gets_a_filesystem() {
    isolated(
        "a_partition_whose_mkfs_was_interrupted_gets_a_filesystem",
        NAMESPACES,
        || {
            let machine = Machine::new();
            machine.mount(false).unwrap();
            machine.unmount().unwrap();
            run(
                "dd",
                &[
                    "if=/dev/zero",
                    &format!("of={}p1", machine.device),
                    "bs=1M",
                    "count=1",
                    "conv=fsync",
                    "status=none",
                ],
            );
            assert!(machine.mount(false).unwrap().fresh);
        },
    );
}

#[test]
fn a_damaged_filesystem_is_repaired() {
    isolated("a_damaged_filesystem_is_repaired", NAMESPACES, || {
        let machine = Machine::new();
        machine.mount(false).unwrap();
        fs::write(machine.var("keep"), "kept").unwrap();
        machine.unmount().unwrap();
        // A cleared root directory is more than -p dares to repair.
        run(
            "debugfs",
            &["-w", "-R", "clri <2>", &format!("{}p1", machine.device)],
        );
        assert!(machine.mount(false).unwrap().mounted);
        assert!(Path::new(&machine.var("lost+found")).exists());
    });
}

#[test]
fn a_busy_var_names_its_holder() {
    isolated("a_busy_var_names_its_holder", NAMESPACES, || {
        let machine = Machine::new();
        machine.mount(false).unwrap();
        let open = fs::File::create(machine.var("open")).unwrap();
        let error = machine.unmount().unwrap_err();
        assert!(
            error.contains(&format!("process {}", std::process::id()))
                && error.contains("/var/open"),
            "{error}"
        );
        drop(open);
        fs::create_dir(machine.var("below")).unwrap();
        run(
            "mount",
            &[
                "-t",
                "tmpfs",
                "tmpfs",
                machine.var("below").to_str().unwrap(),
            ],
        );
        let error = machine.unmount().unwrap_err();
        assert!(error.contains("/var/below is mounted below it"), "{error}");
        run("umount", &[machine.var("below").to_str().unwrap()]);
        machine.unmount().unwrap();
    });
}

#[test]
fn without_a_disk_var_is_in_memory() {
    isolated("without_a_disk_var_is_in_memory", NAMESPACES, || {
        let directory = tempfile::tempdir().unwrap();
        let places = Places {
            target: directory.path().to_owned(),
            ..Places::default()
        };
        let ephemeral = Ephemeral::new(places);
        let before = fs::metadata(directory.path()).unwrap().dev();
        block_on(ephemeral.mount(&EphemeralWish::default())).unwrap();
        assert_ne!(fs::metadata(directory.path()).unwrap().dev(), before);
        let status = ephemeral.status().borrow().clone();
        assert!(
            status.mounted
                && status.device.is_none()
                && status.description.contains("lost with a reboot"),
            "{status:?}"
        );
        block_on(ephemeral.unmount()).unwrap();
    });
}
