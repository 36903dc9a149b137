//! The machine config of a node, as `talosctl gen config` writes `worker.yaml`.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use super::control_plane::ControlPlane;
use crate::HOST_FOR_GUEST;
use crate::identity::Identity;
use crate::machine_config::MachineConfig;

/// A recorded file of the tool. Its documents stay, but for those that name the cluster and the machine.
const RECORDED: &str = include_str!("../../../config/tests/data/1.14/worker.yaml");
/// Documents that this test's own take the place of.
const REPLACED: [&str; 6] = [
    "version: v1alpha1",
    "kind: UnattendedInstallConfig",
    "kind: HostnameConfig",
    "kind: KubeClusterConfig",
    "kind: KubeNodeConfig",
    "kind: KubeAPIServerCAConfig",
];

/// How long a node has to be ready with other images, in its config.
const READY_WITHIN: &str = "readyWithin: 180s\n";
/// The same for images with which it is never ready: a test waits for the end of it.
const NEVER_READY_WITHIN: &str = "readyWithin: 60s\n";

/// Where a machine takes an extension from.
#[derive(Debug, Clone)]
pub enum ExtensionSource {
    /// An image, by its name in the guest.
    Image(String),
    /// A file, as publishers of system extensions offer it.
    File {
        /// Its address in the guest.
        url: String,
        /// Its digest, in hexadecimal.
        sha256: String,
    },
    /// The newest file of a publisher.
    Published {
        /// The address of the folder with the files and their list, in the guest.
        url: String,
        /// The names of the files.
        pattern: String,
        /// The key that signs the list, PEM.
        key: String,
    },
}

/// Returns the config of a worker of this cluster, with a disk at `/dev/vda`. As the tool's, it has no key of the machine's authority if the
/// identity believes any node: clients compare the fingerprint of the API's certificate then.
pub fn worker_config(identity: &Identity, plane: &ControlPlane, hostname: &str) -> MachineConfig {
    // Certificates in the documents end with dashes, too.
    let recorded = RECORDED.split("\n---\n").filter(|document| {
        let is_replaced = REPLACED
            .iter()
            .any(|line| document.lines().any(|other| other == *line));
        !is_replaced
    });
    let config = MachineConfig::from_yaml(&main_document(identity, &plane.token()));
    let config = recorded.fold(config, |config, document| {
        config.document(&format!("{}\n", document.trim_end()))
    });
    config
        .hostname(hostname)
        .install_disk("/dev/vda")
        .document(&format!(
            "apiVersion: v1alpha1\nkind: KubeClusterConfig\nclusterName: test\nendpoint: {}\n",
            plane.endpoint_for_guest()
        ))
        .document(&format!(
            "apiVersion: v1alpha1\nkind: KubeAPIServerCAConfig\nacceptedCAs:\n  - |\n{}",
            indented(plane.authority_certificate())
        ))
}

/// Returns the config of a node for images with which it is never ready: it goes back from them soon.
pub fn gives_up_soon(config: &str) -> String {
    config.replace(READY_WITHIN, NEVER_READY_WITHIN)
}

impl MachineConfig {
    /// Runs Kubernetes, on this base. The node has time to be ready on a busy host: see [`gives_up_soon`].
    pub fn kubernetes(self, base: &str) -> Self {
        self.document(&format!(
            "apiVersion: instar.dev/v1alpha1\nkind: KubernetesConfig\nimage: {base}\n{READY_WITHIN}"
        ))
    }

    /// Adds an extension.
    pub fn extension(self, name: &str, source: &ExtensionSource) -> Self {
        let source = match source {
            ExtensionSource::Image(image) => format!("image: {image}\n"),
            ExtensionSource::File { url, sha256 } => format!("url: {url}\nsha256: {sha256}\n"),
            ExtensionSource::Published { url, pattern, key } => format!(
                "url: {url}\nmatch: {pattern}\npublicKey: |\n{}\ninterval: 10s\n",
                indented(key)
            ),
        };
        self.document(&format!(
            "apiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig\nname: {name}\n{source}"
        ))
    }

    /// Takes images of another registry from the one at this address in the guest, by plain HTTP.
    pub fn mirror(self, registry: &str, host: &str) -> Self {
        self.document(&format!(
            "apiVersion: v1alpha1\nkind: RegistryMirrorConfig\nname: {registry}\nendpoints:\n  - url: http://{host}\nskipFallback: true\n"
        ))
    }
}

fn main_document(identity: &Identity, token: &str) -> String {
    format!(
        "version: v1alpha1\ndebug: false\npersist: true\nmachine:\n  type: worker\n  token: cmcjxo.o84o2hz4vnh6771m\n  ca:\n    crt: {}\n    key: \"{}\"\n  certSANs:\n    - 127.0.0.1\n    - {HOST_FOR_GUEST}\n  features:\n    diskQuotaSupport: true\ncluster:\n  token: {token}\n",
        BASE64_STANDARD.encode(identity.authority_certificate()),
        match identity.trusted() {
            "" => String::new(),
            _ => BASE64_STANDARD.encode(identity.authority_key()),
        },
    )
}

fn indented(pem: &str) -> String {
    pem.lines().map(|line| format!("      {line}\n")).collect()
}
