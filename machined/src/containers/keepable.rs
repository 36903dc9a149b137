//! Whether a container can outlive the generation that it was started in: no file or mount of it may belong to the generation, and beside the
//! containers the machine has to look freshly booted.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::host_files::{DOMAIN, has_domain};
use super::spec::ContainerSpec;
use crate::base::mount_table::mounts;
use crate::mounts::special_mounts;
use crate::values::MountOption;

/// Why a container ends with its generation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKeepable {
    /// The machine's init is too old to have a workload domain.
    #[error("this machine's init keeps no containers")]
    NoDomain,
    /// /var is in memory and new in each generation.
    #[error("/var is in memory that ends with the generation")]
    VarInMemory,
    /// A mount of it is shared with the generation, so mounts of the generation would come and go in the container.
    #[error("its mount at {0:?} is shared with the generation")]
    Shared(PathBuf),
    /// A mount of it has its source on a filesystem of the generation.
    #[error("it mounts {0:?}, which belongs to the generation")]
    OfTheGeneration(PathBuf),
    /// The source of a mount of it has been removed since its start, or cannot be looked at.
    #[error("it mounts {0:?}, which is not there any more")]
    SourceGone(PathBuf),
    /// A mount that it has got together with another one is of a filesystem of the generation.
    #[error("its mount at {0:?} belongs to the generation")]
    CameAlong(PathBuf),
    /// The table of its mounts cannot be read.
    #[error("its mounts cannot be read: {0}")]
    NotReadable(String),
    /// Block devices that a freshly booted machine does not have, or swaps, are in use: beside them init keeps no workload at all.
    #[error("{0} in use, which the next generation must not find")]
    DevicesInUse(String),
}

/// Limit on the devices that a reason names.
const NAMED_DEVICES: usize = 3;

/// Checks that a container can be kept.
///
/// # Errors
/// The first reason why it cannot.
pub fn keepable(spec: &ContainerSpec) -> Result<(), NotKeepable> {
    if !has_domain() {
        return Err(NotKeepable::NoDomain);
    }
    let device = |path: &Path| std::fs::metadata(path).map(|it| it.dev()).ok();
    let var = device(Path::new("/var"));
    // A filesystem without a disk has major number 0. A /var in memory lasts only as a part of the domain.
    let lasts = |var| rustix::fs::major(var) != 0 || Some(var) == device(Path::new(DOMAIN));
    if !var.is_some_and(lasts) {
        return Err(NotKeepable::VarInMemory);
    }
    for mount in &spec.mounts {
        if mount.options.contains(&MountOption::Rshared) {
            return Err(NotKeepable::Shared(mount.destination.as_path().to_owned()));
        }
    }
    // The kernel's own filesystems are the same in every generation.
    let lasting = ["/dev", "/proc", "/sys", "/sys/fs/cgroup"].map(|path| device(Path::new(path)));
    for (source, _) in spec.sources() {
        source_lasts(&source, device(&source), var, &lasting)?;
    }
    Ok(())
}

/// Checks that the source of a mount is on a filesystem that lasts: that of /var, or one of the `lasting` ones. `on`: its own; None if it is gone.
fn source_lasts(
    source: &Path,
    on: Option<u64>,
    var: Option<u64>,
    lasting: &[Option<u64>],
) -> Result<(), NotKeepable> {
    match on {
        None => Err(NotKeepable::SourceGone(source.to_owned())),
        on if on == var || lasting.contains(&on) => Ok(()),
        Some(_) => Err(NotKeepable::OfTheGeneration(source.to_owned())),
    }
}

/// Checks that no block device made by software and no swap is in use, beside machined's own. init compares the machine with a freshly booted
/// one, which has none, before it starts the next generation (`init/src/fingerprint.rs`): if it finds one, it ends all workloads, and reboots
/// if that does not help. It is init's list of facts that is repeated here.
///
/// # Errors
/// The devices that are in use.
pub fn no_foreign_devices(procfs: &Path, sysfs: &Path) -> Result<(), NotKeepable> {
    let mut found = foreign_devices(procfs, sysfs);
    if found.is_empty() {
        return Ok(());
    }
    let more = found.len().saturating_sub(NAMED_DEVICES);
    found.truncate(NAMED_DEVICES);
    if more > 0 {
        found.push(format!("{more} more"));
    }
    let verb = if found.len() == 1 { "is" } else { "are" };
    let told = format!("{} {verb}", found.join(", "));
    Err(NotKeepable::DevicesInUse(told))
}

fn foreign_devices(procfs: &Path, sysfs: &Path) -> Vec<String> {
    let table = std::fs::read_to_string(procfs.join("self/mountinfo")).unwrap_or_default();
    let mounted: Vec<String> = mounts(&table).map(|mount| mount.device).collect();
    let devices = std::fs::read_dir(sysfs.join("block"));
    let mut found: Vec<String> = devices
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|device| foreign(&device.path(), &mounted))
        .collect();
    found.sort();
    let swaps = std::fs::read_to_string(procfs.join("swaps")).unwrap_or_default();
    // The first line is the heading.
    let swaps = swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next());
    found.extend(swaps.map(|swap| format!("the swap {swap}")));
    found
}

/// Describes the device of this directory of sysfs, if the next generation must not find it. `mounted`: the devices of machined's own mounts.
fn foreign(device: &Path, mounted: &[String]) -> Option<String> {
    let name = device.file_name()?.to_string_lossy();
    let read = |file: &str| {
        let text = std::fs::read_to_string(device.join(file)).unwrap_or_default();
        text.trim().to_owned()
    };
    let made_of = match device.join("loop/backing_file").exists() {
        // The image of the root filesystem, and what machined unpacks: such a device goes with its mount.
        true if read("loop/autoclear") == "1" && mounted.contains(&read("dev")) => return None,
        true => read("loop/backing_file"),
        false if name.starts_with("dm-") => read("dm/name"),
        false if name.starts_with("md") => String::new(),
        false => return None,
    };
    Some(match made_of.as_str() {
        "" => format!("the block device {name}"),
        made_of => format!("the block device {name} ({made_of})"),
    })
}

/// Checks the mounts of a running container, by its first process. A mount of a host path brings along all that is mounted below it: /proc
/// brings the boot id, a file of the generation's /run, which would hold all of that memory for as long as the container runs.
///
/// # Errors
/// The first mount of a filesystem that ends with the generation.
pub fn mounts_are_keepable(pid: u32) -> Result<(), NotKeepable> {
    let table = std::fs::read_to_string(format!("/proc/{pid}/mountinfo"));
    let table = table.map_err(|error| NotKeepable::NotReadable(error.to_string()))?;
    let device = |path: &str| std::fs::metadata(path).map(|it| it.dev()).ok();
    let lasting = ["/var", DOMAIN, "/dev", "/proc", "/sys"].map(device);
    // With /dev its memory for programs that share it, and its terminals.
    let ending = ["/", "/etc", "/usr", "/run"].into_iter();
    let ending = ending.chain(special_mounts::targets()).map(device);
    let ending = ending.filter(|it| !lasting.contains(it)).flatten();
    let ending: Vec<String> = ending
        .map(|it| format!("{}:{}", rustix::fs::major(it), rustix::fs::minor(it)))
        .collect();
    match first_on(&table, &ending) {
        Some(at) => Err(NotKeepable::CameAlong(at)),
        None => Ok(()),
    }
}

/// Returns the place of the first mount of one of these devices.
fn first_on(table: &str, devices: &[String]) -> Option<PathBuf> {
    let mut mounts = mounts(table);
    let found = mounts.find(|mount| devices.contains(&mount.device));
    found.map(|mount| mount.at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a bind of /proc, the boot id that the generation shows is in the container.
    #[test]
    fn a_mount_that_came_along_is_found() {
        let own = "\
            101 90 0:50 / / rw - overlay overlay rw\n\
            102 101 0:51 / /dev rw - tmpfs tmpfs rw\n\
            103 101 254:2 /mnt/data /data rw - ext4 /dev/vda2 rw\n\
            104 101 0:4 / /host rw - proc proc rw\n";
        let boot_id = "105 104 0:24 /boot_id /host/sys/kernel/random/boot_id ro - tmpfs tmpfs rw\n";
        let ending = ["7:0".to_owned(), "0:24".to_owned()];
        assert_eq!(first_on(own, &ending), None);
        assert_eq!(
            first_on(&[own, boot_id].concat(), &ending),
            Some("/host/sys/kernel/random/boot_id".into())
        );
    }

    /// A file below /var that was removed after the start belonged to no generation.
    #[test]
    fn a_source_that_is_gone_is_told_as_gone() {
        let gone = NotKeepable::SourceGone("/var/gone".into());
        assert_eq!(
            gone.to_string(),
            r#"it mounts "/var/gone", which is not there any more"#
        );
        let (var, lasting) = (Some(1), [Some(2), None]);
        for (on, expected) in [
            (var, None),
            (Some(2), None),
            (None, Some(gone)),
            (
                Some(3),
                Some(NotKeepable::OfTheGeneration("/var/gone".into())),
            ),
        ] {
            let lasts = source_lasts(Path::new("/var/gone"), on, var, &lasting);
            assert_eq!(lasts.err(), expected, "{on:?}");
        }
    }

    /// A /proc and a /sys of a machine whose root filesystem is on loop0.
    struct Kernel(tempfile::TempDir);

    impl Kernel {
        fn new() -> std::io::Result<Self> {
            let kernel = Kernel(tempfile::tempdir()?);
            let mountinfo = "22 1 7:0 / / ro - squashfs /dev/loop0 ro\n\
                30 22 254:1 / /var rw - ext4 /dev/vda1 rw\n\
                31 22 7:4 / /mnt rw - ext4 /dev/loop4 rw\n";
            kernel.put("proc/self/mountinfo", mountinfo)?;
            kernel.put("proc/swaps", "Filename Type Size Used Priority\n")?;
            kernel.put("sys/block/vda/dev", "254:0\n")?;
            kernel.put("sys/block/loop1/dev", "7:1\n")?;
            kernel.attach(0, "/initramfs/fd/7", "1")?;
            Ok(kernel)
        }

        fn put(&self, path: &str, text: &str) -> std::io::Result<()> {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
            std::fs::write(path, text)
        }

        fn attach(&self, number: u32, file: &str, autoclear: &str) -> std::io::Result<()> {
            let device = format!("sys/block/loop{number}");
            self.put(&format!("{device}/dev"), &format!("7:{number}\n"))?;
            self.put(&format!("{device}/loop/backing_file"), &format!("{file}\n"))?;
            self.put(
                &format!("{device}/loop/autoclear"),
                &format!("{autoclear}\n"),
            )
        }

        fn why(&self) -> Option<String> {
            let checked =
                no_foreign_devices(&self.0.path().join("proc"), &self.0.path().join("sys"));
            checked.err().map(|why| why.to_string())
        }
    }

    #[test]
    fn a_device_that_init_would_find_ends_all_containers() -> std::io::Result<()> {
        let machine = Kernel::new()?;
        assert_eq!(
            machine.why(),
            None,
            "its own root filesystem, a disk, a free device"
        );
        let told = |devices: &str| {
            Some(format!(
                "{devices} in use, which the next generation must not find"
            ))
        };

        machine.attach(3, "/var/lib/volumes/data.img", "1")?;
        let data = "the block device loop3 (/var/lib/volumes/data.img)";
        assert_eq!(machine.why(), told(&format!("{data} is")));
        // Mounted here too, but it stays when the mount goes.
        machine.attach(4, "/var/other.img", "0")?;
        let both = format!("{data}, the block device loop4 (/var/other.img)");
        assert_eq!(machine.why(), told(&format!("{both} are")));

        for (path, text, device) in [
            (
                "sys/block/dm-0/dm/name",
                "data-lv\n",
                "the block device dm-0 (data-lv)",
            ),
            ("sys/block/md127/dev", "9:127\n", "the block device md127"),
            (
                "proc/swaps",
                "Filename Type Size Used Priority\n/var/swap file 1024 0 -2\n",
                "the swap /var/swap",
            ),
        ] {
            let machine = Kernel::new()?;
            machine.put(path, text)?;
            assert_eq!(machine.why(), told(&format!("{device} is")));
        }

        machine.put("sys/block/dm-0/dev", "253:0\n")?;
        machine.put("sys/block/md0/dev", "9:0\n")?;
        let why = machine.why().unwrap_or_default();
        assert!(why.contains(", 1 more are in use"), "{why}");
        Ok(())
    }

    #[test]
    fn the_mounts_of_this_process_can_be_read() {
        let own = mounts_are_keepable(std::process::id());
        assert!(!matches!(own, Err(NotKeepable::NotReadable(_))), "{own:?}");
        let none = mounts_are_keepable(u32::MAX);
        assert!(matches!(none, Err(NotKeepable::NotReadable(_))), "{none:?}");
    }
}
