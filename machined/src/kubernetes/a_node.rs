//! A node for tests.

#![allow(clippy::unwrap_used)]

use crate::config::{Cluster, Extension, ExtensionSource, Kubernetes, NodeSettings, Secret};

/// A node of a cluster.
pub(super) fn kubernetes() -> Kubernetes {
    let labels = [
        ("disk", "fast"),
        ("node-role.kubernetes.io/worker", ""),
        ("node.kubernetes.io/class", "small"),
    ];
    Kubernetes {
        image: "r.example.com/kubernetes:v1".parse().unwrap(),
        extensions: vec![Extension {
            name: "kubernetes".to_owned(),
            source: ExtensionSource::Image("r.example.com/kubernetes-v1.36:v1".parse().unwrap()),
        }],
        ready_within: std::time::Duration::from_secs(300),
        cluster: Cluster {
            endpoint: "https://10.0.2.2:6443".parse().unwrap(),
            authorities: "PEM".to_owned(),
            token: Secret::new("abcdef.0123456789abcdef"),
            domain: "cluster.local".to_owned(),
            dns: vec!["10.96.0.10".parse().unwrap()],
        },
        node: NodeSettings {
            labels: labels
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            taints: [("dedicated".to_owned(), "db:NoSchedule".parse().unwrap())].into(),
            kubelet_arguments: [("v".to_owned(), vec!["2".to_owned()])].into(),
            ..NodeSettings::default()
        },
        control_plane: None,
    }
}
