//! A node for tests.

#![allow(clippy::unwrap_used)]

use crate::config::{
    ClientIdentity, Cluster, ClusterKeys, Component, ControlPlane, Extension, ExtensionSource,
    Kubernetes, NodeSettings, Secret,
};

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
        prism: None,
    }
}

/// The control plane of that cluster, with an authority of etcd that can sign.
pub(super) fn plane() -> ControlPlane {
    let authority = ClientIdentity {
        certificate: include_str!("../../../pki/tests/data/etcd-ca-1.14.crt").to_owned(),
        key: Secret::new(include_str!("../../../pki/tests/data/etcd-ca-1.14.key")),
    };
    ControlPlane {
        cluster_name: "demo".to_owned(),
        endpoint: "https://cluster.example.com:443".parse().unwrap(),
        port: 6443,
        keys: ClusterKeys {
            cluster: authority.clone(),
            etcd: authority.clone(),
            aggregator: authority,
            service_accounts: Secret::new("PEM"),
        },
        token_issuer: "https://cluster.example.com:443".to_owned(),
        pod_subnets: vec!["10.244.0.0/16".parse().unwrap()],
        service_subnets: vec!["10.96.0.0/12".parse().unwrap()],
        encryption: None,
        api_server: Component::default(),
        names: vec!["api.example.com".to_owned()],
        admission: Default::default(),
        audit_policy: None,
        controller_manager: Component::default(),
        scheduler: Component::default(),
        etcd: Component::default(),
        proxy: None,
        core_dns: None,
        core_dns_is_named: false,
        manifests: Vec::new(),
    }
}
