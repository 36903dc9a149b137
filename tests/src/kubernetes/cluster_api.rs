//! Managers of Cluster API, and the extension server `instar-capi-extension`, as processes of this host.
//!
//! There is no cert-manager: webhooks are called at this host, and all certificates are of the control plane's authority. A manager shows the
//! extension a client certificate, and the extension asks for one.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use instar_qemu::{OwnedProcess, PortLease, lease_port};

use super::control_plane::ControlPlane;
use super::programs::{folder, program};
use crate::run_command::run;
use crate::scratch::Scratch;
use crate::workspace::host_program;

/// The namespace and the service account of the extension, as its manifest has them.
const NAMESPACE: &str = "instar-system";
const ACCOUNT: &str = "instar-capi-extension";
/// Timeout for the manager's webhooks to answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Managers of Cluster API, until they are dropped.
#[derive(Debug)]
pub struct ClusterApi {
    core: Manager,
    control_planes: Option<Manager>,
}

impl ClusterApi {
    /// Installs the definitions, and starts the core manager as the cluster's administrator.
    pub fn start(plane: &ControlPlane, scratch: &Scratch) -> Result<Self> {
        let gates = "RuntimeSDK=true,InPlaceUpdates=true";
        install_definitions(plane, "bootstrap")?;
        let core = Manager::start(plane, scratch, "core", gates)?;
        let control_planes = None;
        Ok(Self {
            core,
            control_planes,
        })
    }

    /// Starts the manager of kubeadm's control planes beside it. That of their bootstrap is left out: the tests play it.
    pub fn start_control_planes(&mut self, plane: &ControlPlane, scratch: &Scratch) -> Result<()> {
        let manager = Manager::start(plane, scratch, "controlplane", "InPlaceUpdates=true")?;
        self.control_planes = Some(manager);
        Ok(())
    }

    /// Their logs up to now.
    pub fn log(&self) -> Result<String> {
        let managers = [Some(&self.core), self.control_planes.as_ref()];
        let logs = managers.into_iter().flatten().map(|manager| {
            std::fs::read_to_string(&manager.log).context("cannot read a manager's log")
        });
        logs.collect()
    }
}

/// One manager.
#[derive(Debug)]
struct Manager {
    process: OwnedProcess,
    log: PathBuf,
    health: PortLease,
    _webhooks: PortLease,
}

impl Manager {
    /// Installs what belongs to it, and starts it.
    fn start(plane: &ControlPlane, scratch: &Scratch, part: &str, gates: &str) -> Result<Self> {
        let folder = scratch.below(&format!("cluster-api-{part}"))?;
        let (webhooks, health) = (lease_port()?, lease_port()?);
        install(plane, part, webhooks.port(), &WITH_WEBHOOKS)?;
        plane.serving_certificate(&folder, &format!("webhooks-{part}"))?;
        let caller = plane.credentials(&format!("extension-caller-{part}"), None)?;
        let log = folder.join(&format!("cluster-api-{part}.log"));
        let output = std::fs::File::create(&log).context("cannot make the manager's log")?;
        let name = match part {
            "core" => "cluster-api-core",
            _ => "cluster-api-kubeadm",
        };
        let mut command = Command::new(program(name)?);
        command
            .arg(format!("--feature-gates={gates}"))
            .args([
                "--diagnostics-address=127.0.0.1:0",
                "--insecure-diagnostics",
            ])
            .arg(format!("--health-addr=127.0.0.1:{}", health.port()))
            .arg("--v=4")
            .arg(format!("--webhook-port={}", webhooks.port()))
            .arg(format!("--webhook-cert-dir={}", folder.path().display()))
            .arg("--runtime-extension-client-cert-file")
            .arg(caller.certificate)
            .arg("--runtime-extension-client-key-file")
            .arg(caller.key)
            .env("KUBECONFIG", plane.admin_kubeconfig())
            // Of a pod it would be the pod's own.
            .env("POD_NAMESPACE", "default")
            .env("POD_NAME", part)
            .env("POD_UID", part)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let process = OwnedProcess::start(command, None);
        let manager = Self {
            process: process.with_context(|| format!("cannot run {name}"))?,
            log,
            health,
            _webhooks: webhooks,
        };
        manager.wait_until_ready()?;
        Ok(manager)
    }

    fn wait_until_ready(&self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while !is_ready(self.health.port()).unwrap_or_default() {
            let ended = self.process.ended();
            let log = self.log.display();
            ensure!(
                ended.is_none(),
                "a manager of Cluster API has ended: see {log}"
            );
            ensure!(
                Instant::now() < until,
                "a manager of Cluster API is not ready: see {log}"
            );
            std::thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

/// Whether the manager at this port says that it is ready.
fn is_ready(health: u16) -> Result<bool> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, health))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.starts_with("HTTP/1.0 200"))
}

const WITH_WEBHOOKS: [&str; 3] = [
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

/// Installs the definitions of a part whose manager does not run: nobody asks for their older versions.
fn install_definitions(plane: &ControlPlane, part: &str) -> Result<()> {
    install(plane, part, 1, &["CustomResourceDefinition"])
}

/// Installs objects of these kinds for a manager whose webhooks are at this port of this host.
fn install(plane: &ControlPlane, part: &str, port: u16, kinds: &[&str]) -> Result<()> {
    let name = format!("cluster-api-{part}");
    let file = folder().join(format!("{name}.yaml"));
    let all = std::fs::read_to_string(&file);
    let all = all.with_context(|| format!("run `build/kubernetes-peers`: {}", file.display()))?;
    let is_wanted = |object: &&str| {
        let kind = object.lines().find_map(|line| line.strip_prefix("kind: "));
        kind.is_some_and(|kind| kinds.contains(&kind))
    };
    let authority = STANDARD.encode(plane.authority_certificate());
    let objects = all.split("\n---\n").filter(is_wanted);
    let objects: Vec<String> = objects
        .map(|it| called_here(it, port, &authority))
        .collect();
    // They are too large for what `apply` notes in an annotation.
    plane.kubectl().create(&name, &objects.join("\n---\n"))?;
    // A manager ends if it does not find its own kinds.
    let wait = ["wait", "crd", "--all", "--for=condition=Established"];
    plane.kubectl().run(&wait).map(drop)
}

/// An object whose webhooks are called at this host instead of a service: of its three lines the path is left.
fn called_here(object: &str, port: u16, authority: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut is_service = false;
    for line in object.lines() {
        let text = line.trim_start();
        let indent = &line[..line.len() - text.len()];
        match text.strip_prefix("path: ") {
            _ if text == "service:" && follows_client_config(&lines) => is_service = true,
            Some(path) if is_service => {
                let indent = &indent[2..];
                lines.push(format!("{indent}url: https://127.0.0.1:{port}{path}"));
                lines.push(format!("{indent}caBundle: {authority}"));
                is_service = false;
            }
            _ if is_service => {}
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

/// Schemas have fields of this name, too.
fn follows_client_config(lines: &[String]) -> bool {
    lines
        .last()
        .is_some_and(|line| line.trim() == "clientConfig:")
}

/// The extension server, until it is dropped; it comes back at the same address.
#[derive(Debug)]
pub struct CapiExtension {
    process: Option<OwnedProcess>,
    port: PortLease,
    folder: Scratch,
    kubeconfig: PathBuf,
    authority: PathBuf,
    starts: u32,
}

impl CapiExtension {
    /// Installs what the extension's manifest has, but for the Deployment, and starts it by its service account's token.
    pub fn start(plane: &ControlPlane, scratch: &Scratch) -> Result<Self> {
        let manifest = run(Command::new(host_program(ACCOUNT)?).arg("manifest"))?;
        let objects = manifest.split("---\n").filter(|object| {
            let left_out = [
                "kind: Deployment",
                "kind: Service\n",
                "kind: ExtensionConfig",
            ];
            !left_out.iter().any(|kind| object.contains(kind))
        });
        let objects: Vec<&str> = objects.collect();
        plane
            .kubectl()
            .apply("capi-extension", &objects.join("---\n"))?;
        let folder = scratch.below("extension")?;
        plane.serving_certificate(&folder, "extension")?;
        let mut extension = Self {
            process: None,
            port: lease_port()?,
            kubeconfig: plane.kubeconfig_of(&folder, NAMESPACE, ACCOUNT)?,
            authority: plane.authority_file(),
            folder,
            starts: 0,
        };
        extension.restart()?;
        Ok(extension)
    }

    /// Gives it another certificate, while it runs.
    pub fn renew(&self, plane: &ControlPlane) -> Result<()> {
        plane.serving_certificate(&self.folder, "extension")
    }

    /// Where its hooks are.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port.port())
    }

    /// Ends it at once, as a power cut does.
    pub fn kill(&mut self) {
        if let Some(process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts it, and waits until it listens.
    pub fn restart(&mut self) -> Result<()> {
        self.kill();
        self.starts += 1;
        let log = self.folder.join(&format!("extension-{}.log", self.starts));
        let output = std::fs::File::create(&log).context("cannot make the extension's log")?;
        let mut command = Command::new(host_program(ACCOUNT)?);
        command
            .args([
                "serve",
                "--listen",
                &format!("127.0.0.1:{}", self.port.port()),
            ])
            .arg("--certificates")
            .arg(self.folder.path())
            .arg("--client-authority")
            .arg(&self.authority)
            .env("KUBECONFIG", &self.kubeconfig)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let process = OwnedProcess::start(command, None).context("cannot run the extension")?;
        self.process = Some(process);
        let until = Instant::now() + PATIENCE;
        let address = (Ipv4Addr::LOCALHOST, self.port.port());
        while TcpStream::connect(address).is_err() {
            ensure!(
                Instant::now() < until,
                "it does not listen: {}",
                self.log()?
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Its log up to now, over all starts.
    pub fn log(&self) -> Result<String> {
        let logs = (1..=self.starts).map(|start| {
            let log = self.folder.join(&format!("extension-{start}.log"));
            std::fs::read_to_string(log).context("cannot read the extension's log")
        });
        logs.collect()
    }
}
