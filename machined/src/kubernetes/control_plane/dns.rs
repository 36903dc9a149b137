//! CoreDNS, which answers for the names of the cluster's services: the objects that it runs by.
//!
//! ```text
//! pods ──► Service kube-dns, at the address that kubelet tells each pod ──► Deployment coredns ──► the API server, for services
//!                                                                                             └──► the node's own name servers
//! ```

use std::net::IpAddr;

use serde_json::{Value, json};

use super::object::{Object, RBAC};
use super::own_api::OwnApi;
use crate::config::{Cluster, ControlPlane, ImageReference, Manifest};

/// The name of all objects but the Service.
const NAME: &str = "coredns";
/// The name of the Service, which clusters have by convention.
const SERVICE: &str = "kube-dns";
/// The name of its rights.
const ROLE: &str = "system:coredns";
/// The ports of its health, of whether it is ready, and of its metrics.
const HEALTH: u16 = 8080;
const READY: u16 = 8181;
const METRICS: u16 = 9153;

/// Returns the objects; none if the config turns CoreDNS off.
pub(super) fn objects(cluster: &Cluster, plane: &ControlPlane) -> Vec<Object> {
    let Some(image) = &plane.core_dns else {
        return Vec::new();
    };
    vec![
        account(),
        role(),
        binding(),
        configuration(&cluster.domain),
        deployment(image),
        service(cluster, plane),
    ]
}

/// Whether a cluster's DNS is known by this object: whoever has made it brings the DNS.
pub(super) fn is_mark(object: &Object) -> bool {
    let kind = &object.content["kind"];
    kind == "Deployment" || kind == "Service"
}

/// Whether an object of the cluster is one that machined has never applied.
pub(super) fn is_of_another(object: &Value) -> bool {
    let managers = object["metadata"]["managedFields"].as_array();
    let mut managers = managers.into_iter().flatten();
    !managers.any(|it| it["manager"] == OwnApi::MANAGER)
}

/// Whether the config's manifests bring a DNS.
pub(super) fn is_among(manifests: &[Manifest]) -> bool {
    let mut objects = manifests.iter().flat_map(|it| &it.objects);
    objects.any(|object| {
        let is_named = [NAME, SERVICE].contains(&object.name.as_str());
        is_named && object.namespace.as_deref() == Some(Object::SYSTEM)
    })
}

/// The labels of its pods, by which people and other programs know a cluster's DNS.
fn labels() -> Value {
    json!({"k8s-app": SERVICE})
}

fn metadata(name: &str) -> Value {
    Object::metadata_in_system(name, &labels())
}

fn account() -> Object {
    let content = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(NAME)});
    Object::in_system("/api/v1", "serviceaccounts", NAME, content)
}

/// Its rights: to read what its answers are made from, and nothing else.
fn role() -> Object {
    let read = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]});
    Object {
        path: format!("/apis/{RBAC}/v1/clusterroles/{ROLE}"),
        content: json!({
            "apiVersion": format!("{RBAC}/v1"),
            "kind": "ClusterRole",
            "metadata": {"name": ROLE},
            "rules": [read("", &["services", "namespaces"]), read("discovery.k8s.io", &["endpointslices"])],
        }),
    }
}

fn binding() -> Object {
    let subject = json!({"kind": "ServiceAccount", "name": NAME, "namespace": Object::SYSTEM});
    Object::binding(ROLE, ROLE, &subject)
}

/// Its configuration, which it reads again when it changes. Names outside the cluster are the node's own name servers' to answer.
fn configuration(domain: &str) -> Object {
    let corefile = format!(
        "\
.:53 {{
    errors
    health :{HEALTH} {{
        lameduck 5s
    }}
    ready :{READY}
    prometheus :{METRICS}
    kubernetes {domain} in-addr.arpa ip6.arpa {{
        ttl 30
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
    }}
    forward . /etc/resolv.conf
    cache 30
    loop
    loadbalance
    reload
}}
"
    );
    let content = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(NAME),
        "data": {"Corefile": corefile},
    });
    Object::in_system("/api/v1", "configmaps", NAME, content)
}

fn deployment(image: &ImageReference) -> Object {
    let content = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(NAME),
        // Without a number of replicas: that is one, and whoever changes it keeps the say.
        "spec": {
            "selector": {"matchLabels": labels()},
            "template": {"metadata": {"labels": labels()}, "spec": pod(image)},
        },
    });
    Object::in_system("/apis/apps/v1", "deployments", NAME, content)
}

fn pod(image: &ImageReference) -> Value {
    let container = json!({
        "name": NAME,
        "image": image.to_string(),
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            port("dns", "UDP", 53),
            port("dns-tcp", "TCP", 53),
            port("metrics", "TCP", METRICS),
        ],
        "livenessProbe": {
            "httpGet": {"path": "/health", "port": HEALTH},
            "initialDelaySeconds": 60,
            "timeoutSeconds": 5,
            "failureThreshold": 5,
        },
        "readinessProbe": {"httpGet": {"path": "/ready", "port": READY}},
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "192Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        },
        "volumeMounts": [{"name": "configuration", "mountPath": "/etc/coredns", "readOnly": true}],
    });
    json!({
        "serviceAccountName": NAME,
        "priorityClassName": "system-cluster-critical",
        // Its own names are those of the node.
        "dnsPolicy": "Default",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [
            {"key": "CriticalAddonsOnly", "operator": "Exists"},
            {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
        ],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "configuration", "configMap": {"name": NAME}}],
    })
}

fn port(name: &str, protocol: &str, port: u16) -> Value {
    json!({"name": name, "protocol": protocol, "containerPort": port})
}

/// The Service, at the first of the addresses that kubelet tells pods which is one of a service.
fn service(cluster: &Cluster, plane: &ControlPlane) -> Object {
    let port = |name: &str, protocol: &str, port: u16| json!({"name": name, "protocol": protocol, "port": port, "targetPort": port});
    let mut content = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(SERVICE),
        "spec": {
            "selector": labels(),
            "ports": [port("dns", "UDP", 53), port("dns-tcp", "TCP", 53), port("metrics", "TCP", METRICS)],
        },
    });
    let is_of_service = |address: &&IpAddr| {
        let mut subnets = plane.service_subnets.iter();
        subnets.any(|subnet| subnet.contains(**address))
    };
    // One that is none, such as that of a cache on each node, is for another program to answer at.
    if let Some(address) = cluster.dns.iter().find(is_of_service) {
        content["spec"]["clusterIP"] = address.to_string().into();
    }
    Object::in_system("/api/v1", "services", SERVICE, content)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::a_node::{kubernetes, plane};
    use super::*;
    use crate::config::ManifestObject;

    fn found(change: impl FnOnce(&mut Cluster, &mut ControlPlane)) -> Vec<Object> {
        let (mut cluster, mut plane) = (kubernetes().cluster, plane());
        plane.core_dns = Some("r.example.com/coredns:v1.14.2".parse().unwrap());
        change(&mut cluster, &mut plane);
        objects(&cluster, &plane)
    }

    fn content(objects: &[Object], kind: &str) -> Value {
        let mut contents = objects.iter().map(|it| &it.content);
        contents.find(|it| it["kind"] == kind).unwrap().clone()
    }

    #[test]
    fn each_object_is_at_its_path() {
        let objects = found(|_, _| {});
        let paths: Vec<&str> = objects.iter().map(|it| it.path.as_str()).collect();
        let expected = [
            "/api/v1/namespaces/kube-system/serviceaccounts/coredns",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:coredns",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/system:coredns",
            "/api/v1/namespaces/kube-system/configmaps/coredns",
            "/apis/apps/v1/namespaces/kube-system/deployments/coredns",
            "/api/v1/namespaces/kube-system/services/kube-dns",
        ];
        assert_eq!(paths, expected);
        for object in &objects {
            let name = object.content["metadata"]["name"].as_str().unwrap();
            assert!(object.path.ends_with(&format!("/{name}")), "{object:?}");
        }
        assert_eq!(found(|_, plane| plane.core_dns = None), []);
    }

    #[test]
    fn they_are_those_of_the_cluster() {
        let objects = found(|cluster, _| cluster.domain = "site.local".to_owned());
        let corefile = content(&objects, "ConfigMap")["data"]["Corefile"].clone();
        let corefile = corefile.as_str().unwrap();
        assert!(
            corefile.contains("    kubernetes site.local in-addr.arpa ip6.arpa {\n"),
            "{corefile}"
        );
        assert!(corefile.contains("    ready :8181\n"), "{corefile}");
        let pod = content(&objects, "Deployment")["spec"]["template"].clone();
        assert_eq!(
            pod["spec"]["containers"][0]["image"],
            "r.example.com/coredns:v1.14.2"
        );
        let service = content(&objects, "Service");
        assert_eq!(service["spec"]["clusterIP"], "10.96.0.10");
        assert_eq!(service["spec"]["selector"], pod["metadata"]["labels"]);
    }

    #[test]
    fn the_address_of_another_program_is_left_to_it() {
        let address = |dns: &[&str]| {
            let dns = dns.iter().map(|it| it.parse().unwrap()).collect();
            let objects = found(|cluster, _| cluster.dns = dns);
            content(&objects, "Service")["spec"]["clusterIP"].clone()
        };
        assert_eq!(address(&["169.254.20.10", "10.96.0.53"]), "10.96.0.53");
        assert_eq!(address(&["169.254.20.10"]), Value::Null);
    }

    #[test]
    fn a_dns_of_somebody_else_is_known() {
        let by = |managers: &[&str]| {
            let fields: Vec<Value> = managers.iter().map(|it| json!({"manager": it})).collect();
            json!({"metadata": {"name": NAME, "managedFields": fields}})
        };
        assert!(is_of_another(&by(&["helm", "kube-controller-manager"])));
        assert!(!is_of_another(&by(&["kube-controller-manager", "instar"])));
        let objects = found(|_, _| {});
        let marks = objects.iter().filter(|object| is_mark(object));
        let marks: Vec<&Value> = marks.map(|it| &it.content["metadata"]["name"]).collect();
        assert_eq!(marks, [NAME, SERVICE]);
    }

    #[test]
    fn a_dns_of_the_manifests_is_known() {
        let of = |namespace: &str, name: &str| {
            let object = ManifestObject {
                api_version: "apps/v1".to_owned(),
                kind: "Deployment".to_owned(),
                namespace: Some(namespace.to_owned()),
                name: name.to_owned(),
                content: Value::Null,
            };
            [Manifest {
                name: "dns".to_owned(),
                objects: vec![object],
            }]
        };
        assert!(is_among(&of("kube-system", "coredns")));
        assert!(!is_among(&of("site", "coredns")));
        assert!(!is_among(&of("kube-system", "web")));
    }
}
