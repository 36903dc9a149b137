//! The files of the control plane with their places: written where they differ.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use anyhow::Context as _;
use instar_kubernetes_plan::PlannedExtension;
use serde_json::json;

use super::super::kubelet_certificate::{self, CURRENT, PKI};
use super::super::{etc, var};
use super::certificates::{self, Issued, LIFETIME, issue, lasts};
use super::kubeconfigs;
use super::manifests::{self, ADMISSION, AUDIT_POLICY, ENCRYPTION};
use super::place::Place;
use crate::base::{removal, whole_file};
use crate::config::{ControlPlane, Kubernetes};

/// The file of an extension that says which version of Kubernetes it brings.
const VERSION: &str = "usr/local/share/kubernetes-version";
/// The name by which the container sees the machine's images.
const IMAGES: &str = "/instar/images";
/// The group of nodes.
const NODES: &str = "system:nodes";

/// The directory of etcd's data.
pub(super) fn etcd_data() -> PathBuf {
    var().join("lib/etcd")
}

/// Whether the cluster has begun: etcd has a place for its data.
pub fn has_begun() -> bool {
    etcd_data().exists()
}

/// Returns the device and the number of the directory of etcd's data: others have taken their place if these differ. `None` without data.
pub fn data_directory() -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt as _;
    let directory = fs::metadata(etcd_data()).ok()?;
    Some((directory.dev(), directory.ino()))
}

/// Returns the image of etcd that the manifests name; `None` if there are none. Blocks.
pub fn written_etcd_image() -> Option<String> {
    manifests::image_of(&fs::read(manifest("etcd")).ok()?)
}

/// Begins a new cluster: etcd starts without data.
///
/// # Errors
/// There is a cluster already, or its place cannot be made.
pub fn begin() -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let data = etcd_data();
    if let Some(above) = data.parent() {
        fs::create_dir_all(above)?;
    }
    fs::DirBuilder::new().mode(0o700).create(data)
}

/// Returns the version of Kubernetes that extensions bring.
///
/// # Errors
/// None of them says it.
pub fn version_of(extensions: &[PlannedExtension]) -> anyhow::Result<String> {
    let files = extensions.iter().filter_map(|extension| {
        let tree = Path::new(&extension.tree).strip_prefix(IMAGES).ok()?;
        fs::read_to_string(Path::new(Kubernetes::IMAGES).join(tree).join(VERSION)).ok()
    });
    let mut versions = files.map(|text| text.trim().to_owned());
    let version = versions.find(|version| is_version(version));
    version.with_context(|| {
        format!("no extension says which version of Kubernetes it brings (the file /{VERSION})")
    })
}

/// Whether a text can be the tag of an image.
fn is_version(text: &str) -> bool {
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    text.starts_with('v') && text.len() < 64 && text.bytes().all(is_right)
}

/// Writes all files of the control plane. Without a cluster that has begun, only the node's own certificate.
///
/// # Errors
/// A key of the config cannot be used, or a file cannot be written.
pub fn write(
    kubernetes: &Kubernetes,
    plane: &ControlPlane,
    place: &Place,
    version: &str,
) -> anyhow::Result<()> {
    join_itself(kubernetes, plane, place)?;
    if !has_begun() {
        return remove_manifests(&BTreeMap::new());
    }
    let pki = etc().join("pki");
    let issued = certificates::have_all(plane, place, &pki)?;
    let files = files(kubernetes, plane, &issued);
    for (path, content) in &files {
        put(&etc().join(path), content)?;
    }
    let digests = digests(&files);
    let manifests = manifests::manifests(plane, place, version, &digests);
    for (name, manifest) in &manifests {
        put_manifest(name, manifest)?;
    }
    remove_manifests(&manifests)
}

/// Gives the node of the control plane its certificate: it need not ask its own cluster, which may not run yet. kubelet renews it.
fn join_itself(kubernetes: &Kubernetes, plane: &ControlPlane, place: &Place) -> anyhow::Result<()> {
    let pki = kubelet_certificate::directory();
    let seen = format!("/var/{PKI}/{CURRENT}");
    put(
        &etc().join("kubelet.conf"),
        &kubeconfigs::of_node(kubernetes, &seen),
    )?;
    let current = pki.join(CURRENT);
    if node_certificate_lasts() {
        return Ok(());
    }
    let user = format!("system:node:{}", place.node);
    let identity = issue(&plane.keys.cluster, &user, &[NODES], &[], LIFETIME)?;
    let file = "kubelet-client-first.pem";
    let content = format!("{}{}", identity.certificate, identity.key.expose());
    whole_file::replace(&pki.join(file), 0o600, content.as_bytes())?;
    removal::file(&current)?;
    let target = format!("/var/{PKI}/{file}");
    std::os::unix::fs::symlink(target, &current).context("name the node's certificate")
}

fn node_certificate_lasts() -> bool {
    let pem = kubelet_certificate::read().ok().flatten();
    pem.is_some_and(|pem| lasts(&pem, Duration::ZERO))
}

/// Files below /etc/kubernetes, with the program that reads them at its start alone, if there is one.
type Files = BTreeMap<String, String>;

fn files(kubernetes: &Kubernetes, plane: &ControlPlane, issued: &Issued) -> Files {
    let keys = &plane.keys;
    let cluster = &kubernetes.cluster;
    let mut files = Files::new();
    let mut add = |path: &str, content: &str| files.insert(path.to_owned(), content.to_owned());
    add("pki/cluster-ca.crt", &keys.cluster.certificate);
    add("pki/cluster-ca.key", keys.cluster.key.expose());
    add("pki/etcd-ca.crt", &keys.etcd.certificate);
    add("pki/front-proxy-ca.crt", &keys.aggregator.certificate);
    add("pki/sa.key", keys.service_accounts.expose());
    for name in ["controller-manager", "scheduler", "kube-proxy"] {
        if let Some(identity) = issued.get(name) {
            let user = format!("system:kube-{}", name.trim_start_matches("kube-"));
            let authorities = &cluster.authorities;
            let kubeconfig =
                kubeconfigs::of("cluster", &cluster.endpoint, authorities, &user, identity);
            add(&format!("{name}.conf"), &kubeconfig);
        }
    }
    if !plane.admission.is_empty() {
        let plugins = plane.admission.iter();
        let plugins = plugins.map(|(name, it)| json!({"name": name, "configuration": it}));
        let admission = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AdmissionConfiguration",
            "plugins": plugins.collect::<Vec<_>>(),
        });
        add(below_etc(ADMISSION), &admission.to_string());
    }
    if let Some(policy) = &plane.audit_policy {
        add(below_etc(AUDIT_POLICY), &policy.to_string());
    }
    if let Some(encryption) = &plane.encryption {
        add(below_etc(ENCRYPTION), encryption.expose());
    }
    files
}

fn below_etc(path: &'static str) -> &'static str {
    path.strip_prefix("/etc/kubernetes/").unwrap_or(path)
}

/// Returns a digest of the files that each program reads at its start alone: certificates are read again by themselves.
fn digests(files: &Files) -> BTreeMap<&'static str, String> {
    let read_by = |name: &str| -> Vec<&str> {
        let is_read = |path: &&String| match name {
            "kube-apiserver" => path.starts_with("apiserver/") || *path == "pki/sa.key",
            "kube-controller-manager" => [
                "controller-manager.conf",
                "pki/sa.key",
                "pki/cluster-ca.crt",
            ]
            .contains(&path.as_str()),
            "kube-scheduler" => *path == "scheduler.conf",
            "kube-proxy" => *path == "kube-proxy.conf",
            _ => false,
        };
        let read = files.iter().filter(|(path, _)| is_read(path));
        read.map(|(_, content)| content.as_str()).collect()
    };
    let digest = |name: &&'static str| (*name, super::super::digest(&read_by(name)));
    manifests::NAMES.iter().map(digest).collect()
}

/// Writes a file that differs.
fn put(path: &Path, content: &str) -> io::Result<()> {
    match fs::read_to_string(path) {
        Ok(before) if before == content => Ok(()),
        _ => whole_file::replace(path, 0o600, content.as_bytes()),
    }
}

fn manifest(name: &str) -> PathBuf {
    etc().join("manifests").join(format!("{name}.json"))
}

/// Writes a manifest that differs. It is written elsewhere first: kubelet starts whatever it finds among the manifests.
fn put_manifest(name: &str, content: &str) -> io::Result<()> {
    let path = manifest(name);
    if fs::read_to_string(&path).is_ok_and(|before| before == content) {
        return Ok(());
    }
    let new = etc().join("manifest");
    whole_file::replace(&new, 0o600, content.as_bytes())?;
    fs::rename(new, path)
}

/// Removes the manifests of programs that are not to run.
fn remove_manifests(wanted: &BTreeMap<&'static str, String>) -> anyhow::Result<()> {
    for name in manifests::NAMES {
        if !wanted.contains_key(name) {
            removal::file(&manifest(name))?;
        }
    }
    Ok(())
}
