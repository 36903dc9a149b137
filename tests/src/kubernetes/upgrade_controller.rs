//! The real system-upgrade-controller, as a process of this host with the rights of its service account.

use std::process::Command;

use anyhow::Result;
use instar_qemu::OwnedProcess;

use super::control_plane::ControlPlane;
use super::peers::SYSTEM_UPGRADE_CONTROLLER;
use super::process_memory::ProcessMemory;
use super::programs::spawn;
use crate::scratch::Scratch;

/// The namespace and the service account of the controller, as its manifest has them.
const NAMESPACE: &str = "system-upgrade";
const ACCOUNT: &str = "system-upgrade";

/// A controller, until it is dropped.
#[derive(Debug)]
pub struct UpgradeController {
    process: OwnedProcess,
}

impl UpgradeController {
    /// Starts a controller by its service account's token. Its log is in the folder of this name.
    pub fn start(plane: &ControlPlane, scratch: &Scratch, name: &str) -> Result<Self> {
        let folder = scratch.below(name)?;
        let kubeconfig = plane.kubeconfig_of(&folder, NAMESPACE, ACCOUNT)?;
        let mut command = Command::new(SYSTEM_UPGRADE_CONTROLLER.program()?);
        // As its manifest has it. No job runs, so that its images are only names.
        command.envs([
            (
                "SYSTEM_UPGRADE_CONTROLLER_NAME",
                SYSTEM_UPGRADE_CONTROLLER.name,
            ),
            ("SYSTEM_UPGRADE_CONTROLLER_NAMESPACE", NAMESPACE),
            ("SYSTEM_UPGRADE_CONTROLLER_THREADS", "2"),
            ("SYSTEM_UPGRADE_JOB_ACTIVE_DEADLINE_SECONDS", "900"),
            ("SYSTEM_UPGRADE_JOB_BACKOFF_LIMIT", "99"),
            (
                "SYSTEM_UPGRADE_JOB_KUBECTL_IMAGE",
                "registry.example/kubectl:v1",
            ),
            ("SYSTEM_UPGRADE_JOB_PRIVILEGED", "true"),
            ("SYSTEM_UPGRADE_JOB_TTL_SECONDS_AFTER_FINISH", "900"),
            ("SYSTEM_UPGRADE_PLAN_POLLING_INTERVAL", "15m"),
        ]);
        command.env("SYSTEM_UPGRADE_CONTROLLER_KUBE_CONFIG", kubeconfig);
        let process = spawn(&folder, "system-upgrade-controller", command)?;
        Ok(Self { process })
    }

    /// Its memory.
    pub fn memory(&self) -> Result<ProcessMemory> {
        ProcessMemory::of(self.process.pid())
    }
}
