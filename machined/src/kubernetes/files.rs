//! The files of a node: computed from the config, and written where they differ.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use super::kubelet_certificate::CURRENT;
use super::variables::{Variables, of_service, past_the_proxy};
use super::{
    authorities, bootstrap, containerd, control, digest, etc, kubelet, kubelet_certificate, var,
};
use crate::base::{removal, whole_file};
use crate::config::{Kubernetes, Registries};

/// The kubeconfig that a node joins with.
const BOOTSTRAP: &str = "bootstrap-kubelet.conf";

/// A file of the node, by its path on the machine.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeFile {
    /// Its path.
    pub path: PathBuf,
    /// Its content, which may be a secret.
    pub content: String,
}

impl NodeFile {
    /// A file that the container sees below /instar.
    pub(super) fn of_control(name: &str, content: &str) -> Self {
        NodeFile {
            path: control().join(name),
            content: content.to_owned(),
        }
    }
}

/// The facts about the machine that the services of its node depend on.
#[derive(Debug, Clone, Copy)]
pub struct OfMachine<'a> {
    /// Where images come from.
    pub registries: &'a Registries,
    /// The registries that the machine serves images of to containerd.
    pub images_of: &'a BTreeSet<String>,
    /// The variables of the config.
    pub environment: &'a Variables,
    /// The authorities that are believed, PEM.
    pub authorities: &'a str,
}

/// Computes the files of the node, and the variables of its services. `addresses`: those that the config chooses; none if it leaves that to
/// kubelet.
pub fn files(
    kubernetes: &Kubernetes,
    machine: OfMachine<'_>,
    node: &str,
    addresses: &[IpAddr],
) -> (Vec<NodeFile>, Environment) {
    let containerd = containerd::configuration(machine.registries);
    let kubelet = kubelet::configuration(kubernetes);
    let mut files = vec![
        NodeFile::of_control("containerd.toml", &containerd),
        NodeFile::of_control(authorities::FILE, machine.authorities),
        NodeFile {
            path: var().join("lib/kubelet/config.yaml"),
            content: kubelet.clone(),
        },
        NodeFile {
            path: etc().join("pki/ca.crt"),
            content: kubernetes.cluster.authorities.clone(),
        },
        NodeFile {
            path: etc().join(BOOTSTRAP),
            content: bootstrap::kubeconfig(&kubernetes.cluster),
        },
    ];
    files.extend(containerd::hosts(machine.registries, machine.images_of));
    let believed = ("SSL_CERT_FILE", authorities::SEEN.to_owned());
    // A service starts again when one of its variables has another value: here, when what it reads only at its start has. kubelet fetches
    // nothing itself: other authorities are no reason for it.
    let of_containerd = [
        believed.clone(),
        ("CONTAINERD_CONFIG", "/instar/containerd.toml".to_owned()),
        ("CONFIGURATION", digest(&[&containerd, machine.authorities])),
    ];
    let (cluster, options) = (
        &kubernetes.cluster,
        kubelet::options(kubernetes, node, addresses),
    );
    let read = [
        &kubelet,
        cluster.authorities.as_str(),
        &cluster.endpoint.to_string(),
    ];
    let mut of_kubelet = vec![
        believed,
        (kubelet::OPTIONS, options),
        ("CONFIGURATION", digest(&read)),
    ];
    of_kubelet.extend(past_the_proxy(machine.environment, cluster));
    let environment = [
        (
            "containerd",
            of_service(machine.environment, &of_containerd),
        ),
        ("kubelet", of_service(machine.environment, &of_kubelet)),
    ];
    let environment = environment.map(|(name, variables)| (name.to_owned(), variables));
    // A control plane gives them to its node by itself.
    let labels = match kubernetes.control_plane.is_some() {
        true => Vec::new(),
        false => kubelet::refused_labels(&kubernetes.node),
    };
    for label in labels {
        tracing::warn!("a node may not give itself the label {label}; set it by the cluster's API");
    }
    (files, environment.into())
}

/// The variables of services, by the names of the services.
pub type Environment = std::collections::BTreeMap<String, Variables>;

/// Writes the files that differ. `leave` has the node leave its cluster, if the files name another one, or the same one by another address. It
/// goes first: only the previous files tell of the cluster before, and a later file may fail, or the power.
///
/// # Errors
/// The node cannot leave, and nothing is written; or a file cannot be written, and those before it are.
pub fn write(files: &[NodeFile], leave: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    if files.iter().any(names_another_cluster) {
        leave()?;
    }
    for file in files {
        if fs::read_to_string(&file.path).is_ok_and(|before| before == file.content) {
            continue;
        }
        let failed = || format!("write {}", file.path.display());
        if let Some(directory) = file.path.parent() {
            fs::create_dir_all(directory).with_context(failed)?;
        }
        whole_file::replace(&file.path, 0o600, file.content.as_bytes()).with_context(failed)?;
    }
    let folder = control().join(containerd::HOSTS_FOLDER);
    forget_registries(&folder, files)
        .with_context(|| format!("remove files of registries in {}", folder.display()))
}

/// Whether this is the file that a node joins with, and the one on the disk names another cluster.
fn names_another_cluster(file: &NodeFile) -> bool {
    let before = || fs::read_to_string(&file.path).ok();
    file.path.ends_with(BOOTSTRAP)
        && before().is_some_and(|before| cluster_of(&before) != cluster_of(&file.content))
}

/// Removes the files of registries that the config names no more: mirrors, authorities, and keys.
fn forget_registries(folder: &Path, files: &[NodeFile]) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let registry = entry?.path();
        if !files.iter().any(|file| file.path.starts_with(&registry)) {
            removal::tree(&registry)?;
            continue;
        }
        for entry in fs::read_dir(&registry)? {
            let path = entry?.path();
            if !files.iter().any(|file| file.path == path) {
                removal::file(&path)?;
            }
        }
    }
    Ok(())
}

/// Returns the cluster that a kubeconfig names.
fn cluster_of(kubeconfig: &str) -> Option<serde_json::Value> {
    let kubeconfig: serde_json::Value = serde_json::from_str(kubeconfig).ok()?;
    Some(kubeconfig["clusters"].clone())
}

/// Returns the name by which the node is a member of its cluster, which kubelet's certificate has; `None` if it has not joined.
///
/// # Errors
/// The certificate cannot be read.
pub fn member_name() -> io::Result<Option<String>> {
    let pem = kubelet_certificate::read()?;
    Ok(pem.and_then(|pem| kubelet_certificate::node_of(&pem)))
}

/// Forgets that the node is a member of its cluster: kubelet's certificate and kubeconfig go, and it joins with the token. Returns false if it
/// is no member: then everything stays, such as the files of a kubelet that joins.
///
/// # Errors
/// A file cannot be removed.
pub fn remove_membership() -> io::Result<bool> {
    remove_membership_in(
        &etc().join("kubelet.conf"),
        &kubelet_certificate::directory(),
    )
}

fn remove_membership_in(kubeconfig: &Path, certificates: &Path) -> io::Result<bool> {
    // The certificate is a link that leads elsewhere on the machine.
    let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
    let is_member = is_there(kubeconfig) || is_there(&certificates.join(CURRENT));
    if is_member {
        removal::file(kubeconfig)?;
        removal::tree(certificates)?;
    }
    Ok(is_member)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::a_node::kubernetes;
    use super::*;
    use crate::config::Secret;

    /// The variables of a node whose machine has these, and believes these authorities.
    fn environment(
        kubernetes: &Kubernetes,
        variables: &[(&str, &str)],
        authorities: &str,
    ) -> Environment {
        let variables = variables.iter();
        let variables = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let machine = OfMachine {
            images_of: &BTreeSet::new(),
            registries: &Registries::default(),
            environment: &variables.collect(),
            authorities,
        };
        files(kubernetes, machine, "worker-1", &[]).1
    }

    #[test]
    fn a_changed_configuration_is_a_changed_variable() {
        let before = kubernetes();
        let environment = |kubernetes: &Kubernetes| environment(kubernetes, &[], "PEM");
        let known = environment(&before);
        let mut other_dns = before.clone();
        other_dns.cluster.dns = Vec::new();
        assert_ne!(environment(&other_dns)["kubelet"], known["kubelet"]);
        assert_eq!(environment(&other_dns)["containerd"], known["containerd"]);
        // The token is for nodes that have no certificate yet.
        let mut other_token = before;
        other_token.cluster.token = Secret::new("other");
        assert_eq!(environment(&other_token), known);
    }

    #[test]
    fn services_believe_the_machines_authorities_and_containerd_starts_again_with_others() {
        let kubernetes = kubernetes();
        let machine = OfMachine {
            images_of: &BTreeSet::new(),
            registries: &Registries::default(),
            environment: &Variables::new(),
            authorities: "PEM",
        };
        let (files, known) = files(&kubernetes, machine, "worker-1", &[]);
        let file = files
            .iter()
            .find(|file| file.path.ends_with("control/ca.pem"));
        assert_eq!(file.unwrap().content, "PEM");
        for service in ["containerd", "kubelet"] {
            assert_eq!(known[service]["SSL_CERT_FILE"], "/instar/ca.pem");
        }
        let other = environment(&kubernetes, &[], "OTHER");
        assert_ne!(other["containerd"], known["containerd"]);
        assert_eq!(other["kubelet"], known["kubelet"]);
    }

    #[test]
    fn the_machines_variables_are_those_of_its_services() {
        let proxy = ("https_proxy", "http://proxy:3128");
        let found = environment(&kubernetes(), &[proxy], "PEM");
        for service in ["containerd", "kubelet"] {
            assert_eq!(found[service]["https_proxy"], "http://proxy:3128");
        }
        assert_eq!(found["kubelet"]["NO_PROXY"], "10.0.2.2");
        assert!(!found["containerd"].contains_key("NO_PROXY"));
    }

    #[test]
    fn a_registry_that_the_config_names_no_more_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("hosts");
        let file = |path: &str| NodeFile {
            path: folder.join(path),
            content: "x".to_owned(),
        };
        forget_registries(&folder, &[]).unwrap();
        let before = [
            file("a/hosts.toml"),
            file("a/client.key"),
            file("b/hosts.toml"),
        ];
        write(&before, || Ok(())).unwrap();
        forget_registries(&folder, &[file("a/hosts.toml")]).unwrap();
        let is_there = before.map(|file| file.path.exists());
        assert_eq!(is_there, [true, false, false]);
        assert!(!folder.join("b").exists());
    }

    fn bootstrap(directory: &Path, server: &str, token: &str) -> NodeFile {
        let mut cluster = kubernetes().cluster;
        cluster.endpoint = server.parse().unwrap();
        cluster.token = Secret::new(token);
        NodeFile {
            path: directory.join("etc").join(BOOTSTRAP),
            content: bootstrap::kubeconfig(&cluster),
        }
    }

    /// Neither a power cut nor a full disk leaves a node in its old cluster.
    #[test]
    fn a_node_leaves_its_cluster_before_a_file_names_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        write(&[bootstrap(here, "https://a:6443", "one")], || Ok(())).unwrap();
        // A file that cannot be written follows: its directory is a file.
        fs::write(here.join("file"), "").unwrap();
        let next = [
            bootstrap(here, "https://b:6443", "one"),
            NodeFile {
                path: here.join("file/hosts.toml"),
                content: "x".to_owned(),
            },
        ];
        let before = fs::read_to_string(&next[0].path).unwrap();
        let mut tries = 0;
        for (leaves, stays) in [(false, true), (false, true), (true, false)] {
            let leave = || {
                tries += 1;
                anyhow::ensure!(leaves, "kubelet's certificate stays");
                Ok(())
            };
            write(&next, leave).unwrap_err();
            let now = fs::read_to_string(&next[0].path).unwrap();
            assert_eq!(now == before, stays);
        }
        assert_eq!(tries, 3);
    }

    /// While a later file cannot be written, the node is asked to leave again and again.
    #[test]
    fn a_node_leaves_its_cluster_once() {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = directory.path().join("kubelet.conf");
        let certificates = directory.path().join("pki");
        let leave = || remove_membership_in(&kubeconfig, &certificates).unwrap();
        assert!(!leave());
        fs::write(&kubeconfig, "").unwrap();
        assert!(leave());
        assert!(!kubeconfig.exists());
        fs::create_dir(&certificates).unwrap();
        std::os::unix::fs::symlink("elsewhere", certificates.join(CURRENT)).unwrap();
        assert!(leave());
        assert!(!certificates.exists());
        fs::create_dir(&certificates).unwrap();
        assert!(!leave());
        assert!(certificates.exists());
    }

    #[test]
    fn files_are_written_where_they_differ() {
        let directory = tempfile::tempdir().unwrap();
        let is_another = |server, token| {
            let mut has_left = false;
            let leave = || {
                has_left = true;
                Ok(())
            };
            write(&[bootstrap(directory.path(), server, token)], leave).unwrap();
            has_left
        };
        assert!(!is_another("https://a:6443", "one"));
        assert!(!is_another("https://a:6443", "two"));
        assert!(is_another("https://b:6443", "two"));
        assert!(!is_another("https://b:6443", "two"));
    }
}
