//! The nodes of the cluster that run Instar, read from its API server. Such a node says its version itself, by a label of its own object
//! (`node_metadata`).
//!
//! The machine of a control plane asks as an administrator of its own cluster. Any other node asks with kubelet's certificate. Since
//! Kubernetes 1.32 that certificate may read the node's own object alone, unless the cluster has a role that allows more.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context as _;
use instar_http_client::Client;
use serde::Deserialize;

use super::api_server::{client, get};
use super::node_metadata::VERSION;
use super::{control_plane, kubelet_certificate};
use crate::config::{ClientIdentity, Kubernetes, Secret};

/// The nodes of one answer. An object lists the images of its node, so it may have tens of kilobytes.
const PAGE: usize = 25;
/// Limit on the answers of one look.
const MOST_PAGES: usize = 40;
/// Limit on an answer, in bytes.
const LARGEST: usize = 4 << 20;
/// The label of nodes that have a control plane.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// A node of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its name.
    pub name: String,
    /// The identity that its firmware gives.
    pub firmware_id: String,
    /// Its addresses within the cluster's network.
    pub addresses: Vec<IpAddr>,
    /// Whether it has a control plane.
    pub is_control_plane: bool,
    /// The version of Instar that it runs.
    pub version: String,
}

/// Reads all nodes that run Instar; none if this node has not joined.
///
/// # Errors
/// The API server does not answer, or refuses.
pub async fn cluster_nodes(kubernetes: &Kubernetes) -> anyhow::Result<Vec<ClusterNode>> {
    let cluster = &kubernetes.cluster;
    let identity = match &kubernetes.control_plane {
        Some(plane) => control_plane::own_identity(plane)?,
        None => {
            let pem = kubelet_certificate::read().context("kubelet's certificate")?;
            let Some(pem) = pem else {
                return Ok(Vec::new());
            };
            ClientIdentity {
                certificate: pem.clone(),
                key: Secret::new(pem),
            }
        }
    };
    all_pages(&client(cluster, identity), &cluster.endpoint.to_string()).await
}

async fn all_pages(client: &Client, server: &str) -> anyhow::Result<Vec<ClusterNode>> {
    let mut nodes = Vec::new();
    let mut after = String::new();
    for _ in 0..MOST_PAGES {
        let page = page(client, server, &after).await?;
        nodes.extend(page.items.into_iter().filter_map(of_instar));
        after = page.metadata.r#continue;
        if after.is_empty() {
            return Ok(nodes);
        }
    }
    anyhow::bail!(
        "the cluster has more than {} nodes, which is more than are read",
        PAGE * MOST_PAGES
    )
}

async fn page(client: &Client, server: &str, after: &str) -> anyhow::Result<Page> {
    let mut uri = format!("{server}/api/v1/nodes?limit={PAGE}");
    if !after.is_empty() {
        uri.push_str("&continue=");
        uri.extend(percent_encoding::utf8_percent_encode(
            after,
            percent_encoding::NON_ALPHANUMERIC,
        ));
    }
    get(client, &uri, LARGEST).await
}

/// A list of nodes, as far as it is needed.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    items: Vec<NodeItem>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(default)]
    r#continue: String,
}

#[derive(Deserialize)]
struct NodeItem {
    metadata: NodeItemMetadata,
    #[serde(default)]
    status: NodeStatus,
}

#[derive(Deserialize)]
struct NodeItemMetadata {
    name: String,
    #[serde(default)]
    labels: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct NodeStatus {
    addresses: Vec<NodeAddress>,
    node_info: NodeInfo,
}

#[derive(Deserialize)]
struct NodeAddress {
    r#type: String,
    address: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NodeInfo {
    #[serde(rename = "systemUUID")]
    system_uuid: String,
}

fn of_instar(NodeItem { metadata, status }: NodeItem) -> Option<ClusterNode> {
    let addresses = status.addresses.iter();
    let internal = addresses.filter(|it| it.r#type == "InternalIP");
    Some(ClusterNode {
        version: metadata.labels.get(VERSION)?.clone(),
        addresses: internal.filter_map(|it| it.address.parse().ok()).collect(),
        is_control_plane: metadata.labels.contains_key(CONTROL_PLANE),
        firmware_id: status.node_info.system_uuid,
        name: metadata.name,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_http_client::{Proxies, Trust};
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::super::node_metadata::{Mode, NodeMetadata};
    use super::*;
    use crate::config::NodeSettings;

    /// A node with the labels that a machine of Instar gives itself, by the change that it sends.
    fn node_of_instar(name: &str, labels: Value) -> Value {
        let metadata = NodeMetadata::of(&NodeSettings::default(), Mode::Installed, "v0.2.0", None);
        let mut node = node(name, labels);
        let change = metadata.change_of(&node).unwrap();
        for part in ["labels", "annotations"] {
            for (name, value) in change["metadata"][part].as_object().unwrap() {
                node["metadata"][part][name] = value.clone();
            }
        }
        node
    }

    fn node(name: &str, labels: Value) -> Value {
        let address = |kind: &str, address: &str| json!({"type": kind, "address": address});
        json!({
            "metadata": {"name": name, "labels": labels, "annotations": {"volumes": "x"}, "uid": "u"},
            "spec": {"podCIDR": "10.244.0.0/24"},
            "status": {
                "addresses": [
                    address("InternalIP", "10.0.0.5"),
                    address("InternalIP", "fd00::5"),
                    address("ExternalIP", "192.0.2.5"),
                    address("Hostname", name),
                ],
                "nodeInfo": {"systemUUID": "id-1", "osImage": "Debian GNU/Linux 13", "machineID": "m"},
                "images": [{"names": ["a"], "sizeBytes": 1}],
            },
        })
    }

    /// A server that gives these answers, one for each connection, and returns the paths that it was asked for.
    async fn serve(answers: Vec<(u16, String)>) -> (String, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let mut paths = Vec::new();
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                let request = String::from_utf8(request).unwrap();
                paths.push(request.split(' ').nth(1).unwrap().to_owned());
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            paths
        });
        (server, serving)
    }

    async fn ask(server: &str) -> anyhow::Result<Vec<ClusterNode>> {
        let client = Client::new(Trust::default(), &Proxies::default());
        all_pages(&client, server).await
    }

    #[tokio::test]
    async fn nodes_of_instar_come_page_by_page() {
        let one = node_of_instar("one", json!({ CONTROL_PLANE: "" }));
        let of_debian = node("debian", json!({}));
        let first = json!({"metadata": {"continue": "a/b="}, "items": [one, of_debian]});
        let second = json!({"items": [node_of_instar("two", json!({}))]});
        let answers = vec![(200, first.to_string()), (200, second.to_string())];
        let (server, serving) = serve(answers).await;
        let nodes = ask(&server).await.unwrap();
        let expected = ["10.0.0.5", "fd00::5"].map(|it| it.parse::<IpAddr>().unwrap());
        assert_eq!(nodes[0].addresses, expected);
        assert_eq!(nodes[0].firmware_id, "id-1");
        let told = nodes.iter().map(|node| {
            let name = node.name.as_str();
            (name, node.is_control_plane, node.version.as_str())
        });
        let told: Vec<_> = told.collect();
        assert_eq!(told, [("one", true, "v0.2.0"), ("two", false, "v0.2.0")]);
        let paths = serving.await.unwrap();
        assert_eq!(
            paths,
            [
                "/api/v1/nodes?limit=25",
                "/api/v1/nodes?limit=25&continue=a%2Fb%3D"
            ]
        );
    }

    #[tokio::test]
    async fn a_refusal_is_an_error() {
        let (server, _serving) = serve(vec![(403, "{}".to_owned())]).await;
        let error = ask(&server).await.unwrap_err().to_string();
        assert!(error.contains("403"), "{error}");
    }
}
