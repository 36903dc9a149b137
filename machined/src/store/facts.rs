//! The types of facts that are published.

use serde::Serialize;

use super::Resource;

/// The stage of the machine; the values are those of the wire (`MachineStatusEvent.MachineStage`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineStage {
    /// From the start of machined to the end of the boot sequence.
    Booting = 1,
    /// A version is being put on the machine's disk.
    Installing = 2,
    /// It has no machine config and waits for one.
    Maintenance = 3,
    /// The boot has ended.
    Running = 4,
    /// It is going down for a reboot.
    Rebooting = 5,
    /// It is going down to power off.
    #[serde(rename = "shutting down")]
    ShuttingDown = 6,
    /// The content of its disk is being erased.
    Resetting = 7,
    /// An upgrade has begun to change the machine.
    Upgrading = 8,
}

impl MachineStage {
    /// Returns the stage as a phrase, as in "the machine is rebooting".
    pub fn doing(self) -> &'static str {
        match self {
            MachineStage::Booting => "booting",
            MachineStage::Installing => "installing",
            MachineStage::Maintenance => "in maintenance mode",
            MachineStage::Running => "running",
            MachineStage::Rebooting => "rebooting",
            MachineStage::ShuttingDown => "shutting down",
            MachineStage::Resetting => "resetting",
            MachineStage::Upgrading => "upgrading",
        }
    }
}

/// Stage and readiness of the machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MachineStatus {
    /// The machine's stage.
    pub stage: MachineStage,
    /// Whether everything that the config asks for is there.
    pub ready: bool,
    /// Conditions that are not met, as (name, reason).
    pub unmet: Vec<(String, String)>,
}

impl MachineStatus {
    /// The id of the only instance.
    pub const ID: &'static str = "machine";
    /// The name of the condition that the machine is a node of its cluster as its config asks for.
    pub const KUBERNETES: &'static str = "kubernetes";

    /// Whether the machine runs and is ready, whatever its cluster says of it: a version of the OS is judged by that alone.
    pub fn is_ready_by_itself(&self) -> bool {
        let mut unmet = self.unmet.iter();
        self.stage == MachineStage::Running && unmet.all(|(name, _)| name == Self::KUBERNETES)
    }
}

impl Resource for MachineStatus {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "MachineStatuses.runtime.talos.dev";
}

/// Whether a service runs and whether it is healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceFact {
    /// Its process runs.
    pub running: bool,
    /// Its health check passes; also true for a running service without one.
    pub healthy: bool,
    /// No health check has finished yet.
    pub unknown: bool,
}

impl Resource for ServiceFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "Services.v1alpha1.talos.dev";
}

/// The state of the network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Default)]
#[serde(rename_all = "camelCase")]
pub struct NetworkFact {
    /// A link has an address that is not a loopback one.
    pub address_ready: bool,
    /// There is a default route.
    pub connectivity_ready: bool,
    /// The hostname is set.
    pub hostname_ready: bool,
    /// `/etc/resolv.conf` and `/etc/hosts` are written.
    pub etc_files_ready: bool,
}

impl Resource for NetworkFact {
    const NAMESPACE: &'static str = "network";
    const TYPE: &'static str = "NetworkStatuses.net.talos.dev";
}

/// Whether the clock has been set from a time server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClockFact {
    /// A server has answered and the clock agrees with it.
    pub synced: bool,
    /// The config turns time sync off.
    pub sync_disabled: bool,
}

impl Resource for ClockFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "TimeStatuses.v1alpha1.talos.dev";
}

/// The config with which the machine booted last is in force, because its server did not bring one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StaleConfig {
    /// Why.
    pub reason: String,
}

impl StaleConfig {
    /// The id of the only instance.
    pub const ID: &'static str = "config";
}

impl Resource for StaleConfig {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "StaleConfigs.instar.dev";
}

/// A problem that keeps the machine from being ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The problem, in one line.
    pub reason: String,
}

impl Resource for Problem {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "Diagnostics.runtime.talos.dev";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_does_not_make_a_machine_unready_by_itself() {
        let of = |stage, unmet: &[&str]| MachineStatus {
            stage,
            ready: unmet.is_empty(),
            unmet: unmet
                .iter()
                .map(|name| ((*name).to_owned(), "x".to_owned()))
                .collect(),
        };
        for (status, expected) in [
            (of(MachineStage::Running, &[]), true),
            (of(MachineStage::Running, &["kubernetes"]), true),
            (of(MachineStage::Running, &["kubernetes", "network"]), false),
            (of(MachineStage::Upgrading, &[]), false),
        ] {
            assert_eq!(status.is_ready_by_itself(), expected, "{status:?}");
        }
    }
}
