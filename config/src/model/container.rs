//! Containers as the config describes them.

use std::{fmt, str::FromStr, time::Duration};

use super::{
    AbsolutePath, ByteSize, Capabilities, ContainerName, ContainerNetwork, HealthProbe,
    ImageReference, Millicores, Mount, SecurityProfile,
};

/// A container to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name; unique.
    pub name: ContainerName,
    /// Its image.
    pub image: ImageReference,
    /// Instead of the image's ENTRYPOINT; None keeps it.
    pub entrypoint: Option<Vec<String>>,
    /// Instead of the image's CMD; None keeps it.
    pub args: Option<Vec<String>>,
    /// Instead of the image's working directory.
    pub working_dir: Option<AbsolutePath>,
    /// Instead of the user of the image's USER.
    pub uid: Option<u32>,
    /// Instead of the group of the image's USER.
    pub gid: Option<u32>,
    /// Added to the image's environment; the same name wins over the image's.
    pub environment: Vec<EnvVar>,
    /// Filesystems, in order.
    pub mounts: Vec<Mount>,
    /// What it may do.
    pub security: Security,
    /// Which network it sees.
    pub network: ContainerNetwork,
    /// Share of all CPUs' time; None is no limit.
    pub cpu_limit: Option<Millicores>,
    /// Memory; None is no limit.
    pub memory_limit: Option<ByteSize>,
    /// What must be there before it starts.
    pub depends_on: DependsOn,
    /// Whether it does its work; None: it is healthy while it runs.
    pub health: Option<ContainerHealth>,
    /// What becomes of it in an upgrade without a reboot.
    pub upgrade_strategy: UpgradeStrategy,
}

impl Container {
    /// Whether another one would run just like this one: what upgrades do to it counts when there is one.
    #[must_use]
    pub fn runs_like(&self, other: &Self) -> bool {
        let other = Self {
            upgrade_strategy: self.upgrade_strategy,
            ..other.clone()
        };
        *self == other
    }
}

/// What becomes of a container in an upgrade without a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpgradeStrategy {
    /// It lives on if it can, and else is started again.
    #[default]
    Keep,
    /// It is started again.
    Restart,
}

/// An environment variable. The value may be a secret, and `Debug` doesn't show it.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl FromStr for EnvVar {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !text.contains('\0') => Ok(Self {
                name: name.to_owned(),
                value: value.to_owned(),
            }),
            _ => Err("write an environment variable as `NAME=value`"),
        }
    }
}

impl fmt::Debug for EnvVar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}=[redacted]", self.name)
    }
}

/// What a container may do.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// Where to begin.
    pub profile: SecurityProfile,
    /// Changes to that; names without `CAP_`, upper case.
    pub capabilities: Capabilities,
}

/// What must be there before a container starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DependsOn {
    /// Paths of the host that must exist.
    pub paths: Vec<AbsolutePath>,
    /// States of the network.
    pub networks: Vec<NetworkCondition>,
    /// The clock must be synchronised.
    pub time: bool,
    /// Containers that must run.
    pub containers: Vec<ContainerName>,
}

/// A state of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkCondition {
    /// There is an address.
    Addresses,
    /// There is a default route.
    Connectivity,
    /// The host name is set.
    Hostname,
    /// /etc/hosts and /etc/resolv.conf are written.
    EtcFiles,
}

/// How to find out whether a container does its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerHealth {
    /// What to try.
    pub check: HealthProbe,
    /// Time between two tries.
    pub interval: Duration,
    /// How long one try may take.
    pub timeout: Duration,
    /// Failures in a row that make it unhealthy; at least 1.
    pub failure_threshold: u32,
    /// An upgrade is only kept once this container is healthy.
    pub required: bool,
}
