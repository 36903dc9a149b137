//! Programs of other projects that work on a cluster's nodes: as images, and as processes of this host.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::programs::program;
use crate::HOST_FOR_GUEST;
use crate::oci_image::OciImage;
use crate::registry::Registry;

/// A program that no package registry has, and whose module does not build under another one.
pub(super) struct Peer {
    pub(super) name: &'static str,
    /// The variable that names its file.
    variable: &'static str,
    source: &'static str,
    /// The package to build, in the sources.
    package: &'static str,
}

const KURED: Peer = Peer {
    name: "kured",
    variable: "INSTAR_KURED",
    source: "https://github.com/kubereboot/kured",
    package: "./cmd/kured",
};
/// A FleetLock server, which keeps its locks in etcd.
pub(super) const AIRLOCK: Peer = Peer {
    name: "airlock",
    variable: "INSTAR_AIRLOCK",
    source: "https://github.com/coreos/airlock",
    package: ".",
};
pub(super) const SYSTEM_UPGRADE_CONTROLLER: Peer = Peer {
    name: "system-upgrade-controller",
    variable: "INSTAR_SUC",
    source: "https://github.com/rancher/system-upgrade-controller",
    package: ".",
};

impl Peer {
    /// The path of the program.
    pub(super) fn program(&self) -> Result<PathBuf> {
        let Peer {
            variable,
            source,
            package,
            ..
        } = self;
        let program = std::env::var_os(variable).map(PathBuf::from);
        program.with_context(|| {
            format!(
                "{variable} names no program: clone {source}, run `CGO_ENABLED=0 go build -trimpath {package}` in it, and set {variable} to \
                 the path of the program"
            )
        })
    }

    /// Pushes the program as an image of its own, with more files; returns the image's name in a guest.
    fn push(&self, registry: &Registry, more: &[(&str, &[u8])]) -> Result<String> {
        let Peer { name, variable, .. } = self;
        let program = self.program()?;
        let program = std::fs::read(&program)
            .with_context(|| format!("cannot read {}, of {variable}", program.display()))?;
        let path = format!("usr/bin/{name}");
        let files = [&[(path.as_str(), program.as_slice())], more].concat();
        let image = OciImage::starting(&[&format!("/{path}")]).files(&files)?;
        image.push(registry, name, "v1")?;
        Ok(registry.image_for_guest(&format!("{name}:v1")))
    }
}

/// Debian's static busybox, which is the program of the name that it is started by.
const BUSYBOX: &str = "/bin/busybox";

/// Pushes kured, with nsenter, by which it calls a command of the node; returns the image's name in a guest.
pub fn push_kured(registry: &Registry) -> Result<String> {
    let busybox = std::fs::read(BUSYBOX)
        .with_context(|| format!("cannot read {BUSYBOX}, which build/kubernetes-peers installs"))?;
    KURED.push(registry, &[("usr/bin/nsenter", &busybox)])
}

/// Pushes system-upgrade-controller; returns the image's name in a guest.
pub fn push_system_upgrade_controller(registry: &Registry) -> Result<String> {
    SYSTEM_UPGRADE_CONTROLLER.push(registry, &[])
}

/// Pushes kubectl as an image for pods, which call an API server at this port of the host by their service account; returns the image's name in
/// a guest.
pub fn push_kubectl(registry: &Registry, port: u16) -> Result<String> {
    // No pod reaches the address of the service here: there is no kube-proxy.
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    let kubeconfig = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: own\n\
         clusters:\n- name: own\n  cluster: {{server: \"https://{HOST_FOR_GUEST}:{port}\", certificate-authority: {account}/ca.crt}}\n\
         users:\n- name: own\n  user: {{tokenFile: {account}/token}}\n\
         contexts:\n- name: own\n  context: {{cluster: own, user: own}}\n"
    );
    let kubectl = std::fs::read(program("kubectl")?)?;
    let files: [(&str, &[u8]); 2] = [
        ("usr/bin/kubectl", &kubectl),
        ("etc/kubeconfig", kubeconfig.as_bytes()),
    ];
    let image = OciImage::starting(&["/usr/bin/kubectl"]).files(&files)?;
    let image = image.environment(&["KUBECONFIG=/etc/kubeconfig"]);
    image.push(registry, "kubectl", "v1")?;
    Ok(registry.image_for_guest("kubectl:v1"))
}
