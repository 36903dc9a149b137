//! The operator of a fleet, `instar-operator`, as a process of this host with the rights that its manifest gives.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use instar_qemu::{OwnedProcess, PortLease, lease_port};

use super::control_plane::ControlPlane;
use super::process_memory::ProcessMemory;
use crate::run_command::run;
use crate::scratch::Scratch;
use crate::workspace::{guest_program_file, host_program};

/// The namespace and the service account of the operator, as its manifest has them.
const NAMESPACE: &str = "instar-system";
const ACCOUNT: &str = "instar-operator";

/// An operator, until it is dropped or killed.
#[derive(Debug)]
pub struct FleetOperator {
    process: OwnedProcess,
    log: PathBuf,
    /// The client configuration by which configs are changed; not there until a test gives it.
    config_talosconfig: PathBuf,
    page: PortLease,
    /// The folder with the traces of its rollouts.
    traces: PathBuf,
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

    /// The same with the program that `make operator-image` built, which is the one that clusters run: for what it costs.
    pub fn start_as_built_for_its_image(
        plane: &ControlPlane,
        scratch: &Scratch,
        name: &str,
        client_config: &str,
    ) -> Result<Self> {
        let folder = scratch.below(name)?;
        let kubeconfig = plane.kubeconfig_of(&folder, NAMESPACE, ACCOUNT)?;
        let program = guest_program_file("instar-operator")?;
        Self::start_program(&program, &kubeconfig, &folder, name, client_config)
    }

    /// Starts an operator with this name in a folder of its own, by a kubeconfig.
    pub fn start_by(
        kubeconfig: &Path,
        folder: &Scratch,
        name: &str,
        client_config: &str,
    ) -> Result<Self> {
        let program = host_program("instar-operator")?;
        Self::start_program(&program, kubeconfig, folder, name, client_config)
    }

    fn start_program(
        program: &Path,
        kubeconfig: &Path,
        folder: &Scratch,
        name: &str,
        client_config: &str,
    ) -> Result<Self> {
        let client_config = folder.write("talosconfig", client_config)?;
        let config_talosconfig = folder.join("config-talosconfig");
        let log = folder.join("operator.log");
        let output = std::fs::File::create(&log).context("cannot make the operator's log")?;
        let page = lease_port()?;
        let traces = folder.join("traces");
        std::fs::create_dir_all(&traces).context("cannot make the folder for traces")?;
        let mut command = Command::new(program);
        command
            .args(["run", "--namespace", NAMESPACE, "--identity", name])
            .arg(format!("--page=127.0.0.1:{}", page.port()))
            .arg("--talosconfig")
            .arg(client_config)
            .arg("--config-talosconfig")
            .arg(&config_talosconfig)
            .arg("--traces")
            .arg(&traces)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let process = OwnedProcess::start(command, None).context("cannot run instar-operator")?;
        Ok(Self {
            process,
            log,
            config_talosconfig,
            page,
            traces,
        })
    }

    /// The address of its page, as in `127.0.0.1:4711`.
    pub fn page(&self) -> String {
        format!("127.0.0.1:{}", self.page.port())
    }

    /// Its memory.
    pub fn memory(&self) -> Result<ProcessMemory> {
        ProcessMemory::of(self.process.pid())
    }

    /// Gives it a client configuration by which it may change configs and replace machines.
    pub fn give_it_all_rights(&self, client_config: &str) -> Result<()> {
        std::fs::write(&self.config_talosconfig, client_config)
            .context("cannot write the client configuration for configs")
    }

    /// Ends it at once, as a power cut does.
    pub fn kill(self) {
        self.process.kill();
    }

    /// The file with the trace of a pool's rollouts.
    pub fn trace(&self, pool: &str) -> PathBuf {
        self.traces.join(format!("{pool}.jsonl"))
    }

    /// Its log up to now.
    pub fn log(&self) -> Result<String> {
        std::fs::read_to_string(&self.log).context("cannot read the operator's log")
    }
}
