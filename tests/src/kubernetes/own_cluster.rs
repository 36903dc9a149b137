//! A machine that is a cluster itself: its secrets in a machine config, and the images of its control plane.

use anyhow::{Context, Result};
use serde_json::Value;

use super::programs::{folder, program};
use crate::oci_image::OciImage;
use crate::registry::Registry;

/// The programs whose images have the version of Kubernetes as their tag.
const PROGRAMS: [&str; 3] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
];
/// The registry that machines ask for images of Kubernetes.
const OF_KUBERNETES: &str = "registry.k8s.io";
/// The tag of images with versions of their own.
const OWN: &str = "own";

/// Returns the version of Kubernetes that `build/kubernetes-peers` built.
pub fn kubernetes_version() -> Result<String> {
    let built = folder().join("built/kubernetes");
    let line = std::fs::read_to_string(&built)
        .with_context(|| format!("{}: run `build/kubernetes-peers`", built.display()))?;
    let version = line.split(' ').nth(1).context("no version")?;
    Ok(version.to_owned())
}

/// Pushes the images of a control plane, those of Kubernetes under each of these tags.
pub fn push_control_plane(registry: &Registry, tags: &[&str]) -> Result<()> {
    for name in PROGRAMS {
        let image = image(name, &[name])?;
        for tag in tags {
            image.push(registry, name, tag)?;
        }
    }
    let etcd = image("etcd", &["etcd", "etcdutl"])?;
    etcd.push(registry, "etcd", OWN).map(drop)
}

/// Pushes the image of CoreDNS; returns its name in a machine that has a mirror of the registry of Kubernetes.
pub fn push_core_dns(registry: &Registry) -> Result<String> {
    image("coredns", &["coredns"])?.push(registry, "coredns", OWN)?;
    Ok(format!("{OF_KUBERNETES}/coredns:{OWN}"))
}

/// Returns an image with programs where the published ones have them; it starts one of them.
fn image(starts: &str, programs: &[&str]) -> Result<OciImage> {
    let mut image = OciImage::starting(&[&format!("/usr/local/bin/{starts}")]);
    for name in programs {
        let path = program(name)?;
        let content =
            std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        image = image.files(&[(&format!("usr/local/bin/{name}"), &content)])?;
    }
    Ok(image)
}

/// Returns the section `cluster` of the config of a machine that is a cluster, with the secrets that `instarctl gen secrets` wrote. Pods run on
/// the machine, and a plain kube-proxy is left out: it calls programs that no image here has.
pub fn cluster_section(secrets: &str, endpoint: &str) -> Result<String> {
    let secrets: Value = serde_saphyr::from_str(secrets).context("secrets that are no YAML")?;
    let secret = |path: &str| {
        let text = secrets.pointer(path).and_then(Value::as_str);
        text.with_context(|| format!("the secrets have no {path}"))
    };
    let pair = |name: &str| -> Result<String> {
        let (certificate, key) = (
            secret(&format!("/certs/{name}/crt"))?,
            secret(&format!("/certs/{name}/key"))?,
        );
        Ok(format!("{{crt: {certificate}, key: {key}}}"))
    };
    Ok(format!(
        "cluster:\n  clusterName: demo\n  controlPlane: {{endpoint: \"{endpoint}\"}}\n  allowSchedulingOnControlPlanes: true\n  \
         token: {}\n  secretboxEncryptionSecret: {}\n  ca: {}\n  aggregatorCA: {}\n  serviceAccount: {{key: {}}}\n  \
         proxy: {{disabled: true}}\n  etcd: {{image: \"{OF_KUBERNETES}/etcd:{OWN}\", ca: {}}}\n",
        secret("/secrets/bootstraptoken")?,
        secret("/secrets/secretboxencryptionsecret")?,
        pair("k8s")?,
        pair("k8saggregator")?,
        secret("/certs/k8sserviceaccount/key")?,
        pair("etcd")?,
    ))
}
