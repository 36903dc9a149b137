//! kube-proxy on the other nodes of the cluster: the objects that it runs by. On the machine of the control plane it is a static pod, which
//! needs none of them and reaches the API server by the loopback (`manifests`).
//!
//! The decision: both, and not the DaemonSet alone. The machine of the control plane would reach its own API only by the address that others
//! use, which may lead over a load balancer, and would have no services while its API starts.

use serde_json::{Value, json};

use super::manifests::{command, image};
use super::object::Object;
use crate::config::{Component, ControlPlane};

/// The name of all objects but the binding.
const NAME: &str = "kube-proxy";
/// The name of the binding, and the role that Kubernetes has for kube-proxy.
const BINDING: &str = "instar:node-proxier";
const ROLE: &str = "system:node-proxier";
/// The port of the API server if its address names none.
const HTTPS: u16 = 443;

/// Returns the objects; none if the config turns kube-proxy off. `node` is the one of the control plane.
pub(super) fn objects(plane: &ControlPlane, version: &str, node: &str) -> Vec<Object> {
    let Some(component) = &plane.proxy else {
        return Vec::new();
    };
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": Object::metadata_in_system(NAME, &labels())});
    let subject = json!({"kind": "ServiceAccount", "name": NAME, "namespace": Object::SYSTEM});
    vec![
        Object::in_system("/api/v1", "serviceaccounts", NAME, account),
        Object::binding(BINDING, ROLE, &subject),
        daemon_set(plane, component, version, node),
    ]
}

fn labels() -> Value {
    json!({"k8s-app": NAME})
}

fn daemon_set(plane: &ControlPlane, component: &Component, version: &str, node: &str) -> Object {
    let content = json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": Object::metadata_in_system(NAME, &labels()),
        "spec": {
            "selector": {"matchLabels": labels()},
            "template": {"metadata": {"labels": labels()}, "spec": pod(plane, component, version, node)},
        },
    });
    Object::in_system("/apis/apps/v1", "daemonsets", NAME, content)
}

/// It runs where no pod has a network yet: that network may need services.
fn pod(plane: &ControlPlane, component: &Component, version: &str, node: &str) -> Value {
    let own = [
        (
            "cluster-cidr",
            super::manifests::subnets(&plane.pod_subnets),
        ),
        ("hostname-override", "$(NODE_NAME)".to_owned()),
    ];
    let container = json!({
        "name": NAME,
        "image": image(component, NAME, version),
        "command": command(NAME, &own, component),
        "env": environment(plane),
        "resources": {"requests": {"cpu": "25m", "memory": "32Mi"}},
        // It writes rules for packets, and settings of the kernel.
        "securityContext": {"privileged": true},
    });
    let is_other = json!({"key": "metadata.name", "operator": "NotIn", "values": [node]});
    json!({
        "serviceAccountName": NAME,
        "hostNetwork": true,
        "priorityClassName": "system-node-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchFields": [is_other]}],
        }}},
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    })
}

/// Where it finds the API server: the Service `kubernetes`, by which pods find it otherwise, is what it makes reachable.
fn environment(plane: &ControlPlane) -> Value {
    let endpoint = &plane.endpoint;
    let host = endpoint.host().unwrap_or_default();
    let port = endpoint.authority.rsplit_once(':');
    let port = port.and_then(|(_, port)| port.parse().ok());
    let port: u16 = port.unwrap_or(HTTPS);
    json!([
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "KUBERNETES_SERVICE_HOST", "value": host},
        {"name": "KUBERNETES_SERVICE_PORT", "value": port.to_string()},
    ])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::a_node::plane;
    use super::*;

    fn found(change: impl FnOnce(&mut ControlPlane)) -> Vec<Object> {
        let mut plane = plane();
        plane.proxy = Some(Component::default());
        change(&mut plane);
        objects(&plane, "v1.36.3", "cp-1")
    }

    #[test]
    fn each_object_is_at_its_path() {
        let objects = found(|_| {});
        let paths: Vec<&str> = objects.iter().map(|it| it.path.as_str()).collect();
        let expected = [
            "/api/v1/namespaces/kube-system/serviceaccounts/kube-proxy",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/instar:node-proxier",
            "/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy",
        ];
        assert_eq!(paths, expected);
        assert_eq!(found(|plane| plane.proxy = None), []);
    }

    #[test]
    fn every_other_node_runs_it_and_asks_the_api_server_by_its_address() {
        let objects = found(|plane| {
            let given = ("proxy-mode".to_owned(), vec!["nftables".to_owned()]);
            plane.proxy.as_mut().unwrap().arguments = [given].into();
        });
        let content = &objects.last().unwrap().content;
        let pod = &content["spec"]["template"]["spec"];
        let affinity = &pod["affinity"]["nodeAffinity"];
        let terms =
            &affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
        let expected = json!({"key": "metadata.name", "operator": "NotIn", "values": ["cp-1"]});
        assert_eq!(terms[0]["matchFields"][0], expected);
        assert_eq!(pod["tolerations"], json!([{"operator": "Exists"}]));
        let container = &pod["containers"][0];
        assert_eq!(container["image"], "registry.k8s.io/kube-proxy:v1.36.3");
        let expected = [
            "kube-proxy",
            "--cluster-cidr=10.244.0.0/16",
            "--hostname-override=$(NODE_NAME)",
            "--proxy-mode=nftables",
        ];
        assert_eq!(container["command"], json!(expected));
        assert_eq!(container["env"][1]["value"], "cluster.example.com");
        assert_eq!(container["env"][2]["value"], "443");
    }

    #[test]
    fn the_address_of_the_api_server_is_taken_apart() {
        for (endpoint, host, port) in [
            ("https://10.0.0.5:6443", "10.0.0.5", "6443"),
            ("https://[fd00::5]:6443", "fd00::5", "6443"),
            ("https://[fd00::5]", "fd00::5", "443"),
            ("https://cluster.example.com", "cluster.example.com", "443"),
        ] {
            let mut plane = plane();
            plane.endpoint = endpoint.parse().unwrap();
            let variables = environment(&plane);
            let found = [&variables[1]["value"], &variables[2]["value"]];
            assert_eq!(found, [host, port], "{endpoint}");
        }
    }
}
