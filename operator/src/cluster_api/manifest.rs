//! The objects that the management cluster needs: rights, the deployment, its service and the registration.

use serde_json::{Value, json};

use crate::failure::Error;
use crate::manifest::{documents, granted, rule};

const NAME: &str = "instar-capi-extension";
const NAMESPACE: &str = "instar-system";
/// The image of one's own registry.
const IMAGE: &str = concat!(
    "registry.local/instar/capi-extension:v",
    env!("CARGO_PKG_VERSION")
);
/// The Secret with tls.crt, tls.key and ca.crt, as cert-manager writes it.
const CERTIFICATE: &str = "instar-capi-extension-tls";

/// All that an installation needs, as YAML.
///
/// # Errors
/// It cannot be written as YAML.
pub fn management() -> Result<String, Error> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named()});
    let namespace =
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    let rules = json!([
        // The settings that an administrator has written.
        rule("runtime.cluster.x-k8s.io", "extensionconfigs", &["list"]),
        // The node of a Machine, and its mark.
        rule("cluster.x-k8s.io", "machines", &["get", "patch"]),
        // The image that an infrastructure machine names, of whichever kind it is.
        rule("infrastructure.cluster.x-k8s.io", "*", &["get"]),
        // The patches that a bootstrap config lists.
        rule("bootstrap.cluster.x-k8s.io", "*", &["get"]),
        // CLUSTER-kubeconfig: the way to the nodes of a cluster. RBAC knows no patterns of names.
        rule("", "secrets", &["get"]),
    ]);
    let [role, binding] = granted(
        "ClusterRole",
        &json!({"name": NAME}),
        NAME,
        NAMESPACE,
        &rules,
    );
    documents(&[
        namespace,
        account,
        role,
        binding,
        deployment(),
        service(),
        registration(),
    ])
}

fn named() -> Value {
    json!({"name": NAME, "namespace": NAMESPACE})
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": NAME})
}

fn deployment() -> Value {
    let pod = json!({
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        // The managers end when no extension answers: two replicas on one node would go with it.
        "topologySpreadConstraints": [{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": labels()},
        }],
        "containers": [container()],
        "volumes": [{"name": "certificates", "secret": {"secretName": CERTIFICATE}}],
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": named(),
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels()},
            "template": {"metadata": {"labels": labels()}, "spec": pod},
        },
    })
}

fn container() -> Value {
    let probe = json!({"httpGet": {"path": "/healthz", "port": "hooks", "scheme": "HTTPS"}, "periodSeconds": 20});
    json!({
        "name": "extension", "image": IMAGE, "args": ["serve"],
        "env": [
            {"name": "INSTAR_LISTEN", "value": "0.0.0.0:9443"},
            {"name": "INSTAR_CERTIFICATES", "value": "/var/run/secrets/certificates"},
        ],
        "ports": [{"name": "hooks", "containerPort": 9443}],
        "livenessProbe": probe, "readinessProbe": probe,
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "certificates", "mountPath": "/var/run/secrets/certificates", "readOnly": true}],
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": named(),
        "spec": {"selector": labels(), "ports": [{"name": "hooks", "port": 443, "targetPort": "hooks"}]},
    })
}

/// Cluster API copies the authority out of the Secret itself.
fn registration() -> Value {
    json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig",
        "metadata": {
            "name": NAME,
            "annotations": {"runtime.cluster.x-k8s.io/inject-ca-from-secret": format!("{NAMESPACE}/{CERTIFICATE}")},
        },
        "spec": {
            "clientConfig": {"service": {"name": NAME, "namespace": NAMESPACE, "port": 443}},
            "namespaceSelector": {},
            "settings": {"osImagePath": "/spec/osImage", "neverReplace": "false"},
        },
    })
}
