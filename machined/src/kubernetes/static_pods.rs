//! The static pods of this machine: kubelet runs them by files, and shows the API server a copy of each.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{HeaderMap, Uri};
use instar_http_client::{Client, Request};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::timeout;

use super::api_server::client;
use super::control_plane::own_identity;
use super::etc;
use crate::config::Kubernetes;
use crate::store::Resource;

/// Limits on the files of static pods, and on the answer about them, in bytes.
const MOST: usize = 64;
const LARGEST_FILE: u64 = 1 << 20;
const LARGEST_ANSWER: usize = 4 << 20;
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

fn read(folder: &std::path::Path) -> io::Result<Vec<StaticPod>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        // The machine is no node, or has not been one yet.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut pods = Vec::new();
    for entry in entries.take(MOST) {
        let path = entry?.path();
        let mut text = Vec::new();
        // A file may go away meanwhile.
        let file = File::open(&path).map(|file| file.take(LARGEST_FILE));
        if file
            .and_then(|mut file| file.read_to_end(&mut text))
            .is_ok()
        {
            pods.extend(pod(&text));
        }
    }
    pods.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(pods)
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
    let uri: Uri = uri
        .parse()
        .with_context(|| format!("{uri} is no address"))?;
    let headers = HeaderMap::new();
    let mut answer = client.send(Request::get(&uri, &headers)).await?;
    let document = answer.document(LARGEST_ANSWER).await?;
    ensure!(
        answer.status.is_success(),
        "{uri} answered {}",
        answer.status
    );
    let list: PodList = serde_json::from_slice(&document)
        .with_context(|| format!("the answer of {uri} is no list of pods"))?;
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
