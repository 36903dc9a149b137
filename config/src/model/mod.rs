//! The one model that the rest of the daemon reads: the content of the config, resolved, typed and checked.
//!
//! Plain data. Defaults are filled in where the config itself has one; values that depend on the machine (which disk, which link) stay a
//! description.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    str::FromStr,
    time::Duration,
};

use instar_values::KernelParameter;

pub use instar_values::{
    AbsolutePath, Bandwidth, ByteSize, Capabilities, CheckTarget, Cidr, ClientIdentity, Comparison,
    ContainerName, ContainerNetwork, Digest, DiskFields, DiskKind, DiskSelector, EndpointUrl,
    EtcFile, HealthProbe, HostPort, HostTls, Hostname, HostnamePolicy, HttpUrl, ImagePattern,
    ImageReference, ImageRule, KernelModule, LinkName, LogContent, LogDestination, LogEndpoint,
    MachineName, Millicores, Mirror, MirrorEndpoint, Mount, MountOption, MountSource, PublicKey,
    RegistryAuth, RegistryHost, RouteSpec, RuleEffect, Secret, SecurityProfile, SizeCondition,
    StaticHost, TimeOfDay, TimeServer, UtcOffset, VolumeName, Weekday, Window, quantity,
};

mod container;
mod kubernetes;
mod manifest;
mod network;
mod os_extension;
mod subnet_rule;
mod upgrade_follow;

pub use self::{
    container::*, kubernetes::*, manifest::*, network::*, os_extension::*, subnet_rule::*,
    upgrade_follow::*,
};

/// A whole machine config.
#[derive(Debug, Clone, PartialEq)]
pub struct MachineConfig {
    /// The role of the machine.
    pub machine_type: MachineType,
    /// The authorities that the API trusts, and its own identity.
    pub trust: Trust,
    /// The token by which a machine without the CA's key gets a certificate.
    pub token: Option<Secret>,
    /// The host of the cluster's endpoint, a name or an address: a machine without the CA's key asks there for a certificate.
    pub control_plane_host: Option<String>,
    /// The host name of the machine.
    pub hostname: HostnamePolicy,
    /// Whether and where to install; `None` leaves the disks alone.
    pub install: Option<InstallSpec>,
    /// Containers to run, in the order of the file.
    pub containers: Vec<Container>,
    /// The conditions under which a new version counts as healthy.
    pub upgrade_gate: UpgradeGate,
    /// The keys, one of which must have signed the root filesystem of an upgrade; empty: none is demanded, except under Secure Boot.
    pub upgrade_keys: Vec<PublicKey>,
    /// Volumes that containers refer to, in the order of the file.
    pub user_volumes: Vec<UserVolume>,
    /// The sources of the time.
    pub time: TimeSync,
    /// The sources of images.
    pub registries: Registries,
    /// Rules for images, in the order of the file: the first one that matches an image decides about it.
    pub image_rules: Vec<ImageRule>,
    /// Which bundles of images the machine takes.
    pub bundles: BundleRules,
    /// The images that are fetched ahead and kept.
    pub image_pins: ImagePins,
    /// The channel that the machine follows by itself; `None`: it is upgraded by callers alone.
    pub upgrade_follow: Option<UpgradeFollow>,
    /// The cluster that the machine is a node of, and the images that it is one by; `None`: it runs no Kubernetes.
    pub kubernetes: Option<Kubernetes>,
    /// Extensions of the machine itself, in the order of their names.
    pub os_extensions: Vec<OsExtension>,
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
    /// The receivers of logs, in the order of the file.
    pub log_destinations: Vec<LogDestination>,
    /// Where metrics are served; `None`: nowhere.
    pub metrics: Option<Metrics>,
}

impl MachineConfig {
    /// Whether Kubernetes runs in this container.
    #[must_use]
    pub fn is_of_kubernetes(&self, container: &Container) -> bool {
        self.kubernetes.is_some() && container.name.as_str() == Kubernetes::CONTAINER
    }
}

/// Where metrics are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metrics {
    /// The address and port.
    pub listen: SocketAddr,
    /// The callers that may read them.
    pub readers: MetricsReaders,
}

/// The callers that may read metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsReaders {
    /// Clients with a certificate that may call the API as a reader: over TLS.
    Certificate,
    /// Anybody who reaches the port: over HTTP without TLS.
    Anyone,
}

/// The role of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineType {
    /// Holds the CA's key.
    ControlPlane,
    /// Does not hold the CA's key.
    Worker,
}

/// The authorities that the API trusts, and its own identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    /// The CA's certificate, PEM.
    pub ca: String,
    /// The CA's private key, PEM; absent on workers.
    pub ca_key: Option<Secret>,
    /// Certificates of further CAs whose clients are accepted, PEM.
    pub accepted_cas: Vec<String>,
    /// Further names and addresses for the server's certificate, in addition to the machine's own.
    pub cert_sans: Vec<String>,
}

/// Whether and how to install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallSpec {
    /// The disk to install to.
    pub selector: DiskSelector,
    /// The installer's image; `None` installs the running version.
    pub image: Option<ImageReference>,
    /// Whether existing data on the disk may be erased.
    pub wipe: bool,
    /// Whether to reboot when done.
    pub reboot: bool,
}

/// A volume for data that outlives a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserVolume {
    /// Its name; containers find it at `/var/mnt/<name>`.
    pub name: VolumeName,
    /// Its storage.
    pub kind: UserVolumeKind,
}

/// The storage of a user volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UserVolumeKind {
    /// A directory on EPHEMERAL. The only kind that is served.
    Directory,
    /// A partition of its own.
    Partition,
    /// A disk of its own.
    Disk,
}

impl UserVolumeKind {
    /// The word in the config.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Partition => "partition",
            Self::Disk => "disk",
        }
    }
}

/// The sources of the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeSync {
    /// Whether to synchronise at all.
    pub enabled: bool,
    /// NTP servers, in order; empty leaves the choice to the daemon.
    pub servers: Vec<TimeServer>,
    /// How long the boot waits for the first synchronisation; `None`: without limit.
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

/// The sources of images, by the registry's host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Registries {
    /// Mirrors to ask first. The key `*` is for every registry without an entry of its own.
    pub mirrors: BTreeMap<RegistryHost, Mirror>,
    /// TLS settings for a host.
    pub tls: BTreeMap<RegistryHost, HostTls>,
    /// Credentials for a host. Docker's `auth` is already split into user and password.
    pub auth: BTreeMap<RegistryHost, RegistryAuth>,
}

/// Where images come from, and which servers are trusted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageSources {
    /// The registries.
    pub registries: Registries,
    /// Authorities for servers, in addition to the system's.
    pub trusted_roots: Vec<TrustedRoots>,
}

impl Registries {
    /// The mirror for a registry: its own, else that of `*`.
    #[must_use]
    pub fn mirror(&self, host: &str) -> Option<&Mirror> {
        self.mirrors.get(host).or_else(|| self.mirrors.get("*"))
    }
}

/// The images that are fetched ahead and kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImagePins {
    /// Their names, in the order of the file.
    pub images: Vec<ImageReference>,
    /// When they may be fetched; `None`: at any time.
    pub window: Option<Window>,
    /// The bandwidth that fetching them may use; `None`: all of it.
    pub bandwidth: Option<Bandwidth>,
}

/// Which bundles of images the machine takes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BundleRules {
    /// The digests of bundles whose images need no signature.
    pub approved: BTreeSet<Digest>,
    /// The treatment of a stick with a bundle.
    pub sticks: Sticks,
    /// The terminals at which a person is asked to approve the bundle of a stick.
    pub ask_at: BTreeSet<AskAt>,
    /// Whether a newer installer on a stick is installed.
    pub upgrade: bool,
    /// Whether a stick that asks for support data gets them.
    pub support: bool,
}

/// A terminal at which a person is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AskAt {
    /// The machine's own screen and keyboard.
    Screen,
    /// The serial consoles of the kernel's command line. Who reaches them may be far away.
    Serial,
}

impl FromStr for AskAt {
    type Err = UnknownTerminal;

    fn from_str(text: &str) -> Result<Self, UnknownTerminal> {
        match text {
            "screen" => Ok(AskAt::Screen),
            "serial" => Ok(AskAt::Serial),
            _ => Err(UnknownTerminal),
        }
    }
}

/// A word that names no terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `screen` or `serial`")]
pub struct UnknownTerminal;

/// The treatment of a stick with a bundle that is plugged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sticks {
    /// Its images are taken, if they are signed by a rule's key or the bundle is approved.
    #[default]
    Accept,
    /// Nothing.
    Ignore,
}

/// An address of a name server, with port 53 by default.
pub type Nameserver = SocketAddr;

/// The conditions under which a new version counts as healthy, in addition to containers with `required` health checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpgradeGate {
    /// Time limit for becoming healthy.
    pub timeout: Duration,
    /// The probes that must succeed.
    pub probes: Vec<Probe>,
}

/// A probe that must succeed before a new version is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The name for messages.
    pub name: String,
    /// The target; it cannot be a program, because a probe belongs to no container.
    pub target: CheckTarget,
    /// Timeout of one probe.
    pub timeout: Duration,
}
