//! Kubernetes: our documents say that it runs and by which images; Talos's own settings, in either shape, say which cluster the node joins.

use std::{
    net::{IpAddr, Ipv4Addr},
    ops::RangeInclusive,
    time::Duration,
};

use super::{
    super::{
        model::{
            Cidr, Cluster, ControlPlane, EndpointUrl, Extension, ImageReference, Kubernetes,
            NodeSettings, Taint, TaintEffect,
        },
        section::Section,
    },
    Documents,
    both_shapes::BothShapes,
    cluster::{Subnets, arguments, network},
    containers::within,
    control_plane::{control_plane, is_control_plane},
    extensions, node_metadata, trust,
};

/// The domain of a cluster's services, unless the config says otherwise.
const DOMAIN: &str = "cluster.local";
/// The server of that domain in the subnet that services have unless the config says otherwise, 10.96.0.0/12.
const DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10));
/// The time for becoming ready with other extensions: by default, and the limits. containerd and kubelet start within some seconds.
const READY_WITHIN: Duration = Duration::from_secs(300);
const READY_LIMITS: RangeInclusive<Duration> = Duration::from_secs(30)..=Duration::from_secs(3600);
/// The port of KubePrism, unless the config says otherwise.
const PRISM: u16 = 7445;
/// The label and the taint of nodes with a control plane.
const ROLE: &str = "node-role.kubernetes.io/control-plane";

/// Reads the settings; `None` if there is no `KubernetesConfig`.
pub(super) fn kubernetes(
    documents: &Documents<'_>,
    extensions: Vec<Extension>,
) -> Option<Kubernetes> {
    let Some(document) = documents.one("KubernetesConfig") else {
        let of_kubernetes = |document: &Section<'_>| !extensions::is_of_os(document);
        if let Some(document) = documents.of("ExtensionConfig").find(of_kubernetes) {
            document.wrong(
                "an extension is a part of Kubernetes, and there is no `KubernetesConfig`; add one, remove this document, or give the extension to the machine itself with `target: os`",
            );
        }
        return None;
    };
    let image: Option<ImageReference> = document.required("image");
    if extensions.is_empty() {
        document.wrong(
            "kubelet and containerd come with extensions: add an `ExtensionConfig` for each",
        );
    }
    let network = network(documents);
    let subnets = Subnets::of(&network);
    let mut cluster = cluster(documents, &document, &network, &subnets.services);
    let ready_within = within(&document, "readyWithin", READY_LIMITS, READY_WITHIN);
    let mut node = node(documents);
    let mut plane = None;
    if is_control_plane(documents) {
        let endpoint = cluster.as_ref().map(|cluster| cluster.endpoint.clone());
        let read = control_plane(documents, &document, endpoint?, subnets);
        plane = Some(Box::new(read?));
        note_role(documents, &mut node);
    }
    if let (Some(cluster), Some(plane)) = (&mut cluster, &plane) {
        cluster.endpoint = own_endpoint(plane);
    }
    Some(Kubernetes {
        node,
        control_plane: plane,
        extensions,
        cluster: cluster?,
        ready_within: ready_within?,
        image: image?,
        prism: prism(documents),
    })
}

/// Reads the port of KubePrism. Its document has it on.
fn prism(documents: &Documents<'_>) -> Option<u16> {
    let ports = 1..=u16::MAX;
    if let Some(document) = documents.one("KubePrismConfig") {
        return document.number("port", ports);
    }
    let of_machine = documents.section("features")?.section("kubePrism")?;
    // Zero leaves it unset, as in Talos.
    let is_set = of_machine.text("port") != Some("0");
    let port = is_set.then(|| of_machine.number("port", ports)).flatten();
    let is_on = of_machine.flag("enabled") == Some(true);
    is_on.then(|| port.unwrap_or(PRISM))
}

/// The API server by the machine's loopback: no link and no name has to work for the node that it runs on.
fn own_endpoint(plane: &ControlPlane) -> EndpointUrl {
    EndpointUrl {
        https: true,
        authority: format!("127.0.0.1:{}", plane.port),
        path: String::new(),
    }
}

/// Gives the node of a control plane its role. In the newer shape of a config, the role is written out in `KubeNodeConfig`.
fn note_role(documents: &Documents<'_>, node: &mut NodeSettings) {
    if documents.one("KubeNodeConfig").is_some() {
        return;
    }
    node.labels.insert(ROLE.to_owned(), String::new());
    let cluster = documents.cluster.as_ref();
    let allows = |field| cluster.and_then(|cluster| cluster.flag(field)) == Some(true);
    if !allows("allowSchedulingOnControlPlanes") && !allows("allowSchedulingOnMasters") {
        let taint = Taint {
            value: String::new(),
            effect: TaintEffect::NoSchedule,
        };
        node.taints.insert(ROLE.to_owned(), taint);
    }
}

fn cluster(
    documents: &Documents<'_>,
    document: &Section<'_>,
    network: &BothShapes<'_>,
    services: &[Cidr],
) -> Option<Cluster> {
    let cluster = documents.cluster.as_ref();
    let lack = |what: &str| {
        document.wrong(format_args!(
            "the node has to join a cluster, and the config does not say {what}"
        ));
    };
    let api = BothShapes::new(
        cluster.and_then(|cluster| cluster.section("controlPlane")),
        documents.one("KubeClusterConfig"),
    );
    let endpoint = api.read("endpoint", Section::parsed);
    if endpoint.is_none() {
        lack("where its API is: set `cluster.controlPlane.endpoint`");
    }
    let token = cluster.and_then(|cluster| cluster.secret("token"));
    if token.is_none() {
        lack("the token to join with: set `cluster.token`");
    }
    let authorities = authorities(documents);
    if authorities.is_empty() {
        lack("the authority of its API: set `cluster.ca.crt`");
        return None;
    }
    let domain = network.read("dnsDomain", Section::owned);
    Some(Cluster {
        domain: domain.unwrap_or_else(|| DOMAIN.to_owned()),
        dns: dns(documents, services),
        endpoint: endpoint?,
        token: token?,
        authorities,
    })
}

/// Joins the certificates of the cluster's authorities.
fn authorities(documents: &Documents<'_>) -> String {
    let mut found = Vec::new();
    if let Some(cluster) = &documents.cluster {
        let own = cluster.section("ca");
        found.extend(own.and_then(|own| trust::certificate(&own, "crt")));
        let accepted = cluster.sections("acceptedCAs");
        found.extend(
            accepted
                .iter()
                .filter_map(|(_, it)| trust::certificate(it, "crt")),
        );
    }
    if let Some(document) = documents.one("KubeAPIServerCAConfig") {
        let issuing = document.section("issuingCA");
        found.extend(issuing.and_then(|issuing| trust::certificate(&issuing, "cert")));
        found.extend(trust::certificates(&document, "acceptedCAs"));
    }
    let ended = found.iter().map(|pem| format!("{}\n", pem.trim_end()));
    ended.collect()
}

/// Returns kubelet's settings.
fn kubelet<'a>(documents: &Documents<'a>) -> BothShapes<'a> {
    BothShapes::new(documents.section("kubelet"), documents.one("KubeletConfig"))
}

/// Returns the servers of the cluster's domain: those of the config, else, by convention, the tenth address of each subnet of services.
fn dns(documents: &Documents<'_>, services: &[Cidr]) -> Vec<IpAddr> {
    let given: Vec<IpAddr> = kubelet(documents).list("clusterDNS");
    if !given.is_empty() {
        return given;
    }
    match services {
        [] => vec![DNS],
        subnets => subnets.iter().copied().map(tenth).collect(),
    }
}

fn tenth(subnet: Cidr) -> IpAddr {
    match subnet.network().address() {
        IpAddr::V4(first) => IpAddr::V4(u32::from(first).saturating_add(10).into()),
        IpAddr::V6(first) => IpAddr::V6(u128::from(first).saturating_add(10).into()),
    }
}

fn node(documents: &Documents<'_>) -> NodeSettings {
    let machine = |field| documents.named_texts(field);
    let document = documents.one("KubeNodeConfig");
    let own = |field| {
        document
            .as_ref()
            .map_or_else(Vec::new, |document| document.named_texts(field))
    };
    let labels = machine("nodeLabels").into_iter().chain(own("labels"));
    let annotations = machine("nodeAnnotations")
        .into_iter()
        .chain(own("annotations"));
    let taints = machine("nodeTaints").into_iter().chain(own("taints"));
    let kubelet = kubelet(documents);
    let config = kubelet.read("extraConfig", Section::json);
    let config = config.or_else(|| kubelet.read("config", Section::json));
    let of_machine = documents.section("kubelet");
    let addresses = BothShapes::new(
        of_machine.and_then(|kubelet| kubelet.section("nodeIP")),
        document.as_ref().and_then(|own| own.section("nodeIP")),
    );
    NodeSettings {
        labels: node_metadata::labels(labels),
        annotations: node_metadata::annotations(annotations),
        taints: node_metadata::taints(taints),
        kubelet_config: config.unwrap_or_default(),
        kubelet_arguments: arguments(&kubelet),
        default_seccomp: kubelet
            .read("defaultRuntimeSeccompProfileEnabled", Section::flag)
            .unwrap_or_default(),
        address_rules: addresses.list("validSubnets"),
    }
}
