//! Decides from an installer image's labels whether this machine can take it, before anything is disturbed.

use std::collections::BTreeMap;
use std::str::FromStr;

use anyhow::Context as _;

use instar_pki::rootfs_signature;

use crate::statistics;
use crate::values::{Version, VersionRanges};

use super::running::RunningSystem;
use super::wrong_tag::WrongTag;

/// Version of the protocol between init and machined that this machine's init speaks.
const PROTOCOL: u32 = instar_init_protocol::VERSION;

/// The labels of an installer image (docs/contracts.md).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// As in `v0.2.0`.
    pub version: Version,
    /// As in `amd64`.
    pub architecture: String,
    /// BLAKE3 of the kernel image.
    pub kernel: blake3::Hash,
    /// BLAKE3 of init.
    pub init: blake3::Hash,
    /// BLAKE3 of the root filesystem.
    pub rootfs: blake3::Hash,
    /// Size of the root filesystem.
    pub rootfs_bytes: u64,
    /// The signature of the root filesystem and the version, if there is one.
    pub rootfs_signature: Option<String>,
    /// The oldest version that a machine takes once this one was committed there.
    pub floor: Option<Version>,
    /// The versions that this one may follow; None: all.
    pub upgrades_from: Option<VersionRanges>,
    /// The kernel's release, as `uname -r` shows it; images of older releases do not say it.
    pub kernel_release: Option<String>,
}

/// How the new version is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// As the next generation under the running kernel and init.
    Soft,
    /// By a reboot, for this reason.
    Reboot(&'static str),
}

/// Where the image is unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Under /var, with the other images.
    Var,
    /// In memory, because /var is full.
    Memory,
}

/// The way to run a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// How the version is started.
    pub path: Route,
    /// Where the image is unpacked.
    pub room: Room,
}

/// The machine's free resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resources {
    /// Bytes of memory that can be had without swapping.
    pub memory: u64,
    /// Bytes free where images are unpacked.
    pub disk: u64,
    /// Free inodes there.
    pub inodes: u64,
    /// Whether the image store is in memory too.
    pub store_in_memory: bool,
}

/// Why an image is refused. Nothing has been changed.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refusal {
    /// A label is missing: this is not an installer image, or a damaged one.
    #[error("the image has no label {0:?}: it is no Instar installer image")]
    NoLabel(&'static str),
    /// A label has an invalid value.
    #[error("the image's label {label:?} has the value {value:?}, which is not {expected}")]
    BadLabel {
        /// Its name.
        label: &'static str,
        /// Its value.
        value: String,
        /// The expected form.
        expected: &'static str,
    },
    /// The image is for another architecture.
    #[error("the image is for {image}, this machine is {machine}")]
    WrongArchitecture {
        /// The image's architecture.
        image: String,
        /// This machine's architecture.
        machine: String,
    },
    /// The image's machined needs a newer init than this one.
    #[error(
        "the image needs version {image} of init's protocol, this init speaks {init}; upgrade with a reboot over a version in between"
    )]
    WrongProtocol {
        /// The version of the protocol that the image needs.
        image: u32,
        /// The version of the protocol that this init speaks.
        init: u32,
    },
    /// Too little memory for two root filesystems at once.
    #[error(
        "the upgrade needs {needed} MiB of memory, {available} MiB are free; stop a service first"
    )]
    NotEnoughMemory {
        /// MiB needed.
        needed: u64,
        /// MiB free.
        available: u64,
    },
    /// Too little room to unpack the image, under /var and in memory.
    #[error(
        "the image needs {needed} MiB and {INSTALLER_FILES} inodes under /var, {available} MiB and {inodes} are free; nor is there \
         memory for it: of {memory_needed} MiB, {memory} MiB are free; remove an image or files of a user volume, or stop a service first"
    )]
    NotEnoughRoom {
        /// MiB needed.
        needed: u64,
        /// MiB free.
        available: u64,
        /// Inodes free.
        inodes: u64,
        /// MiB of memory needed to unpack there.
        memory_needed: u64,
        /// MiB of memory free.
        memory: u64,
    },
    /// This image failed here before.
    #[error(
        "version {version} of this very image failed here before ({reason}); use force to try it again"
    )]
    FailedBefore {
        /// Its version.
        version: String,
        /// The reason of the failure.
        reason: String,
    },
    /// The version is below the machine's floor.
    #[error(
        "version {version} is below this machine's floor {floor}, which {set_by} set when it ran here; take {floor} or a newer version, or \
         use force"
    )]
    BelowFloor {
        /// Its version.
        version: String,
        /// The floor.
        floor: String,
        /// The release that set the floor.
        set_by: String,
    },
    /// The version may be below the machine's floor.
    #[error(
        "version {version} is not known to be {running} or newer, and this machine's floor, below which no version is taken, cannot be read \
         ({why}); take {running} or a newer version, or use force"
    )]
    FloorUnread {
        /// Its version.
        version: String,
        /// The running version.
        running: String,
        /// Why the floor cannot be read.
        why: String,
    },
    /// The image does not name the running version among those that it may follow.
    #[error(
        "version {version} may follow only {ranges}, and {running} runs here; upgrade to one of these first, or use force"
    )]
    MayNotFollow {
        /// Its version.
        version: String,
        /// The versions that it may follow.
        ranges: String,
        /// The running version.
        running: String,
    },
    /// The node's base image has no modules for the version's kernel: after the reboot kubelet would not start.
    #[error(
        "version {version} has the kernel {release}, and the base image of Kubernetes, {base}, has modules for {kernels} only; set \
         `image` of KubernetesConfig to the base of {version} first, or use force"
    )]
    NoNodeModules {
        /// Its version.
        version: String,
        /// The release of its kernel.
        release: String,
        /// The base image in force.
        base: String,
        /// The kernels that the base image has modules for.
        kernels: String,
    },
    /// The image is behind a tag of another release.
    #[error("{0}, or use force")]
    WrongTag(WrongTag),
}

/// f_type of a tmpfs (statfs(2)).
const TMPFS: i64 = 0x0102_1994;
/// An installer image has some twenty files; its container needs a few more.
pub const INSTALLER_FILES: u64 = 512;
/// Bytes of memory that machined and the new generation's start need beside the root filesystem.
const MEMORY_RESERVE: u64 = 48 << 20;

impl Resources {
    /// Measures the machine: /proc/meminfo and the filesystem of /var.
    pub fn now() -> anyhow::Result<Self> {
        let memory = statistics::memory()?;
        let var = rustix::fs::statfs("/var").context("look at the filesystem of /var")?;
        Ok(Resources {
            memory: memory.memavailable << 10,
            disk: var.f_bavail.saturating_mul(var.f_bsize.unsigned_abs()),
            // Some filesystems do not count inodes.
            inodes: if var.f_files == 0 {
                u64::MAX
            } else {
                var.f_ffree
            },
            store_in_memory: var.f_type == TMPFS,
        })
    }

    /// Whether an image of `unpacked_bytes` fits under /var.
    pub fn have_room(&self, unpacked_bytes: u64) -> bool {
        self.disk >= unpacked_bytes && self.inodes >= INSTALLER_FILES
    }
}

impl Candidate {
    /// Reads the labels of an image's config.
    pub fn from_labels(labels: &BTreeMap<String, String>) -> Result<Self, Refusal> {
        let get = |label: &'static str| labels.get(label).cloned().ok_or(Refusal::NoLabel(label));
        let digest = |label: &'static str| {
            let value = get(label)?;
            blake3::Hash::from_hex(&value).map_err(|_| Refusal::BadLabel {
                label,
                value,
                expected: "a BLAKE3 digest in hexadecimal",
            })
        };
        let number = |label: &'static str| {
            let value = get(label)?;
            value.parse::<u64>().map_err(|_| Refusal::BadLabel {
                label,
                value,
                expected: "a number",
            })
        };
        let version = parsed(get("dev.instar.version")?, "dev.instar.version", A_VERSION)?;
        let (floor, upgrades_from) = release_rules(labels, &version)?;
        let protocol = number("dev.instar.protocol")?;
        let protocol = u32::try_from(protocol).unwrap_or(u32::MAX);
        if protocol > PROTOCOL {
            return Err(Refusal::WrongProtocol {
                image: protocol,
                init: PROTOCOL,
            });
        }
        Ok(Candidate {
            version,
            architecture: get("dev.instar.architecture")?,
            kernel: digest("dev.instar.kernel.blake3")?,
            init: digest("dev.instar.init.blake3")?,
            rootfs: digest("dev.instar.rootfs.blake3")?,
            rootfs_bytes: number("dev.instar.rootfs.bytes")?,
            rootfs_signature: labels.get(rootfs_signature::LABEL).cloned(),
            floor,
            upgrades_from,
            kernel_release: labels.get("dev.instar.kernel.release").cloned(),
        })
    }
}

/// The form of a version in a label.
const A_VERSION: &str = "a version such as v1.2.3";

/// Parses a label's value.
fn parsed<T: FromStr>(
    value: String,
    label: &'static str,
    expected: &'static str,
) -> Result<T, Refusal> {
    value.parse().map_err(|_| Refusal::BadLabel {
        label,
        value,
        expected,
    })
}

/// Reads the labels with the rules between releases; an image needs none of them.
fn release_rules(
    labels: &BTreeMap<String, String>,
    version: &Version,
) -> Result<(Option<Version>, Option<VersionRanges>), Refusal> {
    let get = |label: &str| labels.get(label).cloned();
    let floor = get("dev.instar.floor").map(|value| {
        let floor: Version = parsed(value, "dev.instar.floor", A_VERSION)?;
        match floor <= *version {
            true => Ok(floor),
            false => Err(Refusal::BadLabel {
                label: "dev.instar.floor",
                value: floor.to_string(),
                expected: "the image's own version or an older one",
            }),
        }
    });
    let ranges = get("dev.instar.upgrades-from").map(|value| {
        let expected = "ranges of versions such as \">=v0.1.0 <v0.3.0 || v0.5.1\"";
        parsed(value, "dev.instar.upgrades-from", expected)
    });
    Ok((floor.transpose()?, ranges.transpose()?))
}

/// Decides whether and how the candidate can run here.
pub fn check(
    candidate: &Candidate,
    running: &RunningSystem,
    resources: Resources,
    unpacked_bytes: u64,
) -> Result<Plan, Refusal> {
    if candidate.architecture != running.architecture {
        return Err(Refusal::WrongArchitecture {
            image: candidate.architecture.clone(),
            machine: running.architecture.clone(),
        });
    }
    let room = match resources.have_room(unpacked_bytes) {
        true => Room::Var,
        false => Room::Memory,
    };
    // The installer hands the root filesystem over in memory, while the running one is still there.
    let in_store = if room == Room::Memory || resources.store_in_memory {
        unpacked_bytes
    } else {
        0
    };
    let needed = candidate
        .rootfs_bytes
        .saturating_add(in_store)
        .saturating_add(MEMORY_RESERVE);
    if resources.memory < needed {
        return Err(match room {
            Room::Var => Refusal::NotEnoughMemory {
                needed: mebibytes(needed),
                available: resources.memory >> 20,
            },
            Room::Memory => Refusal::NotEnoughRoom {
                needed: mebibytes(unpacked_bytes),
                available: resources.disk >> 20,
                inodes: resources.inodes,
                memory_needed: mebibytes(needed),
                memory: resources.memory >> 20,
            },
        });
    }
    let path = match (&running.kernel, candidate.init == running.init) {
        (Some(kernel), true) if *kernel == candidate.kernel => Route::Soft,
        (Some(_), true) => Route::Reboot("the kernel is another one"),
        (None, _) => Route::Reboot("the running kernel did not come with this version of Instar"),
        (_, false) => Route::Reboot("init is another one"),
    };
    Ok(Plan { path, room })
}

fn mebibytes(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn labels() -> BTreeMap<String, String> {
        let digest = |byte: u8| blake3::hash(&[byte]).to_hex().to_string();
        [
            ("dev.instar.version", "v0.2.0".to_owned()),
            ("dev.instar.architecture", "amd64".to_owned()),
            ("dev.instar.kernel.blake3", digest(1)),
            ("dev.instar.init.blake3", digest(2)),
            ("dev.instar.rootfs.blake3", digest(3)),
            ("dev.instar.rootfs.bytes", (20 << 20).to_string()),
            ("dev.instar.protocol", "1".to_owned()),
        ]
        .into_iter()
        .map(|(label, value)| (label.to_owned(), value))
        .collect()
    }

    fn running() -> RunningSystem {
        RunningSystem {
            version: "v0.1.0".into(),
            architecture: "amd64".into(),
            kernel: Some(blake3::hash(&[1])),
            init: blake3::hash(&[2]),
            floor: None,
        }
    }

    const PLENTY: Resources = Resources {
        memory: 1 << 30,
        disk: 1 << 30,
        inodes: 1 << 20,
        store_in_memory: false,
    };

    fn verdict(labels: &BTreeMap<String, String>, resources: Resources) -> Result<Plan, Refusal> {
        check(
            &Candidate::from_labels(labels)?,
            &running(),
            resources,
            40 << 20,
        )
    }

    #[test]
    fn the_same_kernel_and_init_need_no_reboot() {
        let plan = |path| {
            let room = Room::Var;
            Ok(Plan { path, room })
        };
        assert_eq!(verdict(&labels(), PLENTY), plan(Route::Soft));
        for (label, why) in [
            ("dev.instar.kernel.blake3", "the kernel is another one"),
            ("dev.instar.init.blake3", "init is another one"),
        ] {
            let mut labels = labels();
            labels.insert(label.into(), blake3::hash(b"new").to_hex().to_string());
            assert_eq!(verdict(&labels, PLENTY), plan(Route::Reboot(why)));
        }
    }

    #[test]
    fn every_label_is_needed_and_must_make_sense() {
        for label in labels().keys() {
            let mut without = labels();
            without.remove(label);
            assert!(
                matches!(verdict(&without, PLENTY), Err(Refusal::NoLabel(missing)) if missing == label)
            );
            let mut odd = labels();
            odd.insert(label.clone(), "../nonsense".into());
            assert!(verdict(&odd, PLENTY).is_err(), "{label}");
        }
    }

    #[test]
    fn the_rules_between_releases_are_read_and_must_make_sense() {
        let with = |label: &str, value: &str| {
            let mut labels = labels();
            labels.insert(label.to_owned(), value.to_owned());
            Candidate::from_labels(&labels)
        };
        let (floor, from) = ("dev.instar.floor", "dev.instar.upgrades-from");
        let plain = Candidate::from_labels(&labels()).unwrap();
        assert_eq!((plain.floor, plain.upgrades_from), (None, None));
        for own_or_older in ["v0.2.0", "v0.1.0", "v0.2.0-rc.1"] {
            let read = with(floor, own_or_older).unwrap().floor;
            assert_eq!(read, own_or_older.parse().ok());
        }
        let ranges = ">=v0.1.0 <v0.2.0 || v0.2.0-rc.1";
        let read = with(from, ranges).unwrap().upgrades_from;
        assert_eq!(read, ranges.parse().ok());
        for (label, value) in [
            (floor, ""),
            (floor, "0.1.0"),
            (floor, "latest"),
            // Nobody could install this very version again.
            (floor, "v0.2.1"),
            (from, ""),
            (from, "0.1.0"),
            (from, ">=v0.1.0,<v0.2.0"),
            (from, "v0.1.0 ||"),
        ] {
            let refusal = with(label, value).unwrap_err();
            assert!(
                matches!(&refusal, Refusal::BadLabel { label: bad, .. } if *bad == label),
                "{label} {value}: {refusal}"
            );
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_figures() {
        let mut other = labels();
        other.insert("dev.instar.architecture".into(), "arm64".into());
        assert!(matches!(
            verdict(&other, PLENTY),
            Err(Refusal::WrongArchitecture { .. })
        ));
        let mut newer = labels();
        newer.insert("dev.instar.protocol".into(), "2".into());
        assert_eq!(
            verdict(&newer, PLENTY),
            Err(Refusal::WrongProtocol { image: 2, init: 1 })
        );
        let small = Resources {
            memory: 60 << 20,
            ..PLENTY
        };
        assert_eq!(
            verdict(&labels(), small),
            Err(Refusal::NotEnoughMemory {
                needed: 68,
                available: 60
            })
        );
        let in_memory = Resources {
            memory: 100 << 20,
            store_in_memory: true,
            ..PLENTY
        };
        assert_eq!(
            verdict(&labels(), in_memory),
            Err(Refusal::NotEnoughMemory {
                needed: 108,
                available: 100
            })
        );
    }

    #[test]
    fn a_full_var_is_made_up_for_by_memory() {
        let no_bytes = Resources {
            disk: 1 << 20,
            ..PLENTY
        };
        let no_inodes = Resources {
            inodes: 3,
            ..PLENTY
        };
        for full in [no_bytes, no_inodes] {
            let plan = verdict(&labels(), full).unwrap();
            assert_eq!((plan.path, plan.room), (Route::Soft, Room::Memory));
        }
        let nowhere = Resources {
            memory: 100 << 20,
            ..no_bytes
        };
        assert_eq!(
            verdict(&labels(), nowhere),
            Err(Refusal::NotEnoughRoom {
                needed: 40,
                available: 1,
                inodes: 1 << 20,
                memory_needed: 108,
                memory: 100,
            })
        );
    }
}
