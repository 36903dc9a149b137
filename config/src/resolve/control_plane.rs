//! A control plane on this machine: the cluster's keys and the settings of its programs, in either shape of Talos's config.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    super::{
        model::{
            Cidr, ClientIdentity, ClusterKeys, Component, ControlPlane, EndpointUrl,
            ImageReference, Secret,
        },
        section::Section,
    },
    Documents,
    both_shapes::BothShapes,
    cluster::{Subnets, arguments},
    manifests::manifests,
    trust,
};

/// The port of the API server, unless the config says otherwise.
const PORT: u16 = 6443;
/// The cluster's name in kubeconfigs, unless the config says otherwise.
const NAME: &str = "kubernetes";
/// The subnets, unless the config says otherwise.
const POD_SUBNET: &str = "10.244.0.0/16";
const SERVICE_SUBNET: &str = "10.96.0.0/12";
/// The image of CoreDNS that runs where the config asks for it and names none: that of kubeadm 1.36.
const CORE_DNS: &str = "registry.k8s.io/coredns/coredns:v1.14.2";

/// Whether the machine is one of a control plane.
pub(super) fn is_control_plane(documents: &Documents<'_>) -> bool {
    let machine = documents.machine.as_ref();
    machine.and_then(|machine| machine.text("type")) == Some("controlplane")
}

/// Reads the control plane of a cluster with this endpoint; `document` is the one that asks for it.
pub(super) fn control_plane(
    documents: &Documents<'_>,
    document: &Section<'_>,
    endpoint: EndpointUrl,
    subnets: Subnets,
) -> Option<ControlPlane> {
    let keys = keys(documents, document);
    let part = |of_cluster, kind| part(documents, of_cluster, kind);
    let api_server = part("apiServer", "KubeAPIServerConfig");
    let or_usual = |given: Vec<Cidr>, usual: &str| match given.is_empty() {
        true => usual.parse().into_iter().collect(),
        false => given,
    };
    let named = documents
        .cluster
        .as_ref()
        .and_then(|it| it.owned("clusterName"));
    let own = documents.one("KubeClusterConfig");
    Some(ControlPlane {
        cluster_name: named
            .or_else(|| own?.owned("clusterName"))
            .unwrap_or_else(|| NAME.to_owned()),
        port: port(documents, &api_server),
        token_issuer: token_issuer(documents).unwrap_or_else(|| endpoint.to_string()),
        pod_subnets: or_usual(subnets.pods, POD_SUBNET),
        service_subnets: or_usual(subnets.services, SERVICE_SUBNET),
        encryption: encryption(documents),
        names: names(&api_server),
        admission: admission(documents, &api_server),
        audit_policy: audit_policy(documents, &api_server),
        api_server: component(&api_server),
        controller_manager: component(&part("controllerManager", "KubeControllerManagerConfig")),
        scheduler: component(&part("scheduler", "KubeSchedulerConfig")),
        etcd: component(&part("etcd", "")),
        proxy: if_named(&part("proxy", "KubeProxyConfig")),
        core_dns: core_dns(&part("coreDNS", "KubeCoreDNSConfig")),
        core_dns_is_named: part("coreDNS", "KubeCoreDNSConfig").with("image").is_some(),
        manifests: manifests(documents),
        keys: keys?,
        endpoint,
    })
}

/// Reads the keys, and reports each one that is missing.
fn keys(documents: &Documents<'_>, document: &Section<'_>) -> Option<ClusterKeys> {
    let cluster = documents.cluster.as_ref();
    let pair = |field: &str, kind: &str| {
        let of_cluster = cluster.and_then(|cluster| cluster.section(field));
        // A key without its certificate is of no use: both come from the same place.
        let found = match of_cluster.filter(|pair| pair.sets("crt") || pair.sets("key")) {
            Some(pair) => identity(&pair, "crt"),
            None => documents
                .one(kind)
                .and_then(|document| identity(&document.section("issuingCA")?, "cert")),
        };
        if found.is_none() {
            lacks(document, &format!("`cluster.{field}` with its key"));
        }
        found
    };
    let (own, aggregator) = (
        pair("ca", "KubeAPIServerCAConfig"),
        pair("aggregatorCA", "KubeAggregatorCAConfig"),
    );
    let etcd = cluster.and_then(|cluster| cluster.section("etcd")?.section("ca"));
    let etcd = etcd.and_then(|pair| identity(&pair, "crt"));
    if etcd.is_none() {
        lacks(document, "`cluster.etcd.ca` with its key");
    }
    let of_cluster = cluster.and_then(|cluster| cluster.section("serviceAccount"));
    let service_accounts = match of_cluster.filter(|section| section.sets("key")) {
        Some(section) => trust::key(&section, "key"),
        None => documents
            .one("KubeServiceAccountConfig")
            .and_then(|document| trust::key(&document.section("issuer")?, "privateKey")),
    };
    if service_accounts.is_none() {
        lacks(document, "`cluster.serviceAccount.key`");
    }
    Some(ClusterKeys {
        cluster: own?,
        etcd: etcd?,
        aggregator: aggregator?,
        service_accounts: service_accounts?,
    })
}

fn lacks(document: &Section<'_>, what: &str) {
    document.wrong(format_args!(
        "a machine of the type `controlplane` makes the certificates of its cluster, and the config has no {what}: \
         take the `controlplane.yaml` of `talosctl gen config`, or the type `worker`"
    ));
}

fn identity(section: &Section<'_>, certificate: &str) -> Option<ClientIdentity> {
    Some(ClientIdentity {
        key: trust::key(section, "key")?,
        certificate: trust::certificate(section, certificate)?,
    })
}

/// Returns the settings of a program: a part of `cluster`, and a document of its own.
fn part<'a>(documents: &Documents<'a>, of_cluster: &str, kind: &str) -> BothShapes<'a> {
    let cluster = documents.cluster.as_ref();
    BothShapes::new(
        cluster.and_then(|cluster| cluster.section(of_cluster)),
        documents.one(kind),
    )
}

fn component(part: &BothShapes<'_>) -> Component {
    Component {
        image: part.read("image", Section::parsed),
        arguments: arguments(part),
    }
}

/// Whether the config turns kube-proxy or CoreDNS on or off, if it says so.
fn is_on(part: &BothShapes<'_>) -> Option<bool> {
    let flag = |field| part.read(field, Section::flag);
    let is_disabled = flag("disabled");
    is_disabled.map(|it| !it).or_else(|| flag("enabled"))
}

/// Reads kube-proxy, which runs where the config names its image, and does not turn it off.
fn if_named(part: &BothShapes<'_>) -> Option<Component> {
    let component = component(part);
    let is_off = is_on(part) == Some(false);
    (!is_off && component.image.is_some()).then_some(component)
}

/// Reads the image of CoreDNS, which runs where the config names it or turns it on. A config that says nothing of it leaves DNS to its owner.
fn core_dns(part: &BothShapes<'_>) -> Option<ImageReference> {
    let named: Option<ImageReference> = part.read("image", Section::parsed);
    match is_on(part) {
        Some(false) => None,
        Some(true) => named.or_else(|| CORE_DNS.parse().ok()),
        None => named,
    }
}

fn port(documents: &Documents<'_>, api_server: &BothShapes<'_>) -> u16 {
    let cluster = documents.cluster.as_ref();
    let plane = cluster.and_then(|cluster| cluster.section("controlPlane"));
    let of_plane = plane.and_then(|plane| plane.number("localAPIServerPort", 1..=u16::MAX));
    let own = || {
        api_server.read("apiPort", |section, field| {
            section.number(field, 1..=u16::MAX)
        })
    };
    of_plane.or_else(own).unwrap_or(PORT)
}

fn token_issuer(documents: &Documents<'_>) -> Option<String> {
    let document = documents.one("KubeServiceAccountConfig")?;
    document.section("issuer")?.owned("issuerURL")
}

fn names(api_server: &BothShapes<'_>) -> Vec<String> {
    let fields = ["certSANs", "certExtraSANs"].into_iter();
    let lists = fields.filter_map(|field| api_server.read(field, Section::list));
    lists.flatten().collect()
}

fn admission(documents: &Documents<'_>, api_server: &BothShapes<'_>) -> BTreeMap<String, Value> {
    let plugins = "admissionControl";
    let of_cluster = api_server.with(plugins);
    let of_cluster = of_cluster.map(|section| section.sections(plugins));
    let of_cluster = of_cluster.into_iter().flatten().map(|(_, section)| section);
    let own = documents.of("KubeAdmissionControlConfig");
    let read = |section: Section<'_>| {
        let name: Option<String> = section.required("name");
        let configuration = section.json("configuration");
        if configuration.is_none() {
            section.wrong_field(
                "configuration",
                "a plugin is named here for its configuration; to turn one on or off take `extraArgs` of the API server",
            );
        }
        Some((name?, Value::Object(configuration?)))
    };
    of_cluster.chain(own).filter_map(read).collect()
}

fn audit_policy(documents: &Documents<'_>, api_server: &BothShapes<'_>) -> Option<Value> {
    let of_cluster = api_server.read("auditPolicy", Section::json);
    let own = || {
        documents
            .one("KubeAuditPolicyConfig")?
            .json("configuration")
    };
    of_cluster.or_else(own).map(Value::Object)
}

/// Reads how the content of etcd is encrypted. The names of keys are those that Talos gives them, as they are part of what is stored.
fn encryption(documents: &Documents<'_>) -> Option<Secret> {
    let cluster = documents.cluster.as_ref();
    let secret = |field| Some(cluster?.secret(field)?.expose().to_owned());
    let provider = |kind: &str, name: &str, secret: String| json!({kind: {"keys": [{"name": name, "secret": secret}]}});
    let secretbox = secret("secretboxEncryptionSecret").map(|it| provider("secretbox", "key2", it));
    let aescbc = secret("aescbcEncryptionSecret").map(|it| provider("aescbc", "key1", it));
    let mut providers: Vec<Value> = secretbox.into_iter().chain(aescbc).collect();
    let mut fields = match providers.is_empty() {
        true => documents.one("KubeEtcdEncryptionConfig")?.json("config")?,
        false => {
            providers.push(json!({"identity": {}}));
            let resources = json!([{"resources": ["secrets"], "providers": providers}]);
            [("resources".to_owned(), resources)].into_iter().collect()
        }
    };
    fields.insert("apiVersion".to_owned(), "apiserver.config.k8s.io/v1".into());
    fields.insert("kind".to_owned(), "EncryptionConfiguration".into());
    Some(Secret::new(Value::Object(fields).to_string()))
}
