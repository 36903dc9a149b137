//! The greeter of `tests/greeter` as a container of the node: it pulls it from the test's registry.

use anyhow::{Result, ensure};

use crate::http_client::http;
use crate::image_under_test::ImageUnderTest;
use crate::machine_config::MachineConfig;
use crate::node::{Node, NodePlan};
use crate::oci_image::OciImage;
use crate::registry::Registry;
use crate::scratch::Scratch;
use crate::workspace::guest_program;

/// Its port in the guest.
pub const GREETER_PORT: u16 = 8080;
/// More of its configuration: it sees the node's cgroups at `/cgroup` and may change them, so that it can freeze or kill what runs.
pub const WITH_CGROUPS: &str =
    "mounts:\n  - hostPath: {source: /sys/fs/cgroup, destination: /cgroup, options: [rw]}\n";
/// Where it sees the node's /var.
const VAR_IN_CONTAINER: &str = "data";

/// The service's name.
pub const GREETER: &str = "greeter";

/// Pushes its image as `greeter:v1`.
pub fn push_greeter(registry: &Registry) -> Result<String> {
    let program = guest_program("greeter")?;
    let image = OciImage::starting(&["/greeter"]).files(&[("greeter", &program)])?;
    Ok(image.push(registry, GREETER, "v1")?.digest)
}

/// Pushes its image under the same name, with a file `/edition` that says which one it is.
pub fn push_greeter_edition(registry: &Registry, edition: &str) -> Result<String> {
    let program = guest_program("greeter")?;
    let files = [
        ("greeter", program.as_slice()),
        ("edition", edition.as_bytes()),
    ];
    let image = OciImage::starting(&["/greeter"]).files(&files)?;
    Ok(image.push(registry, GREETER, "v1")?.digest)
}

/// A node whose config gives it `/dev/vda` and has it run the greeter of this registry; `more` is what else it says. The disk
/// itself is still to be added.
pub fn plan_with_greeter(
    scratch: &Scratch,
    registry: &Registry,
    more: impl FnOnce(MachineConfig) -> MachineConfig + 'static,
) -> Result<NodePlan> {
    push_greeter(registry)?;
    let host = registry.host_for_guest();
    Ok(Node::plan(scratch, &ImageUnderTest::first()?)
        .forward(GREETER_PORT)
        .configure(move |config| {
            more(
                config
                    .install_disk("/dev/vda")
                    .registry(&host)
                    .greeter(&host),
            )
        }))
}

impl MachineConfig {
    /// Takes images from the registry that a guest knows as this host, by plain HTTP.
    pub fn registry(self, host: &str) -> Self {
        self.document(&format!(
            "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {host}\nendpoints:\n  - url: http://{host}\nskipFallback: true\n"
        ))
    }

    /// Runs the greeter of the registry there. It sees /var, and must be healthy for an upgrade to be kept.
    pub fn greeter(self, host: &str) -> Self {
        let more = format!(
            "mounts:\n  - hostPath: {{source: /var, destination: /{VAR_IN_CONTAINER}, options: [rw]}}\n"
        );
        self.greeter_at(GREETER, &format!("{host}/greeter:v1"), GREETER_PORT, &more)
    }

    /// Runs one more greeter, on a port of its own. It is healthy, and the node ready, once it answers; `more` are further lines
    /// of its document.
    pub fn greeter_at(self, name: &str, image: &str, port: u16, more: &str) -> Self {
        let more = format!("args: [\"{port}\"]\nnetwork: {{mode: host}}\n{more}");
        self.container(name, image, &more).document(&format!(
            "apiVersion: instar.dev/v1alpha1\nkind: ContainerHealthConfig\nname: {name}\nhttp: {{url: \"http://127.0.0.1:{port}/\"}}\ninterval: 1s\n"
        ))
    }

    /// Runs any container; `more` are further lines of its document.
    pub fn container(self, name: &str, image: &str, more: &str) -> Self {
        self.document(&format!(
            "apiVersion: v1alpha1\nkind: ContainerConfig\nname: {name}\nimage: {image}\n{more}"
        ))
    }

    /// How long a new version has until this URL has to answer.
    pub fn gate_asks_the_web(self, timeout: &str, url: &str) -> Self {
        self.document(&format!(
            "apiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\ntimeout: {timeout}\nprobes:\n  - name: the web\n    http: {{url: \"{url}\"}}\n"
        ))
    }

    /// How long a new version has to become healthy.
    pub fn gate_timeout(self, timeout: &str) -> Self {
        self.document(&format!(
            "apiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\ntimeout: {timeout}\n"
        ))
    }
}

/// What the greeter of a node says.
#[derive(Debug, Clone)]
pub struct Greeter {
    address: String,
}

impl Greeter {
    /// Of a node whose greeter's port is forwarded.
    pub fn of(node: &Node) -> Result<Self> {
        Self::at(node, GREETER_PORT)
    }

    /// One that listens on another port.
    pub fn at(node: &Node, port: u16) -> Result<Self> {
        Ok(Self {
            address: node.guest_port(port)?,
        })
    }

    /// Its answer with status 200.
    pub fn get(&self, path: &str) -> Result<String> {
        let answer = http(&self.address, "GET", path, &[], &[])?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(
            answer.status == 200,
            "{path}: {} {}",
            answer.status,
            text.trim()
        );
        Ok(text)
    }

    /// Its greeting.
    pub fn greets(&self) -> Result<()> {
        let text = self.get("/")?;
        ensure!(text.starts_with("hello from "), "it says {text:?}");
        Ok(())
    }

    /// Has it write a file below the node's /var.
    pub fn write_to_var(&self, name: &str) -> Result<()> {
        self.get(&format!("/write/{VAR_IN_CONTAINER}/{name}"))
            .map(drop)
    }

    /// Has it make a symbolic link below the node's /var.
    pub fn link_in_var(&self, name: &str, target: &str) -> Result<()> {
        self.get(&format!("/link/{VAR_IN_CONTAINER}/{name}?{target}"))
            .map(drop)
    }

    /// Reads it back.
    pub fn read_from_var(&self, name: &str) -> Result<String> {
        self.get(&format!("/read/{VAR_IN_CONTAINER}/{name}"))
    }

    /// Has it end with this code; there is no answer.
    pub fn exit(&self, code: u8) {
        // It ends instead of answering.
        let _ = http(&self.address, "GET", &format!("/exit/{code}"), &[], &[]);
    }
}
