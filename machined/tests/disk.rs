//! Real partitions, filesystems and mounts on loop devices and in memory. Needs root, e2fsprogs and gdisk.
#![allow(clippy::unwrap_used, clippy::panic)]

mod namespace;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::{FileExt, MetadataExt, symlink},
    path::Path,
};

use machined::disk::{DiskSpec, Label, OwnedDisk, OwnedDiskStatus, Paths, Takeover, Users, Wipe};
use machined::mounts::filesystem::{Filesystem, MountFlags};
use machined::mounts::transient_mount::TransientMount;
use machined::values::DiskSelector;
use namespace::{block_on, isolated, run};

const SIZE: u64 = 256 * 1024 * 1024;
/// The number of the partition at /var; STATE comes before it.
const EPHEMERAL: u32 = 3;
/// Mounts do not leave the namespace: unshare makes them private.
const NAMESPACES: &[&str] = &["--mount"];

/// An image file on a loop device, and a directory to mount in.
struct Machine {
    device: String,
    directory: tempfile::TempDir,
    disk: OwnedDisk,
}

/// All mounts are below this directory, and `device` is the only visible disk: other tests have theirs.
fn paths(directory: &Path, device: Option<&str>) -> Paths {
    let paths = Paths {
        domain: directory.join("domain"),
        var: directory.join("var"),
        state: directory.join("state"),
        sysfs: directory.join("sys"),
        ..Paths::default()
    };
    let block = paths.sysfs.join("class/block");
    for folder in [&paths.var, &paths.state, &block] {
        fs::create_dir_all(folder).unwrap();
    }
    let name = device.and_then(|device| device.strip_prefix("/dev/"));
    let names = name.map(|name| ["", "p1", "p2", "p3"].map(|part| format!("{name}{part}")));
    for name in names.into_iter().flatten() {
        let link = block.join(&name);
        if !link.is_symlink() {
            symlink(Path::new("/sys/class/block").join(&name), link).unwrap();
        }
    }
    paths
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("disk.img");
        File::create(&image).unwrap().set_len(SIZE).unwrap();
        let device = run(
            "losetup",
            &["--find", "--show", "--partscan", image.to_str().unwrap()],
        )
        .trim()
        .to_owned();
        let disk = OwnedDisk::new(paths(directory.path(), Some(&device)));
        Self {
            device,
            directory,
            disk,
        }
    }

    /// Returns the same machine's disk after a restart.
    fn again(&self) -> OwnedDisk {
        OwnedDisk::new(paths(self.directory.path(), Some(&self.device)))
    }

    fn image(&self) -> std::path::PathBuf {
        self.directory.path().join("disk.img")
    }

    fn var(&self, path: &str) -> std::path::PathBuf {
        self.directory.path().join("var").join(path)
    }

    fn spec(&self, takeover: Takeover) -> DiskSpec {
        DiskSpec {
            disk: Some(DiskSelector::Path(self.device.clone().into())),
            takeover,
        }
    }

    fn partition(&self, number: u32) -> String {
        format!("{}p{number}", self.device)
    }

    fn mount(&self, takeover: Takeover) -> Result<OwnedDiskStatus, String> {
        block_on(self.disk.mount(&self.spec(takeover))).map_err(|error| error.to_string())?;
        Ok(self.disk.status().borrow().clone())
    }

    fn unmount(&self) -> Result<(), String> {
        block_on(self.disk.unmount(Users::MustBeGone)).map_err(|error| error.to_string())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Usually it is unmounted already.
        let _ = self.unmount();
        run("losetup", &["--detach", &self.device]);
    }
}

#[test]
fn a_blank_disk_is_made_and_then_reused() {
    isolated("a_blank_disk_is_made_and_then_reused", NAMESPACES, || {
        let machine = Machine::new();
        let first = machine.mount(Takeover::Refuse).unwrap();
        assert!(first.var_mounted && first.fresh, "{first:?}");
        assert_eq!(
            first.var.as_deref(),
            Some(Path::new(&machine.partition(EPHEMERAL)))
        );
        let checked = run("sgdisk", &["--verify", &machine.device]);
        assert!(checked.contains("No problems found"), "{checked}");
        let options = run(
            "findmnt",
            &["-no", "OPTIONS,FSTYPE", machine.var("").to_str().unwrap()],
        );
        assert!(
            options.contains("nosuid,nodev")
                && options.contains("noexec")
                && options.contains("ext4"),
            "{options}"
        );
        fs::write(machine.var("keep"), "kept").unwrap();

        machine.unmount().unwrap();
        assert!(!machine.disk.status().borrow().var_mounted);
        machine.unmount().expect("twice is fine");

        let second = machine.mount(Takeover::Wipe).unwrap();
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
        let error = machine.mount(Takeover::Refuse).unwrap_err();
        assert!(
            error.contains(&machine.device) && error.contains("ext2/3/4") && error.contains("wipe"),
            "{error}"
        );
        run("sync", &[]);
        assert!(
            before == fs::read(machine.image()).unwrap(),
            "not a byte has changed"
        );
        let dry = block_on(machine.disk.dry_run(&machine.spec(Takeover::Wipe)))
            .unwrap()
            .unwrap()
            .to_string();
        assert!(dry.contains("DESTROYING an ext2/3/4 filesystem"), "{dry}");
        run("sync", &[]);
        assert!(
            before == fs::read(machine.image()).unwrap(),
            "a dry run is dry"
        );
        assert!(machine.mount(Takeover::Wipe).unwrap().fresh);
    });
}

#[test]
fn state_is_found_without_a_config() {
    isolated("state_is_found_without_a_config", NAMESPACES, || {
        let machine = Machine::new();
        block_on(machine.disk.find_state(None)).unwrap();
        assert_eq!(machine.disk.state(), None, "a blank disk has none");
        machine.mount(Takeover::Refuse).unwrap();
        let state = machine.disk.state().unwrap().to_owned();
        fs::write(state.join("config.yaml"), "kept").unwrap();
        machine.unmount().unwrap();
        assert_eq!(machine.disk.state(), None);

        let after_reboot = machine.again();
        block_on(after_reboot.find_state(None)).unwrap();
        assert_eq!(after_reboot.state(), Some(state.as_path()));
        assert_eq!(fs::read(state.join("config.yaml")).unwrap(), b"kept");
        // A config that names no disk keeps the one that was found.
        let nothing = DiskSpec {
            disk: None,
            takeover: Takeover::Refuse,
        };
        block_on(after_reboot.mount(&nothing)).unwrap();
        let status = after_reboot.status().borrow().clone();
        assert_eq!(
            status.var.as_deref(),
            Some(Path::new(&machine.partition(EPHEMERAL)))
        );
        // A restarted machined takes over the mounts.
        let restarted = machine.again();
        restarted.adopt();
        let adopted = restarted.status().borrow().clone();
        assert_eq!(
            (adopted.var, adopted.state, adopted.disk),
            (status.var, status.state, status.disk)
        );
        block_on(restarted.unmount(Users::MustBeGone)).unwrap();
    });
}

#[test]
fn of_two_disks_the_one_that_was_started_from_is_used() {
    let name = "of_two_disks_the_one_that_was_started_from_is_used";
    isolated(name, NAMESPACES, || {
        let (machine, other) = (Machine::new(), Machine::new());
        for made in [&machine, &other] {
            made.mount(Takeover::Refuse).unwrap();
            made.unmount().unwrap();
        }
        let efi = block_on(machine.disk.efi_partition()).unwrap();
        let started_from = Some(efi.partition.guid);

        // From here on the machine sees both disks.
        drop(paths(machine.directory.path(), Some(&other.device)));
        let both = machine.again();
        let refused = block_on(both.find_state(None)).unwrap_err().to_string();
        assert!(refused.contains("each hold a STATE partition"), "{refused}");
        block_on(both.find_state(started_from)).unwrap();
        let found = both.status().borrow().disk.clone();
        assert_eq!(found.as_deref(), Some(Path::new(&machine.device)));
        // Not even a config that may wipe leads to the other machine's disk.
        let planned = block_on(both.dry_run(&other.spec(Takeover::Wipe)));
        let refused = planned.unwrap_err().to_string();
        assert!(refused.contains(&machine.device) && refused.contains(&other.device));
        block_on(both.unmount(Users::MustBeGone)).unwrap();
    });
}

#[test]
fn a_disk_image_that_was_written_gets_its_other_partitions() {
    isolated(
        "a_disk_image_that_was_written_gets_its_other_partitions",
        NAMESPACES,
        || {
            let machine = Machine::new();
            let written = [
                "--new=1:1M:+128M",
                "--typecode=1:ef00",
                "--change-name=1:EFI",
                "--new=2:0:+24M",
                "--typecode=2:8300",
                "--change-name=2:STATE",
            ];
            run("sgdisk", &[&written[..], &[&machine.device]].concat());
            let esp = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .open(machine.image())
                .unwrap();
            let boot_assets = [0xAB; 512];
            esp.write_all_at(&boot_assets, 1 << 20).unwrap();
            block_on(machine.disk.find_state(None)).unwrap();
            let status = machine.mount(Takeover::Refuse).unwrap();
            assert!(status.fresh && status.state.is_some(), "{status:?}");
            let mut kept = [0; 512];
            esp.read_exact_at(&mut kept, 1 << 20).unwrap();
            assert_eq!(kept, boot_assets);
            assert!(run("sgdisk", &["--verify", &machine.device]).contains("No problems found"));
        },
    );
}

/// Returns whether these bytes are anywhere on the disk.
fn holds(machine: &Machine, bytes: &[u8]) -> bool {
    run("sync", &[]);
    let image = fs::read(machine.image()).unwrap();
    image.windows(bytes.len()).any(|window| window == bytes)
}

#[test]
fn what_is_wiped_cannot_be_read_any_more() {
    isolated("what_is_wiped_cannot_be_read_any_more", NAMESPACES, || {
        let (data, secret) = (
            b"data on EPHEMERAL 7d31".as_slice(),
            b"secret on STATE 90c2".as_slice(),
        );
        let machine = Machine::new();
        machine.mount(Takeover::Refuse).unwrap();
        fs::write(machine.var("data"), data).unwrap();
        fs::write(machine.disk.state().unwrap().join("secret"), secret).unwrap();
        let only_var = Wipe::Partitions(BTreeSet::from([Label::Ephemeral]));
        let busy = block_on(machine.disk.wipe(only_var.clone())).unwrap_err();
        assert!(busy.to_string().contains("cannot open"), "{busy}");

        machine.unmount().unwrap();
        assert!(holds(&machine, data) && holds(&machine, secret));
        block_on(machine.disk.wipe(only_var)).unwrap();
        assert!(!holds(&machine, data) && holds(&machine, secret));
        assert!(machine.mount(Takeover::Refuse).unwrap().fresh);
        machine.unmount().unwrap();

        block_on(machine.disk.wipe(Wipe::Disk)).unwrap();
        let left = fs::read(machine.image()).unwrap();
        assert!(left.iter().all(|byte| *byte == 0));
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
        let error = machine.mount(Takeover::Wipe).unwrap_err();
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
        let small = machine.mount(Takeover::Refuse).unwrap().size;
        fs::write(machine.var("keep"), "kept").unwrap();
        machine.unmount().unwrap();
        fs::OpenOptions::new()
            .write(true)
            .open(machine.image())
            .unwrap()
            .set_len(2 * SIZE)
            .unwrap();
        run("losetup", &["--set-capacity", &machine.device]);
        let grown = machine.mount(Takeover::Refuse).unwrap();
        assert_eq!(grown.size, small + SIZE);
        assert!(!grown.fresh);
        assert_eq!(fs::read_to_string(machine.var("keep")).unwrap(), "kept");
        // The test in a machine (tests/e2e/disk.rs) checks that the filesystem grows too: a container may not grow one.
        assert!(run("sgdisk", &["--verify", &machine.device]).contains("No problems found"));
    });
}

#[test]
fn a_lost_primary_table_is_repaired() {
    isolated("a_lost_primary_table_is_repaired", NAMESPACES, || {
        let machine = Machine::new();
        machine.mount(Takeover::Refuse).unwrap();
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
        assert!(!machine.mount(Takeover::Refuse).unwrap().fresh);
        assert_eq!(fs::read_to_string(machine.var("keep")).unwrap(), "kept");
        assert!(run("sgdisk", &["--verify", &machine.device]).contains("No problems found"));
    });
}

/// Writes to a partition that is not mounted.
fn overwrite(partition: &str, at: u64, bytes: &[u8]) {
    let device = fs::OpenOptions::new().write(true).open(partition).unwrap();
    device.write_all_at(bytes, at).unwrap();
    device.sync_all().unwrap();
}

fn size_of(partition: &str) -> u64 {
    run("blockdev", &["--getsize64", partition])
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn a_partition_whose_mkfs_was_interrupted_gets_a_filesystem() {
    isolated(
        "a_partition_whose_mkfs_was_interrupted_gets_a_filesystem",
        NAMESPACES,
        || {
            let machine = Machine::new();
            machine.mount(Takeover::Refuse).unwrap();
            machine.unmount().unwrap();
            // As after a power cut during mkfs: everything is there but the superblock, which comes last, and the mark is still there.
            let partition = machine.partition(EPHEMERAL);
            overwrite(&partition, 0, &[0; 4096]);
            let mark = b"INSTAR: THIS PARTITION IS TO BE MADE ANEW\n";
            let tail = size_of(&partition) - 4096;
            overwrite(&partition, tail, mark);
            assert!(machine.mount(Takeover::Refuse).unwrap().fresh);
            fs::write(machine.var("keep"), "kept").unwrap();
            machine.unmount().unwrap();
            // The mark has gone with the new filesystem: a superblock that is lost later is no reason to make it anew.
            overwrite(&partition, 0, &[0; 4096]);
            assert!(!machine.mount(Takeover::Refuse).unwrap().fresh);
            assert_eq!(fs::read_to_string(machine.var("keep")).unwrap(), "kept");
        },
    );
}

#[test]
fn what_nobody_knows_is_left_as_it_is() {
    isolated("what_nobody_knows_is_left_as_it_is", NAMESPACES, || {
        let machine = Machine::new();
        machine.mount(Takeover::Refuse).unwrap();
        machine.unmount().unwrap();
        let partition = machine.partition(EPHEMERAL);
        let garbage = vec![0xA5; usize::try_from(size_of(&partition)).unwrap()];
        overwrite(&partition, 0, &garbage);
        let before = fs::read(&partition).unwrap();
        // "wipe" in a config does not apply to partitions that are ours.
        for takeover in [Takeover::Refuse, Takeover::Wipe] {
            let error = machine.mount(takeover).unwrap_err();
            assert!(
                error.contains(&partition)
                    && error.contains("reset --system-labels-to-wipe EPHEMERAL"),
                "{error}"
            );
            machine.unmount().unwrap();
        }
        assert!(
            before == fs::read(&partition).unwrap(),
            "a byte has changed"
        );
        let only_var = Wipe::Partitions(BTreeSet::from([Label::Ephemeral]));
        block_on(machine.disk.wipe(only_var)).unwrap();
        assert!(machine.mount(Takeover::Refuse).unwrap().fresh);
    });
}

#[test]
fn an_older_filesystem_in_the_place_of_a_new_partition_is_not_found_again() {
    let test = "an_older_filesystem_in_the_place_of_a_new_partition_is_not_found_again";
    isolated(test, NAMESPACES, || {
        let machine = Machine::new();
        machine.mount(Takeover::Refuse).unwrap();
        fs::write(machine.var("old"), "old").unwrap();
        machine.unmount().unwrap();
        // The state of a disk after a reset that a power cut interrupted early, or after `wipefs`.
        let end = size_of(&machine.device) - (1 << 20);
        for at in [0, end] {
            overwrite(&machine.device, at, &[0; 1 << 20]);
        }
        assert!(machine.mount(Takeover::Refuse).unwrap().fresh);
        assert!(!machine.var("old").exists());
    });
}

#[test]
fn a_damaged_filesystem_is_repaired() {
    isolated("a_damaged_filesystem_is_repaired", NAMESPACES, || {
        is_repaired(Machine::new());
    });
}

/// There a filesystem that says that it is clean is not checked before the mount.
#[test]
fn a_damaged_filesystem_is_repaired_in_a_later_generation() {
    isolated(
        "a_damaged_filesystem_is_repaired_in_a_later_generation",
        NAMESPACES,
        || {
            let mut machine = Machine::new();
            machine.disk = machine.again().in_generation(2);
            is_repaired(machine);
        },
    );
}

fn is_repaired(machine: Machine) {
    machine.mount(Takeover::Refuse).unwrap();
    fs::write(machine.var("keep"), "kept").unwrap();
    machine.unmount().unwrap();
    let partition = machine.partition(EPHEMERAL);
    // A superblock whose checksum does not fit.
    let device = File::options().write(true).open(&partition).unwrap();
    device.write_all_at(b"other", 1024 + 0x78).unwrap();
    device.sync_all().unwrap();
    assert!(machine.mount(Takeover::Refuse).unwrap().var_mounted);
    assert!(Path::new(&machine.var("keep")).exists());
    machine.unmount().unwrap();
    // The -p of e2fsck does not repair a cleared root directory.
    run("debugfs", &["-w", "-R", "clri <2>", &partition]);
    assert!(machine.mount(Takeover::Refuse).unwrap().var_mounted);
    assert!(Path::new(&machine.var("lost+found")).exists());
}

#[test]
fn a_busy_var_names_its_holder() {
    isolated("a_busy_var_names_its_holder", NAMESPACES, || {
        let machine = Machine::new();
        machine.mount(Takeover::Refuse).unwrap();
        let open = File::create(machine.var("open")).unwrap();
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
        let disk = OwnedDisk::new(paths(directory.path(), None));
        let var = directory.path().join("var");
        let before = fs::metadata(&var).unwrap().dev();
        let nothing = DiskSpec {
            disk: None,
            takeover: Takeover::Refuse,
        };
        block_on(disk.mount(&nothing)).unwrap();
        assert_ne!(fs::metadata(&var).unwrap().dev(), before);
        let status = disk.status().borrow().clone();
        assert!(
            status.var_mounted
                && status.var.is_none()
                && status.description.contains("lost with a reboot"),
            "{status:?}"
        );
        block_on(disk.unmount(Users::MustBeGone)).unwrap();
    });
}

#[test]
fn var_in_the_domain_is_the_same_for_the_next_generation() {
    let test = "var_in_the_domain_is_the_same_for_the_next_generation";
    isolated(test, NAMESPACES, || {
        let directory = tempfile::tempdir().unwrap();
        let paths = paths(directory.path(), None);
        fs::create_dir(&paths.domain).unwrap();
        in_memory().mount(&paths.domain).unwrap();
        let nothing = DiskSpec {
            disk: None,
            takeover: Takeover::Refuse,
        };
        for (generation, users) in [Users::MayStay, Users::MustBeGone].into_iter().enumerate() {
            let disk = OwnedDisk::new(paths.clone());
            block_on(disk.mount(&nothing)).unwrap();
            let status = disk.status().borrow().clone();
            assert_eq!(status.fresh, generation == 0, "{status:?}");
            assert_eq!(paths.var.join("kept").exists(), generation > 0);
            fs::write(paths.var.join("kept"), "by the one before").unwrap();
            block_on(disk.unmount(users)).unwrap();
            assert!(!is_mounted(&paths.var));
        }
    });
}

fn in_memory() -> Filesystem<'static> {
    Filesystem {
        kind: "tmpfs",
        source: Path::new("none"),
        flags: MountFlags::empty(),
        options: "size=64k",
    }
}

fn is_mounted(target: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.contains(&format!(" {} ", target.display()))
}

#[test]
fn a_file_that_somebody_has_open_keeps_no_place_occupied() {
    let test = "a_file_that_somebody_has_open_keeps_no_place_occupied";
    isolated(test, NAMESPACES, || {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("made/here");
        let mount = TransientMount::new(in_memory(), &target).unwrap();
        assert!(is_mounted(&target));
        let open = File::create(target.join("file")).unwrap();
        drop(mount);
        assert!(!is_mounted(&target), "it is in the way of the next");
        let again = TransientMount::new(in_memory(), &target).unwrap();
        assert!(!target.join("file").exists(), "it is the previous one");
        drop((open, again));
    });
}

#[test]
fn what_was_left_by_one_that_died_goes() {
    isolated("what_was_left_by_one_that_died_goes", NAMESPACES, || {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("here");
        for _ in 0..2 {
            std::mem::forget(TransientMount::new(in_memory(), &target).unwrap());
        }
        drop(TransientMount::new(in_memory(), &target).unwrap());
        assert!(!is_mounted(&target));
    });
}
