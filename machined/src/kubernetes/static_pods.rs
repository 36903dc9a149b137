//! The static pods of this machine: kubelet runs them by files, and shows the API server a copy of each.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use instar_http_client::Client;
use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat2};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;

use super::api_server::{client, get};
use super::container_root::open_directory;
use super::control_plane::own_identity;
use super::etc;
use crate::config::Kubernetes;
use crate::store::Resource;

/// Limits on the files of static pods, and on the answer about them, in bytes.
const MOST: usize = 64;
const LARGEST_FILE: u64 = 1 << 20;
const LARGEST_ANSWER: usize = 4 << 20;
/// No link is followed: a pod may have put it there.
const WITHIN: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS);
/// Time limit for the answer about them, so that a reader does not wait long for an API server that is away.
const ANSWER: Duration = Duration::from_secs(3);
/// kubelet's own pods, which the API server shows a copy of.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// A static pod as kubelet is told to run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticPod {
    /// Its name.
    pub name: String,
    /// The whole pod.
    pub content: Value,
}

/// The status of a static pod, as kubelet tells the API server. Its id is the pod's namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StaticPodStatus(pub Value);

impl Resource for StaticPodStatus {
    const NAMESPACE: &'static str = "k8s";
    const TYPE: &'static str = "StaticPodStatuses.kubernetes.talos.dev";
}

/// Reads the static pods of this machine, by name. Blocks.
///
/// # Errors
/// The folder cannot be read. A file that is no pod is left out: machined writes no others.
pub fn static_pods() -> io::Result<Vec<StaticPod>> {
    read(&etc().join("manifests"))
}

fn read(folder: &Path) -> io::Result<Vec<StaticPod>> {
    let parent = folder.parent().unwrap_or(folder).display().to_string();
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let opened = open_directory(CWD, &parent, OFlags::PATH, ResolveFlags::empty())
        .and_then(|parent| open_directory(parent, &name, OFlags::RDONLY, WITHIN));
    let folder = match opened {
        Ok(folder) => folder,
        // The machine is no node, or has not been one yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut pods = Vec::new();
    for entry in Dir::read_from(&folder)?.take(MOST) {
        let mut text = Vec::new();
        // A file may go away meanwhile.
        if let Ok(Some(file)) = open(&folder, entry?.file_name())
            && file.take(LARGEST_FILE).read_to_end(&mut text).is_ok()
        {
            pods.extend(pod(&text));
        }
    }
    pods.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(pods)
}

/// Opens a file of the folder; none if it is no regular one. A pod that mounts the folder may have put a link or a pipe there.
fn open(folder: &OwnedFd, name: &CStr) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat2(folder, name, flags, Mode::empty(), WITHIN)?);
    Ok(file.metadata()?.is_file().then_some(file))
}

fn pod(text: &[u8]) -> Option<StaticPod> {
    let content: Value = serde_json::from_slice(text).ok()?;
    let name = content.pointer("/metadata/name")?.as_str()?.to_owned();
    Some(StaticPod { name, content })
}

/// Asks the machine's own API server for the statuses of the static pods of a node, by namespace and name. A machine without a control plane has
/// no static pods.
///
/// # Errors
/// The API server does not answer in time, or refuses.
pub async fn static_pod_statuses(
    kubernetes: &Kubernetes,
    node: &str,
) -> anyhow::Result<Vec<(String, StaticPodStatus)>> {
    let Some(plane) = &kubernetes.control_plane else {
        return Ok(Vec::new());
    };
    let cluster = &kubernetes.cluster;
    let client = client(cluster, own_identity(plane)?);
    let server = cluster.endpoint.to_string();
    let answer = timeout(ANSWER, ask(&client, &server, node)).await;
    answer.with_context(|| format!("no answer within {} s", ANSWER.as_secs()))?
}

async fn ask(
    client: &Client,
    server: &str,
    node: &str,
) -> anyhow::Result<Vec<(String, StaticPodStatus)>> {
    let uri =
        format!("{server}/api/v1/namespaces/kube-system/pods?fieldSelector=spec.nodeName%3D{node}");
    let list: PodList = get(client, &uri, LARGEST_ANSWER).await?;
    Ok(list.items.into_iter().filter_map(status).collect())
}

/// A list of pods, as far as it is needed.
#[derive(Deserialize)]
struct PodList {
    items: Vec<Value>,
}

/// The status of a pod; none if the pod is not kubelet's own.
fn status(mut pod: Value) -> Option<(String, StaticPodStatus)> {
    let metadata = &pod["metadata"];
    metadata["annotations"].get(MIRROR)?;
    let (namespace, name) = (metadata["namespace"].as_str()?, metadata["name"].as_str()?);
    let id = format!("{namespace}/{name}");
    Some((id, StaticPodStatus(pod["status"].take())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn pods_are_read_from_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let pod = |name: &str| json!({"kind": "Pod", "metadata": {"name": name}});
        write("b.json", &pod("scheduler").to_string());
        write("a.json", &pod("api-server").to_string());
        write("half.json", "{");
        let elsewhere = tempfile::NamedTempFile::new().unwrap();
        fs::write(elsewhere.path(), pod("elsewhere").to_string()).unwrap();
        let link = folder.path().join("link.json");
        std::os::unix::fs::symlink(elsewhere.path(), link).unwrap();
        let pipe = folder.path().join("pipe.json");
        rustix::fs::mkfifoat(CWD, pipe, Mode::RWXU).unwrap();
        let pods = read(folder.path()).unwrap();
        let names: Vec<&str> = pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["api-server", "scheduler"]);
        assert_eq!(pods[0].content, pod("api-server"));
        assert_eq!(read(&folder.path().join("none")).unwrap(), []);
    }

    #[test]
    fn only_kubelets_own_pods_are_static() {
        let pod = |annotations: Value| {
            let metadata =
                json!({"name": "etcd-n", "namespace": "kube-system", "annotations": annotations});
            status(json!({"metadata": metadata, "status": {"phase": "Running"}}))
        };
        let (id, found) = pod(json!({ MIRROR: "hash" })).unwrap();
        assert_eq!(id, "kube-system/etcd-n");
        assert_eq!(found.0, json!({"phase": "Running"}));
        assert_eq!(pod(json!({"a": "b"})), None);
        assert_eq!(pod(Value::Null), None);
    }
}
