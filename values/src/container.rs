//! Parts of a container as the config describes them.

use crate::{AbsolutePath, ByteSize, HostPort, HttpUrl, VolumeName};

/// A filesystem in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The source of the mount.
    pub source: MountSource,
    /// The path in the container.
    pub destination: AbsolutePath,
    /// The options in the given order, without repetition. A tmpfs is writable unless [`MountOption::ReadOnly`] is here, all else only if
    /// [`MountOption::ReadWrite`] is.
    pub options: Vec<MountOption>,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A user volume; the container waits for it. An unused one is given to the container's user.
    UserVolume(VolumeName),
    /// A tmpfs; without a size the kernel's default applies, half of all memory.
    Tmpfs {
        /// The size limit.
        size: Option<ByteSize>,
    },
    /// A file or directory of the machine, which must exist.
    HostPath(AbsolutePath),
}

/// An option of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountOption {
    /// `ro`
    ReadOnly,
    /// `rw`
    ReadWrite,
    /// `noexec`
    NoExec,
    /// `nosuid`
    NoSuid,
    /// `nodev`
    NoDev,
    /// `noatime`
    NoAtime,
    /// `rbind`
    Rbind,
    /// `rshared`
    Rshared,
}

impl MountOption {
    /// All options, with their words in the config.
    pub const WORDS: [(&str, MountOption); 8] = [
        ("ro", Self::ReadOnly),
        ("rw", Self::ReadWrite),
        ("noexec", Self::NoExec),
        ("nosuid", Self::NoSuid),
        ("nodev", Self::NoDev),
        ("noatime", Self::NoAtime),
        ("rbind", Self::Rbind),
        ("rshared", Self::Rshared),
    ];

    /// The word in the config, which an OCI runtime uses too.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS
            .iter()
            .find(|(_, option)| *option == self)
            .map_or("", |(word, _)| word)
    }
}

/// The rights that a container starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecurityProfile {
    /// A few capabilities, no devices, a writable root filesystem.
    #[default]
    Usual,
    /// No capabilities, no devices, root filesystem and /sys read-only.
    Restricted,
    /// Every capability and device, /sys writable.
    Privileged,
    /// All that the machine itself may do, for the container in which Kubernetes runs. No container of a config has it.
    Node,
}

/// Changes to the capabilities of the profile. Names with or without `CAP_`, in any case; `ALL` stands for every one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Capabilities to add to those of the profile.
    pub add: Vec<String>,
    /// Capabilities to remove after the additions, except those added by name when `ALL` is dropped.
    pub drop: Vec<String>,
}

/// The network of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContainerNetwork {
    /// A namespace of its own, with only a loopback link, which is up.
    #[default]
    None,
    /// The machine's network.
    Host,
}

/// The target of a check that any process on the machine can make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckTarget {
    /// A GET must answer 200 to 399.
    Http(HttpUrl),
    /// A TCP connection must open.
    Tcp(HostPort),
}

/// The health probe of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthProbe {
    /// The target must answer.
    Reach(CheckTarget),
    /// A program in the container must exit with 0; never empty.
    Exec(Vec<String>),
}
