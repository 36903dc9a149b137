//! The objects of a cluster of Cluster API, and its providers, which the tests play.

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use instar_tests::{ControlPlane, Outcome};
use serde_json::{Value, json};

const INFRASTRUCTURE: &str = "infrastructure.cluster.x-k8s.io";
const BOOTSTRAP: &str = "bootstrap.cluster.x-k8s.io";

/// The kinds of the providers.
const KINDS: [(&str, &str); 5] = [
    (INFRASTRUCTURE, "InstarCluster"),
    (INFRASTRUCTURE, "InstarMachine"),
    (INFRASTRUCTURE, "InstarMachineTemplate"),
    (BOOTSTRAP, "InstarConfig"),
    (BOOTSTRAP, "InstarConfigTemplate"),
];

/// Makes a cluster of one machine deployment whose template is `v1`, with this image. A control plane that exists as an object alone is what the
/// core manager needs to look for nodes at all.
pub(super) fn make_cluster(plane: &ControlPlane, image: &str) -> Outcome {
    define(plane)?;
    apply(
        plane,
        "cluster",
        include_str!("../manifests/cluster_api.yaml"),
    )?;
    for object in ["instarcluster/lab", "instarmachine/control-plane"] {
        patch_status(plane, object, PROVISIONED)?;
    }
    template(plane, "v1", &json!({"osImage": image, "memoryMiB": 1024}))?;
    apply(
        plane,
        "workers",
        include_str!("../manifests/machine_deployment.yaml"),
    )
}

/// Makes a cluster of kubeadm's control planes whose template is `v1`, with this image.
pub(super) fn make_control_planes(plane: &ControlPlane, image: &str) -> Outcome {
    define(plane)?;
    template(plane, "v1", &json!({"osImage": image, "memoryMiB": 1024}))?;
    apply(
        plane,
        "control-planes",
        include_str!("../manifests/control_planes.yaml"),
    )?;
    patch_status(plane, "instarcluster/lab", PROVISIONED)
}

/// The status that a provider writes for an object that is there.
const PROVISIONED: &str = r#"{"status": {"initialization": {"provisioned": true}}}"#;

/// Applies a manifest, with the way to the cluster in it.
fn apply(plane: &ControlPlane, name: &str, manifest: &str) -> Outcome {
    let [certificate, key] = plane.client_certificate()?;
    let mut manifest = manifest.to_owned();
    for (name, text) in [
        ("${KUBECONFIG}", plane.inline_kubeconfig()?),
        ("${AUTHORITY}", plane.authority_certificate().to_owned()),
        ("${CERTIFICATE}", certificate),
        ("${KEY}", key),
    ] {
        manifest = manifest.replace(name, &serde_json::to_string(&text)?);
    }
    let manifest = manifest.replace("${PORT}", &plane.port().to_string());
    plane.kubectl().apply(name, &manifest)
}

/// Defines the kinds of the providers.
fn define(plane: &ControlPlane) -> Outcome {
    let kubectl = plane.kubectl();
    let definitions = KINDS.iter().map(|(group, kind)| definition(group, kind));
    let definitions: Vec<String> = definitions.collect();
    kubectl.apply("definitions", &definitions.join("---\n"))?;
    let wait = ["wait", "crd", "--all", "--for=condition=Established"];
    kubectl.run(&wait).map(drop)
}

fn plural(kind: &str) -> String {
    format!("{}s", kind.to_lowercase())
}

fn definition(group: &str, kind: &str) -> String {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({
        "name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}},
    });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        // The label says which contract of Cluster API the kind keeps.
        "metadata": {"name": format!("{}.{group}", plural(kind)), "labels": {"cluster.x-k8s.io/v1beta2": "v1alpha1"}},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": [version],
            "names": {"kind": kind, "plural": plural(kind), "singular": kind.to_lowercase()},
        },
    });
    format!("{definition}\n")
}

/// Makes a template of machines.
pub(super) fn template(plane: &ControlPlane, name: &str, spec: &Value) -> Outcome {
    let template = json!({
        "apiVersion": format!("{INFRASTRUCTURE}/v1alpha1"), "kind": "InstarMachineTemplate",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"template": {"spec": spec}},
    });
    plane.kubectl().apply("template", &template.to_string())
}

/// Has the machine deployment use a template.
pub(super) fn roll(plane: &ControlPlane, template: &str) -> Outcome {
    roll_spec(plane, &json!({"infrastructureRef": {"name": template}}))
}

/// Has the machine deployment ask for a version of Kubernetes.
pub(super) fn roll_version(plane: &ControlPlane, version: &str) -> Outcome {
    roll_spec(plane, &json!({ "version": version }))
}

/// Has the machine deployment use a template of bootstrap configs with these patches of the machine config, which it makes.
pub(super) fn roll_patches(plane: &ControlPlane, name: &str, patches: &[&str]) -> Outcome {
    let spec = json!({"role": "worker", "strategicPatches": patches});
    let template = json!({
        "apiVersion": format!("{BOOTSTRAP}/v1alpha1"), "kind": "InstarConfigTemplate",
        "metadata": {"name": name, "namespace": "default"}, "spec": {"template": {"spec": spec}},
    });
    plane.kubectl().apply("template", &template.to_string())?;
    roll_spec(plane, &json!({"bootstrap": {"configRef": {"name": name}}}))
}

fn roll_spec(plane: &ControlPlane, spec: &Value) -> Outcome {
    patch_deployment(plane, &json!({"spec": {"template": {"spec": spec}}}))
}

fn patch_deployment(plane: &ControlPlane, patch: &Value) -> Outcome {
    let patch = patch.to_string();
    let of = ["patch", "machinedeployment", "workers"];
    let how = ["--type=merge", "-p", &patch];
    plane.kubectl().run(&[&of[..], &how].concat()).map(drop)
}

/// Says whether the deployment's Machines are never to be replaced.
pub(super) fn never_replace(plane: &ControlPlane, value: &str) -> Outcome {
    let annotations = json!({"instar.dev/never-replace": value});
    let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
    patch_deployment(plane, &patch)
}

/// Makes a health check of the deployment's Machines that does not wait.
pub(super) fn make_health_check(plane: &ControlPlane) -> Outcome {
    let unhealthy = json!([{"type": "Ready", "status": "False", "timeoutSeconds": 1}]);
    let check = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "MachineHealthCheck", "metadata": {"name": "workers"},
        "spec": {
            "clusterName": "lab", "checks": {"unhealthyNodeConditions": unhealthy},
            "selector": {"matchLabels": {"cluster.x-k8s.io/deployment-name": "workers"}},
        },
    });
    plane.kubectl().apply("health-check", &check.to_string())
}

/// Registers the extension, with these settings.
pub(super) fn register(plane: &ControlPlane, url: &str, settings: &Value) -> Outcome {
    let authority = STANDARD.encode(plane.authority_certificate());
    let config = json!({
        "apiVersion": "runtime.cluster.x-k8s.io/v1beta2", "kind": "ExtensionConfig", "metadata": {"name": "instar"},
        "spec": {"clientConfig": {"url": url, "caBundle": authority}, "namespaceSelector": {}, "settings": settings},
    });
    plane
        .kubectl()
        .apply("extension-config", &config.to_string())
}

/// Does the providers' work for the machine of the deployment, once: it is the node of this name.
pub(super) fn provide_worker(plane: &ControlPlane, node: &str) -> Outcome {
    let machine = unprovided(plane, OF_THE_DEPLOYMENT)?.context("there is no machine yet")?;
    provide(plane, &machine, "instarconfig", node)
}

/// The first infrastructure machine with this label of which no provider has said anything.
pub(super) fn unprovided(plane: &ControlPlane, label: &str) -> anyhow::Result<Option<String>> {
    let shown = plane.kubectl().get(&["instarmachine", "-l", label])?;
    let mut machines = shown["items"].as_array().into_iter().flatten();
    let found = machines.find(|it| it["spec"]["providerID"].is_null());
    Ok(found.and_then(|it| Some(it["metadata"]["name"].as_str()?.to_owned())))
}

/// Does the providers' work for a machine, once: it is the node of this name. Its infrastructure and bootstrap objects have its name.
pub(super) fn provide(plane: &ControlPlane, machine: &str, config: &str, node: &str) -> Outcome {
    let kubectl = plane.kubectl();
    let id = format!(r#"{{"spec": {{"providerID": "instar://{node}"}}}}"#);
    let config = format!("{config}/{machine}");
    kubectl.get(&[&config])?;
    kubectl.run(&["patch", "node", node, "--type=merge", "-p", &id])?;
    let created =
        r#"{"status": {"initialization": {"dataSecretCreated": true}, "dataSecretName": "any"}}"#;
    patch_status(plane, &config, created)?;
    let machine = format!("instarmachine/{machine}");
    patch_status(plane, &machine, PROVISIONED)?;
    kubectl
        .run(&["patch", &machine, "--type=merge", "-p", &id])
        .map(drop)
}

/// Changes the status of an object.
pub(super) fn patch_status(plane: &ControlPlane, object: &str, patch: &str) -> Outcome {
    let patch = [
        "patch",
        object,
        "--subresource=status",
        "--type=merge",
        "-p",
        patch,
    ];
    plane.kubectl().run(&patch).map(drop)
}

/// The label of what belongs to the deployment.
pub(super) const OF_THE_DEPLOYMENT: &str = "cluster.x-k8s.io/deployment-name=workers";

/// The Machines of the deployment.
pub(super) fn machines(plane: &ControlPlane) -> anyhow::Result<Vec<Value>> {
    let shown = plane
        .kubectl()
        .get(&["machine.cluster.x-k8s.io", "-l", OF_THE_DEPLOYMENT])?;
    Ok(shown["items"].as_array().context("no list")?.clone())
}

/// The one Machine of the deployment.
pub(super) fn machine(plane: &ControlPlane) -> anyhow::Result<Value> {
    let machines = machines(plane)?;
    ensure!(machines.len() == 1, "{} Machines", machines.len());
    Ok(machines[0].clone())
}

/// The id of an object.
pub(super) fn uid(object: &Value) -> String {
    object["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

/// A condition of an object, as `STATUS REASON: MESSAGE`.
pub(super) fn condition(object: &Value, kind: &str) -> String {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions
        .into_iter()
        .flatten()
        .find(|it| it["type"] == kind);
    let part = |name: &str| found.and_then(|it| it[name].as_str()).unwrap_or_default();
    format!("{} {}: {}", part("status"), part("reason"), part("message"))
}

/// Who keeps health checks away from a Machine; empty if nobody does.
pub(super) fn mark(machine: &Value) -> String {
    let mark = &machine["metadata"]["annotations"]["cluster.x-k8s.io/skip-remediation"];
    mark.as_str().unwrap_or_default().to_owned()
}

/// No update is under way.
pub(super) fn no_pool_is_left(plane: &ControlPlane) -> Outcome {
    let pools = plane.kubectl().get(&["pools"])?;
    let is_empty = pools["items"].as_array().is_some_and(Vec::is_empty);
    ensure!(is_empty, "{pools:#}");
    Ok(())
}

/// The id of the deployment's Machine that is this node, once it is.
pub(super) fn machine_of(plane: &ControlPlane, node: &str) -> anyhow::Result<String> {
    let machines = machines(plane)?;
    let found = machines
        .iter()
        .find(|it| it["status"]["nodeRef"]["name"] == node);
    found
        .map(uid)
        .with_context(|| format!("no Machine has the node {node}"))
}
