//! The static pods of the control plane.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::place::Place;
use crate::config::{Component, ControlPlane, ImageReference};

/// The version of etcd, unless the config names an image: that of kubeadm's list for this release of Kubernetes.
const ETCD_VERSION: &str = "3.6.8-0";
/// etcd's address for its clients.
const ETCD: &str = "https://127.0.0.1:2379";
/// etcd's address for other members of its cluster, of which there are none.
pub(super) const PEERS: &str = "https://127.0.0.1:2380";
/// Where images are from, unless the config says otherwise.
const REGISTRY: &str = "registry.k8s.io";

/// The API server's own files.
pub(super) const ADMISSION: &str = "/etc/kubernetes/apiserver/admission.json";
pub(super) const AUDIT_POLICY: &str = "/etc/kubernetes/apiserver/audit-policy.json";
pub(super) const ENCRYPTION: &str = "/etc/kubernetes/apiserver/encryption.json";
/// The directory of the audit log.
const AUDIT_LOG: &str = "/var/log/kube-apiserver";

/// Names of the pods, and of their programs.
pub(super) const NAMES: [&str; 5] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
];

/// A pod to be: its program and what that sees of the node.
struct Pod<'a> {
    name: &'static str,
    image: String,
    options: Vec<(&'static str, String)>,
    component: &'a Component,
    /// Paths of the node, and whether they may be written.
    paths: Vec<(&'static str, bool)>,
    /// Requests of CPU and memory: enough to be placed first, and small enough for a small machine.
    requests: (&'static str, &'static str),
    /// The address at which it says that it lives: port, scheme, path.
    lives_at: Option<(u16, &'static str, &'static str)>,
    privileged: bool,
}

/// Returns the manifests by the names of their pods. `files` are digests of the files that each program reads at its start alone.
pub(super) fn manifests(
    plane: &ControlPlane,
    place: &Place,
    version: &str,
    files: &BTreeMap<&'static str, String>,
) -> BTreeMap<&'static str, String> {
    let mut pods = vec![
        etcd(plane, place),
        api_server(plane, place, version),
        controller_manager(plane, version),
        scheduler(plane, version),
    ];
    pods.extend(
        plane
            .proxy
            .as_ref()
            .map(|it| proxy(plane, it, place, version)),
    );
    let manifest = |pod: Pod<'_>| {
        let digest = files.get(pod.name).map_or("", String::as_str);
        (pod.name, pod.manifest(digest).to_string())
    };
    pods.into_iter().map(manifest).collect()
}

/// Returns an image: where the config says, in the version of the extension. A digest is believed as it is.
pub(super) fn image(component: &Component, name: &str, version: &str) -> String {
    match &component.image {
        Some(image) if image.digest().is_some() => image.to_string(),
        Some(image) => tagged(image, version),
        None => format!("{REGISTRY}/{name}:{version}"),
    }
}

fn tagged(image: &ImageReference, version: &str) -> String {
    format!("{}/{}:{version}", image.registry(), image.repository())
}

fn pki(file: &str) -> String {
    format!("/etc/kubernetes/pki/{file}")
}

pub(super) fn subnets(subnets: &[crate::config::Cidr]) -> String {
    let subnets: Vec<String> = subnets.iter().map(ToString::to_string).collect();
    subnets.join(",")
}

/// The name of etcd's image.
pub fn etcd_image(plane: &ControlPlane) -> String {
    let named = plane.etcd.image.as_ref().map(ToString::to_string);
    named.unwrap_or_else(|| format!("{REGISTRY}/etcd:{ETCD_VERSION}"))
}

/// Returns the image that a pod's manifest names.
pub(super) fn image_of(manifest: &[u8]) -> Option<String> {
    let manifest: Value = serde_json::from_slice(manifest).ok()?;
    let image = manifest["spec"]["containers"][0]["image"].as_str();
    image.map(str::to_owned)
}

fn etcd<'a>(plane: &'a ControlPlane, place: &Place) -> Pod<'a> {
    Pod {
        name: "etcd",
        image: etcd_image(plane),
        options: vec![
            ("name", place.node.clone()),
            ("data-dir", "/var/lib/etcd".to_owned()),
            ("listen-client-urls", ETCD.to_owned()),
            ("advertise-client-urls", ETCD.to_owned()),
            ("listen-peer-urls", PEERS.to_owned()),
            ("initial-advertise-peer-urls", PEERS.to_owned()),
            ("initial-cluster", format!("{}={PEERS}", place.node)),
            ("listen-metrics-urls", "http://127.0.0.1:2381".to_owned()),
            ("client-cert-auth", "true".to_owned()),
            ("trusted-ca-file", pki("etcd-ca.crt")),
            ("cert-file", pki("etcd.crt")),
            ("key-file", pki("etcd.key")),
            ("peer-client-cert-auth", "true".to_owned()),
            ("peer-trusted-ca-file", pki("etcd-ca.crt")),
            ("peer-cert-file", pki("etcd.crt")),
            ("peer-key-file", pki("etcd.key")),
        ],
        component: &plane.etcd,
        paths: vec![("/var/lib/etcd", true), ("/etc/kubernetes/pki", false)],
        requests: ("100m", "64Mi"),
        lives_at: Some((2381, "HTTP", "/livez")),
        privileged: false,
    }
}

fn api_server<'a>(plane: &'a ControlPlane, place: &Place, version: &str) -> Pod<'a> {
    let set = |text: &str| text.to_owned();
    let mut options = vec![
        ("allow-privileged", set("true")),
        ("authorization-mode", set("Node,RBAC")),
        ("bind-address", set("0.0.0.0")),
        ("client-ca-file", pki("ca.crt")),
        ("enable-admission-plugins", set("NodeRestriction")),
        ("enable-bootstrap-token-auth", set("true")),
        ("etcd-servers", set(ETCD)),
        ("etcd-cafile", pki("etcd-ca.crt")),
        ("etcd-certfile", pki("apiserver-etcd-client.crt")),
        ("etcd-keyfile", pki("apiserver-etcd-client.key")),
        (
            "kubelet-client-certificate",
            pki("apiserver-kubelet-client.crt"),
        ),
        ("kubelet-client-key", pki("apiserver-kubelet-client.key")),
        (
            "kubelet-preferred-address-types",
            set("InternalIP,ExternalIP,Hostname"),
        ),
        ("profiling", set("false")),
        ("proxy-client-cert-file", pki("front-proxy-client.crt")),
        ("proxy-client-key-file", pki("front-proxy-client.key")),
        ("requestheader-allowed-names", set("front-proxy-client")),
        ("requestheader-client-ca-file", pki("front-proxy-ca.crt")),
        ("requestheader-extra-headers-prefix", set("X-Remote-Extra-")),
        ("requestheader-group-headers", set("X-Remote-Group")),
        ("requestheader-username-headers", set("X-Remote-User")),
        ("secure-port", plane.port.to_string()),
        ("service-account-issuer", plane.token_issuer.clone()),
        ("service-account-key-file", pki("sa.key")),
        ("service-account-signing-key-file", pki("sa.key")),
        ("service-cluster-ip-range", subnets(&plane.service_subnets)),
        ("tls-cert-file", pki("apiserver.crt")),
        ("tls-private-key-file", pki("apiserver.key")),
    ];
    let mut paths = vec![
        ("/etc/kubernetes/pki", false),
        ("/etc/kubernetes/apiserver", false),
    ];
    options.extend(
        place
            .addresses
            .first()
            .map(|it| ("advertise-address", it.to_string())),
    );
    if !plane.admission.is_empty() {
        options.push(("admission-control-config-file", set(ADMISSION)));
    }
    if plane.encryption.is_some() {
        options.push(("encryption-provider-config", set(ENCRYPTION)));
    }
    if plane.audit_policy.is_some() {
        options.push(("audit-policy-file", set(AUDIT_POLICY)));
        options.push(("audit-log-path", format!("{AUDIT_LOG}/audit.log")));
        options.push(("audit-log-maxsize", set("32")));
        options.push(("audit-log-maxbackup", set("2")));
        paths.push((AUDIT_LOG, true));
    }
    Pod {
        name: "kube-apiserver",
        image: image(&plane.api_server, "kube-apiserver", version),
        options,
        component: &plane.api_server,
        paths,
        requests: ("200m", "256Mi"),
        lives_at: Some((plane.port, "HTTPS", "/livez")),
        privileged: false,
    }
}

fn controller_manager<'a>(plane: &'a ControlPlane, version: &str) -> Pod<'a> {
    let kubeconfig = "/etc/kubernetes/controller-manager.conf";
    let set = |text: &str| text.to_owned();
    Pod {
        name: "kube-controller-manager",
        image: image(
            &plane.controller_manager,
            "kube-controller-manager",
            version,
        ),
        options: vec![
            ("allocate-node-cidrs", set("true")),
            ("authentication-kubeconfig", set(kubeconfig)),
            ("authorization-kubeconfig", set(kubeconfig)),
            ("bind-address", set("127.0.0.1")),
            ("cluster-cidr", subnets(&plane.pod_subnets)),
            ("cluster-signing-cert-file", pki("cluster-ca.crt")),
            ("cluster-signing-key-file", pki("cluster-ca.key")),
            ("controllers", set("*,tokencleaner")),
            ("kubeconfig", set(kubeconfig)),
            // There is one machine: nobody to elect.
            ("leader-elect", set("false")),
            ("profiling", set("false")),
            ("root-ca-file", pki("ca.crt")),
            ("service-account-private-key-file", pki("sa.key")),
            ("service-cluster-ip-range", subnets(&plane.service_subnets)),
            ("use-service-account-credentials", set("true")),
        ],
        component: &plane.controller_manager,
        paths: vec![("/etc/kubernetes/pki", false), (kubeconfig, false)],
        requests: ("50m", "64Mi"),
        lives_at: Some((10257, "HTTPS", "/healthz")),
        privileged: false,
    }
}

fn scheduler<'a>(plane: &'a ControlPlane, version: &str) -> Pod<'a> {
    let kubeconfig = "/etc/kubernetes/scheduler.conf";
    let set = |text: &str| text.to_owned();
    Pod {
        name: "kube-scheduler",
        image: image(&plane.scheduler, "kube-scheduler", version),
        options: vec![
            ("authentication-kubeconfig", set(kubeconfig)),
            ("authorization-kubeconfig", set(kubeconfig)),
            ("bind-address", set("127.0.0.1")),
            ("kubeconfig", set(kubeconfig)),
            ("leader-elect", set("false")),
            ("profiling", set("false")),
        ],
        component: &plane.scheduler,
        paths: vec![(kubeconfig, false)],
        requests: ("25m", "32Mi"),
        lives_at: Some((10259, "HTTPS", "/healthz")),
        privileged: false,
    }
}

fn proxy<'a>(
    plane: &ControlPlane,
    component: &'a Component,
    place: &Place,
    version: &str,
) -> Pod<'a> {
    let kubeconfig = "/etc/kubernetes/kube-proxy.conf";
    Pod {
        name: "kube-proxy",
        image: image(component, "kube-proxy", version),
        options: vec![
            ("cluster-cidr", subnets(&plane.pod_subnets)),
            ("hostname-override", place.node.clone()),
            ("kubeconfig", kubeconfig.to_owned()),
        ],
        component,
        paths: vec![(kubeconfig, false)],
        requests: ("25m", "32Mi"),
        lives_at: None,
        // It writes rules for packets, and settings of the kernel.
        privileged: true,
    }
}

/// Returns a program's command line: the config's options take precedence.
pub(super) fn command(program: &str, own: &[(&str, String)], component: &Component) -> Vec<String> {
    let mut command = vec![program.to_owned()];
    let given = &component.arguments;
    let own = own.iter().filter(|(name, _)| !given.contains_key(*name));
    command.extend(own.map(|(name, value)| format!("--{name}={value}")));
    for (name, values) in given {
        command.extend(values.iter().map(|value| format!("--{name}={value}")));
    }
    command
}

impl Pod<'_> {
    fn manifest(&self, digest: &str) -> Value {
        let name = self.name;
        let numbered = || self.paths.iter().enumerate();
        let volumes: Vec<Value> = numbered()
            .map(|(number, (path, writable))| {
                let is_file = path.ends_with(".conf");
                let kind = match (is_file, writable) {
                    (true, _) => "File",
                    (false, _) => "DirectoryOrCreate",
                };
                json!({"name": format!("path-{number}"), "hostPath": {"path": path, "type": kind}})
            })
            .collect();
        let mounts: Vec<Value> = numbered()
            .map(|(number, (path, writable))| json!({"name": format!("path-{number}"), "mountPath": path, "readOnly": !writable}))
            .collect();
        let security = match self.privileged {
            true => json!({"privileged": true}),
            false => json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}),
        };
        let mut container = json!({
            "name": name,
            "image": self.image,
            "command": command(name, &self.options, self.component),
            "imagePullPolicy": "IfNotPresent",
            "resources": {"requests": {"cpu": self.requests.0, "memory": self.requests.1}},
            "securityContext": security,
            "volumeMounts": mounts,
        });
        if let Some((port, scheme, path)) = self.lives_at {
            let asked = json!({"host": "127.0.0.1", "port": port, "scheme": scheme, "path": path});
            let probe = |failures: u32| json!({"httpGet": asked, "periodSeconds": 10, "timeoutSeconds": 15, "failureThreshold": failures});
            // A slow machine gets ten minutes for the first start.
            container["startupProbe"] = probe(60);
            container["livenessProbe"] = probe(8);
        }
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "kube-system",
                "labels": {"component": name, "tier": "control-plane"},
                // Another content of its files is another pod.
                "annotations": {"instar.dev/files": digest},
            },
            "spec": {
                "hostNetwork": true,
                "priorityClassName": "system-node-critical",
                "priority": 2_000_001_000,
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [container],
                "volumes": volumes,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::super::a_node::plane;
    use super::*;

    fn pods(plane: &ControlPlane) -> BTreeMap<&'static str, Value> {
        let place = Place {
            node: "cp-1".to_owned(),
            domain: "cluster.local".to_owned(),
            addresses: vec!["10.0.2.15".parse().unwrap()],
        };
        let files = [("kube-scheduler", "1a2b".to_owned())].into();
        let manifests = manifests(plane, &place, "v1.36.3", &files);
        let parsed = manifests.into_iter();
        parsed
            .map(|(name, text)| (name, serde_json::from_str(&text).unwrap()))
            .collect()
    }

    fn command_of(pod: &Value) -> Vec<&str> {
        let command = pod["spec"]["containers"][0]["command"].as_array().unwrap();
        command.iter().filter_map(Value::as_str).collect()
    }

    #[test]
    fn images_are_in_the_version_of_the_extension() {
        let mut plane = plane();
        plane.scheduler.image = Some("r.example.com/k8s/scheduler:v1.30.0".parse().unwrap());
        let digest = format!("sha256:{}", "a".repeat(64));
        let whole = format!("r.example.com/kcm@{digest}");
        plane.controller_manager.image = Some(whole.parse().unwrap());
        plane.etcd.image = Some("r.example.com/etcd:v3.7.3".parse().unwrap());
        let pods = pods(&plane);
        let image = |name: &str| pods[name]["spec"]["containers"][0]["image"].clone();
        assert_eq!(
            image("kube-apiserver"),
            "registry.k8s.io/kube-apiserver:v1.36.3"
        );
        assert_eq!(
            image("kube-scheduler"),
            "r.example.com/k8s/scheduler:v1.36.3"
        );
        assert_eq!(image("kube-controller-manager"), whole.as_str());
        assert_eq!(image("etcd"), "r.example.com/etcd:v3.7.3");
        let read = image_of(pods["etcd"].to_string().as_bytes());
        assert_eq!(read, Some(etcd_image(&plane)));
        assert_eq!(image_of(b"{"), None);
        assert!(!pods.contains_key("kube-proxy"));
        let files = &pods["kube-scheduler"]["metadata"]["annotations"]["instar.dev/files"];
        assert_eq!(files, "1a2b");
    }

    #[test]
    fn options_of_the_config_take_precedence() {
        let mut plane = plane();
        let given = ["profiling", "v"].map(|name| (name.to_owned(), vec!["2".to_owned()]));
        plane.api_server.arguments = given.into();
        plane.audit_policy = Some(json!({"kind": "Policy"}));
        let pods = pods(&plane);
        let options = command_of(&pods["kube-apiserver"]);
        assert_eq!(options[0], "kube-apiserver");
        for expected in [
            "--profiling=2",
            "--v=2",
            "--advertise-address=10.0.2.15",
            "--service-account-issuer=https://cluster.example.com:443",
            "--audit-policy-file=/etc/kubernetes/apiserver/audit-policy.json",
        ] {
            assert!(options.contains(&expected), "{options:?}");
        }
        assert!(!options.contains(&"--profiling=false"));
    }
}
