//! The facts that conditions follow from.

use std::time::{Duration, SystemTime};

/// All facts. The default is a machine with nothing wrong.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The running version.
    pub running: String,
    /// How long this machined has run.
    pub up_for: Duration,
    /// The last upgrade, if it failed.
    pub failed_upgrade: Option<Failure>,
    /// Releases of the channel that have failed here and are newer than the running version.
    pub held: Vec<HeldRelease>,
    /// The last look at the channel's list, if it failed.
    pub failed_look: Option<Look>,
    /// Changes that wait for a person.
    pub approvals: Vec<Approval>,
    /// The version that a reboot starts.
    pub prepared: Option<String>,
    /// The versions on the disk that would not start, the one that the next boot takes first.
    pub unbootable: Vec<Unbootable>,
    /// The room on /var.
    pub var: Option<Room>,
    /// Bytes of memory that programs can still get, and all.
    pub memory: Option<(u64, u64)>,
    /// Services that the kernel has killed for their memory within the last hour, each with the time.
    pub killed: Vec<(String, SystemTime)>,
    /// Services that end again and again.
    pub failing: Vec<FailedService>,
    /// Services whose health check fails.
    pub unhealthy: Vec<Unhealthy>,
    /// The clock, if servers are to be asked.
    pub clock: Option<Clock>,
    /// The API's certificate, if it is one of an authority or ought to be.
    pub certificate: Option<Certificate>,
    /// The trouble of the machine as a node of its cluster.
    pub node: Option<NodeTrouble>,
    /// Whether there is a machine config.
    pub has_config: bool,
    /// Why the config with which the machine booted last is used instead of its server's.
    pub stale_config: Option<String>,
    /// The machine's problems: the subject, the text, and the time.
    pub problems: Vec<(String, String, SystemTime)>,
    /// STATE.
    pub state: StateDisk,
}

/// An upgrade that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Why.
    pub reason: String,
    /// When.
    pub at: SystemTime,
}

/// A release that is not tried again.
#[derive(Debug, Clone)]
pub struct HeldRelease {
    /// Its version.
    pub version: String,
    /// Why.
    pub why: String,
}

/// A look at the channel's list that failed.
#[derive(Debug, Clone)]
pub struct Look {
    /// The channel.
    pub channel: String,
    /// Why.
    pub error: String,
}

/// A change that waits until a person approves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Approval {
    /// A release of the channel, by its version.
    Release(String),
    /// The image of a container, by the container's name.
    Image(String),
    /// A bundle, by the place where it lies.
    Bundle(String),
}

/// A version on the disk that would not start.
#[derive(Debug, Clone)]
pub struct Unbootable {
    /// The version.
    pub version: String,
    /// Whether the next boot takes it.
    pub is_next: bool,
    /// Whether the firmware has revoked it. If not, its UKI is damaged.
    pub is_revoked: bool,
    /// Why.
    pub why: String,
}

/// Room on a filesystem.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// Bytes that can still be written.
    pub available: u64,
    /// All bytes.
    pub size: u64,
    /// Files that can still be made.
    pub files_free: u64,
    /// Limit on files; 0 for a filesystem without one.
    pub files: u64,
}

/// A service that ends again and again.
#[derive(Debug, Clone)]
pub struct FailedService {
    /// Its name.
    pub name: String,
    /// Runs in a row that ended too early.
    pub failures: u32,
    /// The time of the first of these ends that is remembered.
    pub since: SystemTime,
    /// The last of them, in words.
    pub last: String,
}

/// A service whose health check fails.
#[derive(Debug, Clone)]
pub struct Unhealthy {
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
    /// Since when.
    pub since: SystemTime,
}

/// A clock that servers set.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    /// Whether a server has answered since machined started.
    pub synced: bool,
    /// The time since the last answer, by this clock.
    pub silent_for: Option<Duration>,
    /// Why the last attempt failed.
    pub problem: Option<String>,
}

/// Why a machine is no node as its config asks for.
#[derive(Debug, Clone)]
pub enum NodeTrouble {
    /// Its own cluster waits for its begin.
    ClusterNotBegun,
    /// The cluster does not call it ready, or its services do not run.
    NotReady(String),
    /// Nobody can tell: the cluster's API does not answer.
    ClusterUnreachable(String),
    /// It is ready, and something of its config is not in force.
    Incomplete(String),
}

/// By whom the API's certificate is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signer {
    /// By itself: by the machine or its control plane, hours before its end.
    Automatic,
    /// By a person.
    Person,
    /// Nobody has signed it.
    Nobody,
}

/// The API's certificate.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// By whom.
    pub signer: Signer,
    /// The time that is left; zero after its end.
    pub left: Option<Duration>,
    /// The warning about it, if there is one already.
    pub warning: Option<String>,
}

/// STATE, the partition of the machine's records.
#[derive(Debug, Clone, Default)]
pub enum StateDisk {
    /// There is none.
    #[default]
    Absent,
    /// It can be written as far as is known.
    Writable,
    /// The kernel has made it read-only.
    ReadOnly,
    /// The last record could not be written.
    Failed(String),
}
