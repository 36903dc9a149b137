//! Conditions: the troubles of the machine, as a short list of types that monitoring can know, each with a reason in one word and a
//! message that says what to do.
//!
//! [`judge`] is a pure function: facts that the machine has anyway go in, and each type comes out with its trouble or without one.
//!
//! | type | true while | reasons |
//! | --- | --- | --- |
//! | `UpgradeFailed` | the newest entry in the history of upgrades is a failure | `PreviousVersionRuns` |
//! | `ReleaseHeld` | a release of the channel has failed here, and no newer one runs | `ReleaseFailed` |
//! | `ChannelUnreachable` | the last look at the channel's list has failed | `ListNotRead` |
//! | `ApprovalNeeded` | something waits for a person's word | `ApprovalNeeded` |
//! | `RebootNeeded` | a version is prepared, and a reboot starts it | `VersionPrepared` |
//! | `VersionUnbootable` | a version on the disk would not start | `UkiDamaged`, `UkiRevoked` |
//! | `DiskPressure` | less than 10 % of the bytes or 5 % of the files are left on /var | `BytesNearlyUsedUp`, `FilesNearlyUsedUp` |
//! | `MemoryPressure` | programs can get less than 5 % of the memory | `MemoryNearlyUsedUp` |
//! | `OutOfMemory` | the kernel has killed a service for its memory within the last hour | `ServiceKilled` |
//! | `CrashLoop` | a service has ended too early three times in a row, and has not run for a minute since | `ServiceKeepsFailing` |
//! | `ServiceUnhealthy` | the health check of a service fails | `HealthCheckFails` |
//! | `ClockNotSynchronized` | no time server has answered for two minutes after the start, or for three hours | `NoServerAnswers` |
//! | `CertificateEnds` | the API's certificate ends soon, has ended, or was never signed | `EndsSoon`, `NotRenewed`, `NotSigned` |
//! | `KubernetesNotReady` | the machine is no node of its cluster as its config asks for | `ClusterNotBegun`, `NodeNotReady`, `ClusterUnreachable`, `Incomplete` |
//! | `Degraded` | a part of the config is not in force | see `degraded` in `judge.rs` |
//! | `StateNotWritable` | STATE is read-only, or a record could not be written there | `ReadOnly`, `WriteFailed` |
//!
//! A type without a trouble is false. Types and reasons are a fixed set, so that a metric may have them as labels.

mod facts;
mod first_seen;
mod judge;
mod logged;
#[cfg(test)]
mod tests;

pub use facts::{
    Approval, Certificate, Clock, Facts, FailedService, Failure, HeldRelease, Look, NodeTrouble,
    Room, Signer, StateDisk, Unbootable, Unhealthy,
};
pub use first_seen::{FirstSeen, Known, Moment};
pub use judge::judge;
pub use logged::{Line, LoggedConditions};

use std::time::SystemTime;

/// A type of condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    /// The last upgrade failed.
    UpgradeFailed,
    /// A release of the channel has failed here and is held.
    ReleaseHeld,
    /// The channel's list cannot be read.
    ChannelUnreachable,
    /// Something waits for a person's word.
    ApprovalNeeded,
    /// A version waits for a reboot.
    RebootNeeded,
    /// A version on the disk would not start.
    VersionUnbootable,
    /// /var is nearly full.
    DiskPressure,
    /// Memory is nearly used up.
    MemoryPressure,
    /// The kernel has killed a service for its memory.
    OutOfMemory,
    /// A service ends again and again.
    CrashLoop,
    /// The health check of a service fails.
    ServiceUnhealthy,
    /// No time server answers.
    ClockNotSynchronized,
    /// The API's certificate ends soon.
    CertificateEnds,
    /// The machine is no node of its cluster as its config asks for.
    KubernetesNotReady,
    /// A part of the config is not in force.
    Degraded,
    /// STATE cannot be written.
    StateNotWritable,
}

impl Type {
    /// All types, in the order in which they are shown.
    pub const ALL: [Type; 16] = [
        Type::UpgradeFailed,
        Type::ReleaseHeld,
        Type::ChannelUnreachable,
        Type::ApprovalNeeded,
        Type::RebootNeeded,
        Type::VersionUnbootable,
        Type::DiskPressure,
        Type::MemoryPressure,
        Type::OutOfMemory,
        Type::CrashLoop,
        Type::ServiceUnhealthy,
        Type::ClockNotSynchronized,
        Type::CertificateEnds,
        Type::KubernetesNotReady,
        Type::Degraded,
        Type::StateNotWritable,
    ];

    /// Returns the name for clients.
    pub fn name(self) -> &'static str {
        match self {
            Type::UpgradeFailed => "UpgradeFailed",
            Type::ReleaseHeld => "ReleaseHeld",
            Type::ChannelUnreachable => "ChannelUnreachable",
            Type::ApprovalNeeded => "ApprovalNeeded",
            Type::RebootNeeded => "RebootNeeded",
            Type::VersionUnbootable => "VersionUnbootable",
            Type::DiskPressure => "DiskPressure",
            Type::MemoryPressure => "MemoryPressure",
            Type::OutOfMemory => "OutOfMemory",
            Type::CrashLoop => "CrashLoop",
            Type::ServiceUnhealthy => "ServiceUnhealthy",
            Type::ClockNotSynchronized => "ClockNotSynchronized",
            Type::CertificateEnds => "CertificateEnds",
            Type::KubernetesNotReady => "KubernetesNotReady",
            Type::Degraded => "Degraded",
            Type::StateNotWritable => "StateNotWritable",
        }
    }
}

/// Why a condition is true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// The reason in one word, of a fixed set.
    pub reason: &'static str,
    /// The trouble, and the action against it.
    pub message: String,
    /// The time of its begin, if a fact tells that.
    pub since: Option<SystemTime>,
}

/// A condition: false without a trouble.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Its type.
    pub kind: Type,
    /// Why it is true.
    pub trouble: Option<Trouble>,
}
