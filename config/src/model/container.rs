//! Containers as the config describes them.

use std::{fmt, str::FromStr, time::Duration};

use super::{
    AbsolutePath, ByteSize, Capabilities, ContainerName, ContainerNetwork, HealthProbe,
    ImageReference, Millicores, Mount, SecurityProfile, Window,
};

/// A container to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its name; unique.
    pub name: ContainerName,
    /// Its image.
    pub image: ImageReference,
    /// Replaces the image's ENTRYPOINT; `None` keeps it.
    pub entrypoint: Option<Vec<String>>,
    /// Replaces the image's CMD; `None` keeps it.
    pub args: Option<Vec<String>>,
    /// Replaces the image's working directory.
    pub working_dir: Option<AbsolutePath>,
    /// Replaces the user in the image's USER.
    pub uid: Option<u32>,
    /// Replaces the group in the image's USER.
    pub gid: Option<u32>,
    /// Added to the image's environment; takes precedence over a variable of the same name.
    pub environment: Vec<EnvVar>,
    /// Filesystems, in order.
    pub mounts: Vec<Mount>,
    /// Its rights.
    pub security: Security,
    /// The network that it sees.
    pub network: ContainerNetwork,
    /// Limit on CPU time; `None` is no limit.
    pub cpu_limit: Option<Millicores>,
    /// Limit on memory; `None` is no limit.
    pub memory_limit: Option<ByteSize>,
    /// The conditions for its start.
    pub depends_on: DependsOn,
    /// Its health check; `None`: it is healthy while it runs.
    pub health: Option<ContainerHealth>,
    /// The time that it has to end after SIGTERM.
    pub stop_timeout: Duration,
    /// Whether it is restarted in an upgrade without a reboot.
    pub upgrade_strategy: UpgradeStrategy,
    /// How its image's name is followed; `None`: only an operator's restart looks it up anew.
    pub updates: Option<ContainerUpdates>,
}

impl Container {
    /// The time that a container has to end if the config names none.
    pub const STOP_TIMEOUT: Duration = Duration::from_secs(10);

    /// Whether the other container would run just like this one; its end, its upgrades and updates do not matter.
    #[must_use]
    pub fn runs_like(&self, other: &Self) -> bool {
        let other = Self {
            stop_timeout: self.stop_timeout,
            upgrade_strategy: self.upgrade_strategy,
            updates: self.updates.clone(),
            ..other.clone()
        };
        *self == other
    }
}

/// Whether a container is restarted in an upgrade without a reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UpgradeStrategy {
    /// It survives if it can, otherwise it is restarted.
    #[default]
    Keep,
    /// It is restarted.
    Restart,
}

/// How a container follows its image's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerUpdates {
    /// The images that are applied without an approval.
    pub apply: ApplyUpdates,
    /// The interval between two looks at the registry.
    pub interval: Duration,
    /// How long it has to be up before a new image is kept.
    pub healthy: Duration,
    /// When a new image may be started; `None`: at any time.
    pub window: Option<Window>,
}

/// Which images behind a name are started without an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ApplyUpdates {
    /// Rebuilds: the version is the same.
    #[default]
    Rebuilds,
    /// None.
    Approved,
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

/// The rights of a container.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// The profile to start from.
    pub profile: SecurityProfile,
    /// Changes to the profile's capabilities; names without `CAP_`, upper case.
    pub capabilities: Capabilities,
}

/// The conditions for a container's start.
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

/// The health check of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerHealth {
    /// The probe.
    pub check: HealthProbe,
    /// Time between two probes.
    pub interval: Duration,
    /// Timeout of one probe.
    pub timeout: Duration,
    /// Failures in a row that make it unhealthy; at least 1.
    pub failure_threshold: u32,
    /// Whether an upgrade is only kept once this container is healthy.
    pub required: bool,
}
