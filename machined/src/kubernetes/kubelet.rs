//! kubelet's configuration and options.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::config::{Kubernetes, NodeSettings};

/// The cluster's authorities, as the container sees the file.
const AUTHORITY: &str = "/etc/kubernetes/pki/ca.crt";
/// Labels of Kubernetes' own that a node may give itself (the NodeRestriction admission of the API server, and kubelet, which does not start
/// with others).
const OWN_LABELS: [&str; 10] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Prefixes of labels that a node may give itself as well.
const OWN_PREFIXES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

/// The variable of kubelet's unit that has its options.
pub(super) const OPTIONS: &str = "KUBELET_EXTRA_ARGS";

/// Returns kubelet's configuration, as JSON, which is YAML as well.
pub(super) fn configuration(kubernetes: &Kubernetes) -> String {
    fields(kubernetes).to_string()
}

/// Returns the fields of kubelet's configuration. The config's own ones take precedence.
pub(super) fn fields(kubernetes: &Kubernetes) -> Value {
    let node = &kubernetes.node;
    let mut configuration = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": AUTHORITY},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "clusterDNS": kubernetes.cluster.dns,
        "clusterDomain": kubernetes.cluster.domain,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        // Swap is the machine's business; a pod gets none.
        "failSwapOn": false,
        "registerWithTaints": taints(node),
        "resolvConf": "/etc/resolv.conf",
        "rotateCertificates": true,
        "seccompDefault": node.default_seccomp,
        "staticPodPath": "/etc/kubernetes/manifests",
        // The machine's own services keep this much.
        "systemReserved": {"cpu": "50m", "memory": "64Mi", "ephemeral-storage": "256Mi"},
        "volumePluginDir": "/var/kubernetes/kubelet-plugins/volume/exec",
    });
    if let Value::Object(fields) = &mut configuration {
        let usual = node.usual_shutdown().into_iter();
        fields.extend(usual.map(|(field, time)| (field.to_owned(), time.into())));
        merge(fields, &node.kubelet_config);
    }
    configuration
}

/// Puts fields over others; maps are merged.
fn merge(fields: &mut Map<String, Value>, over: &Map<String, Value>) {
    for (name, value) in over {
        match (fields.get_mut(name), value) {
            (Some(Value::Object(below)), Value::Object(above)) => merge(below, above),
            _ => drop(fields.insert(name.clone(), value.clone())),
        }
    }
}

fn taints(node: &NodeSettings) -> Vec<Value> {
    let taints = node.taints.iter();
    let taints = taints.map(|(key, taint)| {
        json!({"key": key, "value": taint.value, "effect": taint.effect.to_string()})
    });
    taints.collect()
}

/// Returns kubelet's options for a node of this name and with these addresses: those of the config come last, and so take precedence.
pub(super) fn options(kubernetes: &Kubernetes, node: &str, addresses: &[IpAddr]) -> String {
    let settings = &kubernetes.node;
    let mut options = vec![format!("--hostname-override={node}")];
    if !addresses.is_empty() {
        let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
        options.push(format!("--node-ip={}", addresses.join(",")));
    }
    let labels = settings.labels.iter();
    let labels = labels.filter(|(name, _)| may_label_itself(name));
    let labels: Vec<_> = labels
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !labels.is_empty() {
        options.push(format!("--node-labels={}", labels.join(",")));
    }
    for (name, values) in &settings.kubelet_arguments {
        options.extend(values.iter().map(|value| format!("--{name}={value}")));
    }
    options.join(" ")
}

/// Returns the labels that the node may not give itself.
pub(super) fn refused_labels(settings: &NodeSettings) -> Vec<&str> {
    let labels = settings.labels.keys().map(String::as_str);
    labels.filter(|name| !may_label_itself(name)).collect()
}

/// Whether a node may give itself this label.
pub(super) fn may_label_itself(label: &str) -> bool {
    let Some((prefix, _)) = label.split_once('/') else {
        return true;
    };
    let is_within = |domain: &str| {
        prefix
            .strip_suffix(domain)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let is_of_kubernetes = is_within("kubernetes.io") || is_within("k8s.io");
    !is_of_kubernetes
        || OWN_LABELS.contains(&label)
        || label == "node.kubernetes.io/instance-type"
        || OWN_PREFIXES.iter().any(|own| is_within(own))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::a_node::kubernetes;
    use super::*;

    #[test]
    fn fields_of_the_config_take_precedence() {
        let mut kubernetes = kubernetes();
        let over = json!({"maxPods": 7, "authentication": {"webhook": {"cacheTTL": "1s"}}, "failSwapOn": true});
        kubernetes.node.kubelet_config = over.as_object().unwrap().clone();
        let written: Value = serde_json::from_str(&configuration(&kubernetes)).unwrap();
        assert_eq!(written["maxPods"], 7);
        assert_eq!(written["failSwapOn"], true);
        assert_eq!(written["shutdownGracePeriod"], "30s");
        assert_eq!(written["shutdownGracePeriodCriticalPods"], "10s");
        assert_eq!(
            written["authentication"]["webhook"],
            json!({"enabled": true, "cacheTTL": "1s"})
        );
        assert_eq!(written["clusterDNS"], json!(["10.96.0.10"]));
        assert_eq!(
            written["registerWithTaints"],
            json!([{"key": "dedicated", "value": "db", "effect": "NoSchedule"}])
        );
    }

    #[test]
    fn the_machine_waits_for_as_long_as_kubelet_does() {
        let mut node = kubernetes().node;
        for (config, seconds) in [
            (json!({}), 30),
            (json!({"shutdownGracePeriod": "1m30s"}), 90),
            (json!({"shutdownGracePeriod": "0s"}), 0),
            (json!({"shutdownGracePeriod": "soon"}), 0),
            (json!({"shutdownGracePeriod": "5h"}), 600),
            (
                json!({"shutdownGracePeriodByPodPriority": [
                    {"priority": 0, "shutdownGracePeriodSeconds": 40},
                    {"priority": 1000, "shutdownGracePeriodSeconds": 5},
                ]}),
                45,
            ),
        ] {
            node.kubelet_config = config.as_object().unwrap().clone();
            let period = node.shutdown_period().as_secs();
            assert_eq!(period, seconds, "{config}");
        }
    }

    #[test]
    fn a_node_names_only_labels_that_it_may_give_itself() {
        let kubernetes = kubernetes();
        assert_eq!(
            options(&kubernetes, "worker-1", &["192.0.2.7".parse().unwrap()]),
            "--hostname-override=worker-1 --node-ip=192.0.2.7 --node-labels=disk=fast,node.kubernetes.io/class=small --v=2"
        );
        assert_eq!(
            refused_labels(&kubernetes.node),
            ["node-role.kubernetes.io/worker"]
        );
        for (label, may) in [
            ("rack", true),
            ("example.com/rack", true),
            ("notkubernetes.io/x", true),
            ("kubernetes.io/os", true),
            ("kubernetes.io/other", false),
            ("x.k8s.io/y", false),
            ("team.node.kubernetes.io/z", true),
            ("node-restriction.kubernetes.io/z", false),
        ] {
            assert_eq!(may_label_itself(label), may, "{label}");
        }
    }
}
