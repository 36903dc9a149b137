//! Finds duplicates: a kind and name that repeats, or a setting that is in both shapes.

use std::collections::HashMap;

use super::{
    documents::Identified,
    problem::{Problem, Problems},
    shape::shorten,
    yaml::Node,
};

/// A setting of the one large document and its place in the newer shape: a kind, or a field of one (`KubeAPIServerConfig.apiPort`). With
/// `by_name`, only the same name is the same setting.
struct Moved {
    from: &'static str,
    to: &'static str,
    by_name: bool,
}

const fn moved(from: &'static str, to: &'static str) -> Moved {
    Moved {
        from,
        to,
        by_name: false,
    }
}

const fn moved_by_name(from: &'static str, to: &'static str) -> Moved {
    Moved {
        from,
        to,
        by_name: true,
    }
}

const MOVED: &[Moved] = &[
    moved("machine.install", "UnattendedInstallConfig"),
    moved("machine.network.hostname", "HostnameConfig"),
    moved("machine.network.nameservers", "ResolverConfig"),
    moved("machine.network.searchDomains", "ResolverConfig"),
    moved("machine.network.disableSearchDomain", "ResolverConfig"),
    moved("machine.features.hostDNS", "ResolverConfig"),
    moved_by_name("machine.network.interfaces", "LinkConfig"),
    moved_by_name("machine.network.interfaces", "DHCPv4Config"),
    moved_by_name("machine.network.interfaces", "BondConfig"),
    moved_by_name("machine.network.interfaces", "BridgeConfig"),
    moved_by_name("machine.network.interfaces", "DummyLinkConfig"),
    moved_by_name("machine.network.interfaces", "WireguardConfig"),
    moved_by_name("machine.network.extraHostEntries", "StaticHostConfig"),
    moved("machine.network.kubespan", "KubeSpanConfig"),
    moved("machine.time", "TimeSyncConfig"),
    moved_by_name("machine.registries.mirrors", "RegistryMirrorConfig"),
    moved_by_name("machine.registries.config", "RegistryTLSConfig"),
    moved_by_name("machine.registries.config", "RegistryAuthConfig"),
    moved("machine.sysctls", "SysctlConfig"),
    moved("machine.sysfs", "SysfsConfig"),
    moved("machine.env", "EnvironmentConfig"),
    moved("machine.udev", "UdevRulesConfig"),
    moved_by_name("machine.kernel.modules", "KernelModuleConfig"),
    moved(
        "machine.baseRuntimeSpecOverrides",
        "CRIBaseRuntimeSpecConfig",
    ),
    moved("machine.kubelet", "KubeletConfig"),
    moved(
        "machine.kubelet.nodeIP.validSubnets",
        "KubeNodeConfig.nodeIP.validSubnets",
    ),
    moved("machine.nodeLabels", "KubeNodeConfig"),
    moved("machine.nodeAnnotations", "KubeNodeConfig"),
    moved("machine.nodeTaints", "KubeNodeConfig"),
    moved("machine.features.kubePrism", "KubePrismConfig"),
    moved("machine.features.imageCache", "ImageCacheConfig"),
    moved(
        "machine.features.kubernetesTalosAPIAccess",
        "KubeTalosAPIAccessConfig",
    ),
    moved("cluster.id", "DiscoveryIdentityConfig"),
    moved("cluster.secret", "DiscoveryIdentityConfig"),
    moved("cluster.discovery", "DiscoveryServiceConfig"),
    moved("cluster.clusterName", "KubeClusterConfig"),
    moved("cluster.controlPlane.endpoint", "KubeClusterConfig"),
    moved(
        "cluster.controlPlane.localAPIServerPort",
        "KubeAPIServerConfig.apiPort",
    ),
    moved("cluster.network.dnsDomain", "KubeNetworkConfig"),
    moved("cluster.network.podSubnets", "KubeNetworkConfig"),
    moved("cluster.network.serviceSubnets", "KubeNetworkConfig"),
    moved("cluster.network.cni", "KubeFlannelCNIConfig"),
    moved("cluster.ca", "KubeAPIServerCAConfig"),
    moved("cluster.acceptedCAs", "KubeAPIServerCAConfig"),
    moved("cluster.aggregatorCA", "KubeAggregatorCAConfig"),
    moved("cluster.serviceAccount", "KubeServiceAccountConfig"),
    moved("cluster.aescbcEncryptionSecret", "KubeEtcdEncryptionConfig"),
    moved(
        "cluster.secretboxEncryptionSecret",
        "KubeEtcdEncryptionConfig",
    ),
    moved("cluster.apiServer", "KubeAPIServerConfig"),
    moved_by_name(
        "cluster.apiServer.admissionControl",
        "KubeAdmissionControlConfig",
    ),
    moved("cluster.apiServer.auditPolicy", "KubeAuditPolicyConfig"),
    moved("cluster.controllerManager", "KubeControllerManagerConfig"),
    moved("cluster.scheduler", "KubeSchedulerConfig"),
    moved("cluster.proxy", "KubeProxyConfig"),
    moved("cluster.coreDNS", "KubeCoreDNSConfig"),
    moved_by_name("cluster.inlineManifests", "KubeInlineManifestConfig"),
];

/// Reports documents that repeat, and settings that are given in both shapes.
pub(super) fn check(documents: &[Identified<'_>], problems: &Problems) {
    let mut first = HashMap::new();
    for document in documents {
        if let Some(number) = first.insert((document.kind.name, document.name), document.number) {
            report(
                problems,
                document,
                document.root,
                "",
                format!("document {number} is of the same kind and name; there may be only one"),
            );
        }
    }
    for machine in documents.iter().filter(|document| document.is_machine()) {
        for moved in MOVED {
            if let Some(old) = find(machine.root, moved.from).filter(|node| node.is_set()) {
                report_twice(moved, old, documents, problems);
            }
        }
    }
}

/// Reports the documents that set what the large one has set with `old`.
fn report_twice(moved: &Moved, old: &Node, documents: &[Identified<'_>], problems: &Problems) {
    let (kind, field) = moved.to.split_once('.').unwrap_or((moved.to, ""));
    for document in documents.iter().filter(|it| it.kind.name == kind) {
        let is_same =
            !moved.by_name || document.name.is_some_and(|name| names(old).contains(&name));
        let new = match field {
            "" => Some(document.root),
            field => find(document.root, field).filter(|node| node.is_set()),
        };
        let Some(new) = new.filter(|_| is_same) else {
            continue;
        };
        let which = match document.name.filter(|_| moved.by_name) {
            Some(name) => format!("`{}` of `{}`", shorten(name), moved.from),
            None => format!("`{}`", moved.from),
        };
        let message = format!(
            "this is also set by {which} at {}; keep one of the two",
            old.at
        );
        report(problems, document, new, field, message);
    }
}

fn report(
    problems: &Problems,
    document: &Identified<'_>,
    node: &Node,
    path: &str,
    message: String,
) {
    problems.push(Problem {
        at: Some(node.at),
        document: Some(document.to_string()),
        path: path.to_owned(),
        message,
    });
}

fn find<'a>(root: &'a Node, path: &str) -> Option<&'a Node> {
    path.split('.')
        .try_fold(root, |node, field| node.get(field))
}

/// The names of the members of a collection in the large document.
fn names(node: &Node) -> Vec<&str> {
    let of_items = node
        .items()
        .iter()
        .filter_map(|item| {
            ["interface", "name", "ip"]
                .into_iter()
                .find_map(|field| item.get(field))
        })
        .filter_map(Node::text);
    node.entries()
        .map(|entry| entry.key.as_str())
        .chain(of_items)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1alpha1;

    /// A row with a field or kind that does not exist would never match.
    #[test]
    fn every_row_names_what_exists() {
        use crate::shape::{Field, Shape};
        fn exists(fields: &[Field], path: &str) -> bool {
            let (first, rest) = path
                .split_once('.')
                .map_or((path, None), |(first, rest)| (first, Some(rest)));
            fields
                .iter()
                .filter(|field| field.name == first)
                .any(|field| match (rest, &field.shape) {
                    // The fields of these are not known here.
                    (None, _) | (Some(_), Shape::Opaque) => true,
                    (Some(rest), Shape::Fields(fields)) => exists(fields, rest),
                    _ => false,
                })
        }
        for moved in MOVED {
            assert!(
                exists(v1alpha1::CONFIG.fields, moved.from),
                "{}",
                moved.from
            );
            let (kind, field) = moved.to.split_once('.').unwrap_or((moved.to, ""));
            let fields = crate::documents::fields(kind);
            assert!(
                fields.is_some_and(|fields| field.is_empty() || exists(fields, field)),
                "{}",
                moved.to
            );
        }
    }
}
