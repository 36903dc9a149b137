//! The one model that the rest of the daemon reads: what the config says, resolved, typed and checked.
//!
//! Plain data. Defaults are filled in where the config's own words have one; what depends on the machine (which disk, which
//! link) stays a description.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use instar_values::KernelParameter;

pub use instar_values::{
    AbsolutePath, ByteSize, Capabilities, CheckTarget, Cidr, ClientIdentity, Comparison,
    ContainerName, ContainerNetwork, DiskFields, DiskKind, DiskSelector, EndpointUrl, EtcFile,
    HealthProbe, HostPort, HostTls, Hostname, HostnamePolicy, HttpUrl, ImageReference,
    KernelModule, LinkName, Millicores, Mirror, MirrorEndpoint, Mount, MountOption, MountSource,
    RegistryAuth, RegistryHost, RouteSpec, Secret, SecurityProfile, SizeCondition, StaticHost,
    TimeServer, VolumeName, quantity,
};

mod container;
mod network;

pub use self::{container::*, network::*};

/// A whole machine config.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineConfig {
    /// The role of the machine.
    pub machine_type: MachineType,
    /// Whom the API trusts, and as whom it speaks.
    pub trust: Trust,
    /// What a machine without the CA's key shows to be given a certificate.
    pub token: Option<Secret>,
    /// What the machine calls itself.
    pub hostname: HostnamePolicy,
    /// Whether and where to install; None leaves the disks alone.
    pub install: Option<InstallSpec>,
    /// Containers to run, in the order of the file.
    pub containers: Vec<Container>,
    /// When a new version counts as healthy.
    pub upgrade_gate: UpgradeGate,
    /// Volumes that containers refer to, in the order of the file.
    pub user_volumes: Vec<UserVolume>,
    /// Where the time comes from.
    pub time: TimeSync,
    /// Where images come from.
    pub registries: Registries,
    /// Links, addresses, names.
    pub network: Network,
    /// Kernel parameters below /proc/sys, and their values.
    pub sysctls: BTreeMap<KernelParameter, String>,
    /// Kernel parameters below /sys, and their values.
    pub sysfs: BTreeMap<KernelParameter, String>,
    /// Modules to load, in the order of the file.
    pub kernel_modules: Vec<KernelModule>,
    /// Environment variables of services, and the proxies that images are pulled through.
    pub environment: BTreeMap<String, String>,
    /// Files below /etc, in the order of the file.
    pub etc_files: Vec<EtcFile>,
    /// Certificate authorities to trust beside the built-in ones.
    pub trusted_roots: Vec<TrustedRoots>,
}

/// The role of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineType {
    /// Holds the CA's key.
    ControlPlane,
    /// Doesn't.
    Worker,
}

/// Whom the API trusts, and as whom it speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// The CA's certificate, PEM.
    pub ca: String,
    /// The CA's private key, PEM; on workers absent.
    pub ca_key: Option<Secret>,
    /// Certificates of further CAs whose clients are accepted, PEM.
    pub accepted_cas: Vec<String>,
    /// Names and addresses for the server's certificate, beside the machine's own.
    pub cert_sans: Vec<String>,
}

/// Whether and how to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallSpec {
    /// Onto which disk.
    pub selector: DiskSelector,
    /// The installer's image; None installs what runs.
    pub image: Option<ImageReference>,
    /// Whether what is on the disk may go.
    pub wipe: bool,
    /// Whether to reboot when done.
    pub reboot: bool,
}

/// A volume for data that outlives a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserVolume {
    /// Its name; containers find it at `/var/mnt/<name>`.
    pub name: VolumeName,
    /// What it is made of.
    pub kind: UserVolumeKind,
}

/// What a user volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserVolumeKind {
    /// A directory on EPHEMERAL. The only one served.
    Directory,
    /// A partition of its own.
    Partition,
    /// A disk of its own.
    Disk,
}

impl UserVolumeKind {
    /// The word of the config.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Partition => "partition",
            Self::Disk => "disk",
        }
    }
}

/// Where the time comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeSync {
    /// Whether to synchronise at all.
    pub enabled: bool,
    /// NTP servers, in order; empty leaves the choice to the daemon.
    pub servers: Vec<TimeServer>,
    /// How long the boot waits for the first synchronisation; None waits as long as it takes.
    pub boot_timeout: Option<Duration>,
}

/// Certificate authorities to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedRoots {
    /// The document's name.
    pub name: String,
    /// One or more certificates, PEM.
    pub certificates: String,
}

/// Where images come from, by the registry's host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registries {
    /// Other places to ask first. The key `*` is for every registry without an entry of its own.
    pub mirrors: BTreeMap<RegistryHost, Mirror>,
    /// TLS towards a host.
    pub tls: BTreeMap<RegistryHost, HostTls>,
    /// Credentials for a host. Docker's `auth` has become user and password.
    pub auth: BTreeMap<RegistryHost, RegistryAuth>,
}

impl Registries {
    /// The mirror to use for a registry: its own, else that of `*`.
    #[must_use]
    pub fn mirror(&self, host: &str) -> Option<&Mirror> {
        self.mirrors.get(host).or_else(|| self.mirrors.get("*"))
    }
}

/// An address of a name server: port 53 unless said otherwise.
pub type Nameserver = SocketAddr;

/// When a new version counts as healthy, beside its containers with `required` health checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeGate {
    /// How long it may take.
    pub timeout: Duration,
    /// What must answer.
    pub probes: Vec<Probe>,
}

/// Something that must answer before a new version is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// For messages.
    pub name: String,
    /// What to try; a program is none, because a probe belongs to no container.
    pub target: CheckTarget,
    /// How long one try may take.
    pub timeout: Duration,
}
