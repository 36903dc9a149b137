//! Parts of a container as the config describes them.

use crate::{AbsolutePath, ByteSize, HostPort, HttpUrl, VolumeName};

/// A filesystem in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted.
    pub source: MountSource,
    /// Where, inside.
    pub destination: AbsolutePath,
    /// How; in the order given, without repetition. Memory is writable unless [`MountOption::ReadOnly`] is here, all else
    /// only if [`MountOption::ReadWrite`] is.
    pub options: Vec<MountOption>,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A user volume; the container waits for it. An unused one is given to the container's user.
    UserVolume(VolumeName),
    /// Memory; without a size the kernel's default, half of all.
    Tmpfs {
        /// At most this much.
        size: Option<ByteSize>,
    },
    /// A file or directory of the machine, which must exist.
    HostPath(AbsolutePath),
}

/// How something is mounted.
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
    /// All of them, with the words of the config.
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

    /// The word of the config, which is also the word of an OCI runtime.
    #[must_use]
    pub fn word(self) -> &'static str {
        Self::WORDS
            .iter()
            .find(|(_, option)| *option == self)
            .map_or("", |(word, _)| word)
    }
}

/// Where the rights of a container begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecurityProfile {
    /// A few capabilities, no devices, a writable root filesystem.
    #[default]
    Usual,
    /// No capabilities, no devices, root filesystem and /sys read-only.
    Restricted,
    /// Every capability and device, /sys writable.
    Privileged,
}

/// Changes to the capabilities of the profile. Names with or without `CAP_`, in any case; `ALL` is every one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Beside those of the profile.
    pub add: Vec<String>,
    /// Taken away after the additions, unless added by name where `ALL` is dropped.
    pub drop: Vec<String>,
}

/// Which network a container sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ContainerNetwork {
    /// A namespace of its own with a loopback link that is up, and nothing else.
    #[default]
    None,
    /// The machine's.
    Host,
}

/// What anybody on the machine can try to reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckTarget {
    /// A GET that answers 200 to 399.
    Http(HttpUrl),
    /// A connection that opens.
    Tcp(HostPort),
}

/// How a container shows that it does its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthProbe {
    /// It answers.
    Reach(CheckTarget),
    /// A program in the container ends with 0; never empty.
    Exec(Vec<String>),
}
