//! The operator of a fleet, `instar-operator`, as a process of this host with the rights that its manifest gives.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use instar_qemu::{OwnedProcess, PortLease, lease_port};

use super::control_plane::ControlPlane;
use crate::run_command::run;
use crate::scratch::Scratch;
use crate::workspace::host_program;

/// The namespace and the service account of the operator, as its manifest has them.
const NAMESPACE: &str = "instar-system";
const ACCOUNT: &str = "instar-operator";

/// An operator, until it is dropped or killed.
#[derive(Debug)]
pub struct FleetOperator {
    process: OwnedProcess,
    log: PathBuf,
    page: PortLease,
}

/// Installs what the operator's manifest has, but for the Deployment: here the operator is a process beside the control plane.
pub fn install_fleet_operator(plane: &ControlPlane) -> Result<()> {
    let manifest = run(Command::new(host_program("instar-operator")?).arg("manifest"))?;
    let objects = manifest.split("---\n");
    let objects: Vec<&str> = objects
        .filter(|object| !object.contains("kind: Deployment"))
        .collect();
    plane.kubectl().apply("operator", &objects.join("---\n"))
}

impl FleetOperator {
    /// Starts an operator with this name, by its service account's token. The client configuration leads to the nodes.
    pub fn start(
        plane: &ControlPlane,
        scratch: &Scratch,
        name: &str,
        client_config: &str,
    ) -> Result<Self> {
        let folder = scratch.below(name)?;
        let kubeconfig = plane.kubeconfig_of(&folder, NAMESPACE, ACCOUNT)?;
        Self::start_by(&kubeconfig, &folder, name, client_config)
    }

    /// Starts an operator with this name in a folder of its own, by a kubeconfig.
    pub fn start_by(
        kubeconfig: &Path,
        folder: &Scratch,
        name: &str,
        client_config: &str,
    ) -> Result<Self> {
        let client_config = folder.write("talosconfig", client_config)?;
        let log = folder.join("operator.log");
        let output = std::fs::File::create(&log).context("cannot make the operator's log")?;
        let page = lease_port()?;
        let mut command = Command::new(host_program("instar-operator")?);
        command
            .args(["run", "--namespace", NAMESPACE, "--identity", name])
            .arg(format!("--page=127.0.0.1:{}", page.port()))
            .arg("--talosconfig")
            .arg(client_config)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let process = OwnedProcess::start(command, None).context("cannot run instar-operator")?;
        Ok(Self { process, log, page })
    }

    /// The address of its page, as in `127.0.0.1:4711`.
    pub fn page(&self) -> String {
        format!("127.0.0.1:{}", self.page.port())
    }

    /// Its memory, in MiB: all that is in RAM, its program's pages too.
    pub fn memory_mib(&self) -> Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.pid()))?;
        let mut lines = status.lines();
        let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
        let kib: u64 = kib.context("no VmRSS")?.trim().parse()?;
        Ok(kib / 1024)
    }

    /// Ends it at once, as a power cut does.
    pub fn kill(self) {
        self.process.kill();
    }

    /// What it has written up to now.
    pub fn log(&self) -> Result<String> {
        std::fs::read_to_string(&self.log).context("cannot read the operator's log")
    }
}
