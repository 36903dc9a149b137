//! A section of the large document beside the document that newer releases have in its place: what neither hides, and what is said twice.

use super::{super::*, data, kubernetes::OURS};

/// The control plane of Talos 1.14, which has a document for each concern, with settings that differ from the defaults.
fn newer() -> String {
    let talos = std::fs::read_to_string(data("1.14/controlplane.yaml")).unwrap();
    [
        ("10.244.0.0/16", "10.10.0.0/16"),
        ("10.96.0.0/12", "10.20.0.0/16"),
        ("cluster.local", "site.local"),
        ("nodeIP: {}", "nodeIP: {validSubnets: [10.0.0.0/8]}"),
        // A cluster with a network of its own has no document for Talos's.
        (
            "kind: KubeFlannelCNIConfig\nbackendType: vxlan\nbackendPort: 4789",
            "kind: KubePrismConfig\nport: 7445",
        ),
        (
            "---\napiVersion: v1alpha1\nkind: KubePrismConfig\nport: 7445\n",
            "",
        ),
    ]
    .into_iter()
    .fold(talos, |text, (part, instead)| {
        assert!(text.contains(part), "{part}");
        text.replacen(part, instead, 1)
    })
}

/// The same without the document of a kind.
fn without(talos: &str, kind: &str) -> String {
    let documents = talos.split("---\n");
    let kept = documents.filter(|text| !text.contains(&format!("kind: {kind}\n")));
    kept.collect::<Vec<_>>().join("---\n")
}

/// Adds a field to the section `machine` or `cluster` of the large document.
fn beside(talos: &str, section: &str, field: &str) -> Result<Kubernetes, ConfigErrors> {
    let head = format!("\n{section}:\n");
    assert!(talos.contains(&head));
    let talos = talos.replacen(&head, &format!("{head}    {field}\n"), 1);
    let parsed = parse(format!("{talos}{OURS}").as_bytes())?;
    Ok(parsed.config.kubernetes.unwrap())
}

/// The same with what has to load.
fn loaded(talos: &str, section: &str, field: &str) -> (Kubernetes, Box<ControlPlane>) {
    let mut kubernetes =
        beside(talos, section, field).unwrap_or_else(|errors| panic!("{field}: {errors}"));
    let plane = kubernetes.control_plane.take().unwrap();
    (kubernetes, plane)
}

#[test]
fn the_network_is_read_field_by_field() {
    for field in ["network: {cni: {name: none}}", "network: {}"] {
        let (kubernetes, plane) = loaded(&newer(), "cluster", field);
        let subnets = [plane.pod_subnets, plane.service_subnets].concat();
        let subnets: Vec<_> = subnets.iter().map(ToString::to_string).collect();
        assert_eq!(subnets, ["10.10.0.0/16", "10.20.0.0/16"], "{field}");
        assert_eq!(kubernetes.cluster.domain, "site.local", "{field}");
        let dns: Vec<_> = kubernetes
            .cluster
            .dns
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(dns, ["10.20.0.10"], "{field}");
    }
}

#[test]
fn a_port_beside_the_address_of_the_cluster_hides_nothing() {
    let (_, plane) = loaded(
        &newer(),
        "cluster",
        "controlPlane: {localAPIServerPort: 7443}",
    );
    assert_eq!(plane.endpoint.to_string(), "https://10.0.2.15:6443");
    assert_eq!(plane.port, 7443);
}

#[test]
fn an_empty_section_of_kubelet_hides_nothing() {
    let talos = newer().replacen(
        "kind: KubeletConfig\n",
        "kind: KubeletConfig\nclusterDNS: [10.20.0.7]\nextraArgs: {v: 4}\n",
        1,
    );
    let talos = talos.replacen(
        "config: {}\ndefaultRuntimeSeccomp",
        "config: {maxPods: 7}\ndefaultRuntimeSeccomp",
        1,
    );
    for field in ["kubelet: {}", "kubelet: {clusterDNS: }"] {
        let (kubernetes, _) = loaded(&talos, "machine", field);
        let node = kubernetes.node;
        assert!(node.default_seccomp, "{field}");
        assert_eq!(node.kubelet_config["maxPods"], 7);
        assert_eq!(node.kubelet_arguments["v"], ["4"]);
        assert_eq!(node.address_rules.len(), 1);
        assert_eq!(kubernetes.cluster.dns[0].to_string(), "10.20.0.7");
    }
}

#[test]
fn an_empty_rule_for_addresses_hides_none() {
    let talos = without(&newer(), "KubeletConfig");
    for field in [
        "kubelet: {nodeIP: {}, clusterDNS: [10.20.0.7]}",
        "kubelet: {nodeIP: {validSubnets: []}}",
    ] {
        let (kubernetes, _) = loaded(&talos, "machine", field);
        assert_eq!(kubernetes.node.address_rules.len(), 1, "{field}");
    }
}

#[test]
fn an_empty_section_of_a_program_hides_nothing() {
    for section in [
        "apiServer",
        "controllerManager",
        "scheduler",
        "proxy",
        "coreDNS",
    ] {
        let talos = newer().replacen(
            "kind: KubeCoreDNSConfig\n",
            "kind: KubeCoreDNSConfig\nimage: registry.k8s.io/coredns/coredns:v1.14.0\n",
            1,
        );
        let (_, plane) = loaded(&talos, "cluster", &format!("{section}: {{}}"));
        assert!(plane.api_server.image.is_some(), "{section}");
        assert_eq!(plane.names, ["127.0.0.1"], "{section}");
        assert!(plane.controller_manager.image.is_some(), "{section}");
        assert!(plane.scheduler.image.is_some(), "{section}");
        assert!(plane.proxy.is_some(), "{section}");
        assert!(plane.core_dns.is_some(), "{section}");
    }
}

#[test]
fn an_empty_audit_policy_hides_none() {
    let talos = without(&newer(), "KubeAPIServerConfig");
    let (_, plane) = loaded(&talos, "cluster", "apiServer: {auditPolicy: {}}");
    assert_eq!(plane.audit_policy.unwrap()["kind"], "Policy");
}

#[test]
fn an_empty_key_hides_none() {
    for field in ["ca: {}", "aggregatorCA: {}", "serviceAccount: {}"] {
        loaded(&newer(), "cluster", field);
    }
}

/// Adds a field to a section of the large document, which another document sets as well.
fn assert_said_twice(talos: &str, section: &str, field: &str, path: &str) {
    let errors = beside(talos, section, field).unwrap_err().to_string();
    assert!(errors.contains("this is also set by"), "{field}: {errors}");
    assert!(errors.contains(&format!("`{path}` at line")), "{errors}");
}

#[test]
fn a_field_of_a_concern_in_both_shapes_is_an_error() {
    let talos = newer();
    for (section, field, path) in [
        (
            "cluster",
            "network: {podSubnets: [10.1.0.0/16]}",
            "cluster.network.podSubnets",
        ),
        (
            "cluster",
            "network: {serviceSubnets: [10.1.0.0/16]}",
            "cluster.network.serviceSubnets",
        ),
        (
            "cluster",
            "network: {dnsDomain: a.local}",
            "cluster.network.dnsDomain",
        ),
        (
            "cluster",
            "controlPlane: {endpoint: 'https://a:6443'}",
            "cluster.controlPlane.endpoint",
        ),
        ("cluster", "clusterName: other", "cluster.clusterName"),
        (
            "machine",
            "kubelet: {clusterDNS: [10.20.0.7]}",
            "machine.kubelet",
        ),
        ("cluster", "apiServer: {image: r.io/a}", "cluster.apiServer"),
        (
            "cluster",
            "serviceAccount: {key: a}",
            "cluster.serviceAccount",
        ),
    ] {
        assert_said_twice(&talos, section, field, path);
    }
}

/// The fields of these sections are in several documents.
#[test]
fn a_field_that_has_moved_by_itself_is_an_error_in_both_shapes() {
    let port = "controlPlane: {localAPIServerPort: 6443}";
    let own_port = "kind: KubeAPIServerConfig\napiPort: 6443\n";
    let talos = newer().replacen("kind: KubeAPIServerConfig\n", own_port, 1);
    assert_said_twice(
        &talos,
        "cluster",
        port,
        "cluster.controlPlane.localAPIServerPort",
    );

    let talos = without(&newer(), "KubeletConfig");
    let rules = "kubelet: {nodeIP: {validSubnets: [10.0.0.0/9]}}";
    assert_said_twice(
        &talos,
        "machine",
        rules,
        "machine.kubelet.nodeIP.validSubnets",
    );

    let talos = without(&newer(), "KubeAPIServerConfig");
    let policy = "apiServer: {auditPolicy: {kind: Policy}}";
    assert_said_twice(&talos, "cluster", policy, "cluster.apiServer.auditPolicy");
    let plugin = "apiServer: {admissionControl: [{name: PodSecurity, configuration: {kind: A}}]}";
    assert_said_twice(
        &talos,
        "cluster",
        plugin,
        "cluster.apiServer.admissionControl",
    );
}

#[test]
fn a_plugin_of_another_name_is_another_setting() {
    let talos = without(&newer(), "KubeAPIServerConfig");
    let other = "apiServer: {admissionControl: [{name: EventRateLimit, configuration: {kind: A}}]}";
    let (_, plane) = loaded(&talos, "cluster", other);
    assert_eq!(plane.admission.len(), 2);
}
