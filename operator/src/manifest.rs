//! The manifest of an installation: definitions, rights and the deployment.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde::Serialize;
use serde_json::{Value, json};

use crate::api::{Channel, NodeUpgrade, Pool};
use crate::failure::Error;
use crate::node_lease;

/// The name of the Deployment, and of all that is its own.
pub(crate) const NAME: &str = "instar-operator";
/// The account whose tokens steer pools on the page, and its role.
const PAGE: &str = "instar-operator-page";
/// The ConfigMap with more variables of the environment, if there is one.
const ENVIRONMENT: &str = "instar-operator-environment";

/// The Secret with the client configuration by which configs are changed. It is the administrator's consent: without it, none is changed.
pub(crate) const CONFIG_SECRET: &str = "instar-operator-config-talosconfig";

/// The values that differ from one installation to another.
#[derive(Clone, Copy, Debug)]
struct Place {
    namespace: &'static str,
    image: &'static str,
    /// The Secret with the client configuration for the APIs of the nodes, under the key `config`.
    secret: &'static str,
    /// The same for changes of configs, if there is one.
    config_secret: &'static str,
}

/// An installation without a tool; the image is that of one's own registry.
const PLAIN: Place = Place {
    namespace: "instar-system",
    image: concat!(
        "registry.local/instar/operator:v",
        env!("CARGO_PKG_VERSION")
    ),
    secret: "instar-operator-talosconfig",
    config_secret: CONFIG_SECRET,
};
/// The template of the Helm chart.
const TEMPLATE: Place = Place {
    namespace: "{{ .Release.Namespace }}",
    image: "{{ .Values.image }}",
    secret: "{{ .Values.talosconfigSecret }}",
    config_secret: "{{ .Values.configTalosconfigSecret }}",
};

/// The definitions of the custom resources, as YAML.
///
/// # Errors
/// They cannot be written as YAML.
pub fn definitions() -> Result<String, Error> {
    let all: [CustomResourceDefinition; 3] = [Channel::crd(), Pool::crd(), NodeUpgrade::crd()];
    documents(&all)
}

/// All that an installation needs, as YAML.
///
/// # Errors
/// As [`definitions`].
pub fn all() -> Result<String, Error> {
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLAIN.namespace}});
    let namespace = documents(&[namespace])?;
    let definitions = definitions()?;
    let objects = documents(&PLAIN.objects())?;
    Ok(format!("{definitions}---\n{namespace}---\n{objects}"))
}

/// The template of the Helm chart: the same objects.
///
/// # Errors
/// As [`definitions`].
pub fn template() -> Result<String, Error> {
    documents(&TEMPLATE.objects())
}

/// Objects as YAML.
pub(crate) fn documents<T: Serialize>(all: &[T]) -> Result<String, Error> {
    let texts = all.iter().map(|one| {
        let value = serde_json::to_value(one).map_err(|error| Error::Other(error.to_string()))?;
        serde_saphyr::to_string(&value).map_err(|error| Error::Other(error.to_string()))
    });
    let texts: Result<Vec<String>, Error> = texts.collect();
    Ok(texts?.join("---\n"))
}

impl Place {
    fn objects(self) -> Vec<Value> {
        let [role, binding] = self.rights();
        let [own_role, own_binding] = self.rights_in_the_namespace();
        let [lease_role, lease_binding] = self.rights_to_the_leases_of_nodes();
        let [page_role, page_binding] = self.rights_of_the_page();
        vec![
            self.account(NAME),
            role,
            binding,
            own_role,
            own_binding,
            lease_role,
            lease_binding,
            self.account(PAGE),
            page_role,
            page_binding,
            self.deployment(),
        ]
    }

    fn account(self, name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self.named(name)})
    }

    fn named(self, name: &str) -> Value {
        json!({"name": name, "namespace": self.namespace})
    }

    /// The verbs that the operator uses, and no others.
    fn rights(self) -> [Value; 2] {
        let rules = json!([
            rule("instar.dev", "channels", &["list", "watch"]),
            rule("instar.dev", "channels/status", &["patch"]),
            rule("instar.dev", "pools", &["get", "list", "watch", "patch"]),
            rule("instar.dev", "pools/status", &["update"]),
            rule(
                "instar.dev",
                "nodeupgrades",
                &["list", "watch", "create", "delete"]
            ),
            rule("instar.dev", "nodeupgrades/status", &["patch"]),
            // Cordons and their mark.
            rule("", "nodes", &["get", "list", "watch", "patch"]),
            // Drains; a pod is deleted only where a pool says onTimeout: Force.
            rule("", "pods", &["list", "watch", "delete"]),
            rule("", "pods/eviction", &["create"]),
            rule("events.k8s.io", "events", &["create"]),
        ]);
        self.granted("ClusterRole", &json!({"name": NAME}), NAME, &rules)
    }

    /// The lease, and the configs of nodes before they were changed.
    fn rights_in_the_namespace(self) -> [Value; 2] {
        let lease = json!({
            "apiGroups": [LEASES], "resources": ["leases"], "resourceNames": [NAME], "verbs": ["get", "update"],
        });
        let rules = json!([
            lease,
            rule(LEASES, "leases", &["create"]),
            rule(
                "",
                "secrets",
                &["get", "create", "update", "deletecollection"]
            ),
        ]);
        self.granted("Role", &self.named(NAME), NAME, &rules)
    }

    /// A node that tries a config proves by its Lease that it reaches its API server.
    fn rights_to_the_leases_of_nodes(self) -> [Value; 2] {
        let metadata = json!({"name": NAME, "namespace": node_lease::NAMESPACE});
        let rules = json!([rule(LEASES, "leases", &["get"])]);
        self.granted("Role", &metadata, NAME, &rules)
    }

    /// The rights that a visitor of the page needs for all that it shows and for all of its buttons. No program has a token of this account.
    fn rights_of_the_page(self) -> [Value; 2] {
        let rules = json!([
            rule("instar.dev", "pools", &["get", "list", "watch", "patch"]),
            rule("instar.dev", "nodeupgrades", &["list", "watch"]),
            // Patches are for holds.
            rule("", "nodes", &["list", "watch", "patch"]),
        ]);
        self.granted("ClusterRole", &json!({"name": PAGE}), PAGE, &rules)
    }

    /// A role, and its binding to the account of this name.
    fn granted(self, kind: &str, metadata: &Value, name: &str, rules: &Value) -> [Value; 2] {
        granted(kind, metadata, name, self.namespace, rules)
    }

    fn deployment(self) -> Value {
        let labels = json!({"app.kubernetes.io/name": NAME});
        let pod = json!({
            "serviceAccountName": NAME,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [self.container()],
            "volumes": [
                {"name": "talosconfig", "secret": {"secretName": self.secret}},
                {"name": "config-talosconfig", "secret": {"secretName": self.config_secret, "optional": true}},
            ],
        });
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": self.named(NAME),
            "spec": {
                // One drives, one waits for the lease: the node of the one that drives may be away itself.
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        })
    }

    fn container(self) -> Value {
        let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
        let probe =
            json!({"httpGet": {"path": "/healthz", "port": "metrics"}, "periodSeconds": 20});
        json!({
            "name": "operator", "image": self.image, "args": ["run"],
            "env": [
                field("POD_NAME", "metadata.name"),
                field("POD_NAMESPACE", "metadata.namespace"),
                field("NODE_NAME", "spec.nodeName"),
                {"name": "TALOSCONFIG", "value": "/var/run/secrets/talos.dev/config"},
                {"name": "INSTAR_CONFIG_TALOSCONFIG", "value": "/var/run/secrets/instar.dev/config"},
                {"name": "INSTAR_LISTEN", "value": "0.0.0.0:8080"},
                // No network reaches it: people come by `kubectl port-forward`, which is encrypted up to the pod.
                {"name": "INSTAR_PAGE", "value": "127.0.0.1:8095"},
            ],
            // A site's own, such as a proxy.
            "envFrom": [{"configMapRef": {"name": ENVIRONMENT, "optional": true}}],
            "ports": [{"name": "metrics", "containerPort": 8080}],
            "livenessProbe": probe, "readinessProbe": probe,
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [
                {"name": "talosconfig", "mountPath": "/var/run/secrets/talos.dev", "readOnly": true},
                {"name": "config-talosconfig", "mountPath": "/var/run/secrets/instar.dev", "readOnly": true},
            ],
        })
    }
}

/// The group of leases.
const LEASES: &str = "coordination.k8s.io";

/// A rule of a role.
pub(crate) fn rule(group: &str, resource: &str, verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": [resource], "verbs": verbs})
}

/// A role, and its binding to an account of the namespace, both of this name.
pub(crate) fn granted(
    kind: &str,
    metadata: &Value,
    name: &str,
    namespace: &str,
    rules: &Value,
) -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    let account = json!({"kind": "ServiceAccount", "name": name, "namespace": namespace});
    [
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "rules": rules}),
        json!({
            "apiVersion": version, "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": name}, "subjects": [account],
        }),
    ]
}
