//! The greeter of `tests/greeter` as a container of the node, pulled from the test's registry.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::http_client::http;
use crate::image_under_test::ImageUnderTest;
use crate::machine_config::MachineConfig;
use crate::node::{Node, NodePlan};
use crate::oci_image::OciImage;
use crate::registry::Registry;
use crate::scratch::Scratch;
use crate::workspace::guest_program;

/// The greeter's port in the guest.
pub const GREETER_PORT: u16 = 8080;
/// Lines of its config: the greeter sees the node's cgroups at `/cgroup` and may change them, so that it can freeze or
/// kill processes.
pub const WITH_CGROUPS: &str =
    "mounts:\n  - hostPath: {source: /sys/fs/cgroup, destination: /cgroup, options: [rw]}\n";
/// The timeout of a gate that a version is not to pass: enough to boot on a busy host and to find the reason. A test waits for its end.
pub const SHUT_GATE: Duration = Duration::from_secs(60);
/// The timeout of a gate that a version is to pass, which is the default: however busy the host, a good version is not given up.
pub const OPEN_GATE: Duration = Duration::from_secs(300);
/// Limit on the wait for a machine that is at work.
const IS_FREE: Duration = Duration::from_secs(120);
/// The beginning of a gate's document; the timeout follows.
const GATE: &str = "apiVersion: instar.dev/v1alpha1\nkind: UpgradeGateConfig\ntimeout: ";
/// The node's /var in the container.
const VAR_IN_CONTAINER: &str = "data";

/// The service's name.
pub const GREETER: &str = "greeter";

/// Pushes the greeter's image as `greeter:v1`.
pub fn push_greeter(registry: &Registry) -> Result<String> {
    let program = guest_program("greeter")?;
    let image = OciImage::starting(&["/greeter"]).files(&[("greeter", &program)])?;
    Ok(image.push(registry, GREETER, "v1")?.digest)
}

/// Pushes the image under the same name, with a file `/edition` that identifies it.
pub fn push_greeter_edition(registry: &Registry, edition: &str) -> Result<String> {
    Ok(greeter_image(edition)?
        .push(registry, GREETER, "v1")?
        .digest)
}

/// Returns the image, with a file `/edition` that identifies it.
pub fn greeter_image(edition: &str) -> Result<OciImage> {
    let program = guest_program("greeter")?;
    let files = [
        ("greeter", program.as_slice()),
        ("edition", edition.as_bytes()),
    ];
    OciImage::starting(&["/greeter"]).files(&files)
}

/// Plans a node whose config uses `/dev/vda` and runs the greeter of this registry; `more` adds to the config. The
/// caller adds the disk itself.
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
    /// Takes images by plain HTTP from the registry at this address in the guest.
    pub fn registry(self, host: &str) -> Self {
        self.document(&format!(
            "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {host}\nendpoints:\n  - url: http://{host}\nskipFallback: true\n"
        ))
    }

    /// Runs the greeter of this registry. It sees /var, and must be healthy for an upgrade to be kept.
    pub fn greeter(self, host: &str) -> Self {
        let more = format!(
            "mounts:\n  - hostPath: {{source: /var, destination: /{VAR_IN_CONTAINER}, options: [rw]}}\n"
        );
        self.greeter_at(GREETER, &format!("{host}/greeter:v1"), GREETER_PORT, &more)
    }

    /// Runs one more greeter, on a port of its own. It is healthy, and the node ready, once it answers; `more` are
    /// further lines of its document.
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

    /// Adds a gate: a new version has this timeout until the URL has to answer.
    pub fn gate_asks_the_web(self, timeout: Duration, url: &str) -> Self {
        self.document(&format!(
            "{GATE}{timeout:?}\nprobes:\n  - name: the web\n    http: {{url: \"{url}\"}}\n"
        ))
    }

    /// Sets the timeout for a new version to become healthy.
    pub fn gate_timeout(self, timeout: Duration) -> Self {
        self.document(&format!("{GATE}{timeout:?}\n"))
    }
}

impl Node {
    /// Sets another timeout of the gate that the node's config has. All else is as the node was booted, and a boot brings the first timeout back.
    pub async fn set_gate_timeout(&self, timeout: Duration) -> Result<()> {
        let yaml = with_gate_timeout(self.config(), timeout)?;
        let apply = async || self.apply_as(self.identity(), yaml.clone()).await;
        // A machine that is ready may still be at work on its boot entries.
        self.wait_until("it takes its gate's timeout", IS_FREE, apply)
            .await
    }
}

fn with_gate_timeout(config: &str, timeout: Duration) -> Result<String> {
    let (before, rest) = config.split_once(GATE).context("the config has no gate")?;
    let (_, after) = rest
        .split_once('\n')
        .context("the gate's timeout has no end")?;
    Ok(format!("{before}{GATE}{timeout:?}\n{after}"))
}

/// A client of a node's greeter.
#[derive(Debug, Clone)]
pub struct Greeter {
    address: String,
}

impl Greeter {
    /// Returns the client of a node's greeter, whose port has to be forwarded.
    pub fn of(node: &Node) -> Result<Self> {
        Self::at(node, GREETER_PORT)
    }

    /// Returns the client of a greeter on another port.
    pub fn at(node: &Node, port: u16) -> Result<Self> {
        Ok(Self {
            address: node.guest_port(port)?,
        })
    }

    /// Gets a path; returns the answer, whose status must be 200.
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

    /// Checks the greeting.
    pub fn greets(&self) -> Result<()> {
        let text = self.get("/")?;
        ensure!(text.starts_with("hello from "), "it says {text:?}");
        Ok(())
    }

    /// Writes a file below the node's /var, by the greeter.
    pub fn write_to_var(&self, name: &str) -> Result<()> {
        self.get(&format!("/write/{VAR_IN_CONTAINER}/{name}"))
            .map(drop)
    }

    /// Makes a symbolic link below the node's /var, by the greeter.
    pub fn link_in_var(&self, name: &str, target: &str) -> Result<()> {
        self.get(&format!("/link/{VAR_IN_CONTAINER}/{name}?{target}"))
            .map(drop)
    }

    /// Reads a file below the node's /var, by the greeter.
    pub fn read_from_var(&self, name: &str) -> Result<String> {
        self.get(&format!("/read/{VAR_IN_CONTAINER}/{name}"))
    }

    /// Ends the greeter with this exit code; there is no answer.
    pub fn exit(&self, code: u8) {
        // The greeter ends instead of answering.
        let _ = http(&self.address, "GET", &format!("/exit/{code}"), &[], &[]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_gate_has_another_timeout_and_is_else_the_same() {
        let config = |timeout| {
            let config = MachineConfig::from_yaml("version: v1alpha1\n");
            let gated = config.gate_asks_the_web(timeout, "http://10.0.2.2:1/");
            gated.document("kind: Another\ntimeout: 7s\n").to_yaml()
        };
        let changed = with_gate_timeout(&config(OPEN_GATE), SHUT_GATE).unwrap();
        assert_eq!(changed, config(SHUT_GATE));
        assert!(changed.contains("\ntimeout: 60s\nprobes:\n"), "{changed}");
        assert!(with_gate_timeout("version: v1alpha1\n", SHUT_GATE).is_err());
    }
}
