//! The effect of another config on the pods of this node: a program that changes the configs of many nodes has them leave first where this says so.
//!
//! The decision: the machine says it, as it does in the plan of an upgrade. Whoever asks has the text of both configs, and would have to know which
//! settings restart a container, and which only a boot takes over.

use super::ConfigChange;
use crate::config::{Extension, ExtensionSource, Kubernetes, MachineConfig};
use crate::kubernetes::changed_images;
use crate::values::HostnamePolicy;

/// Why the pods should have left before the change: they would end, or what they stand on changes under them. None if they live through it, or
/// this machine is no node. `reboots`: whether the change takes a reboot at once. `joins`: why the node joins anew ([`why_node_joins_anew`]).
pub(super) fn why_pods_leave(
    old: &MachineConfig,
    new: &MachineConfig,
    change: &ConfigChange,
    reboots: bool,
    joins: Option<&'static str>,
) -> Option<String> {
    let before = old.kubernetes.as_ref()?;
    if reboots {
        return Some("the machine reboots".to_owned());
    }
    let mut containers = change.removed.iter().chain(&change.started);
    if containers.any(|name| name == Kubernetes::CONTAINER) {
        return Some("the container of Kubernetes starts again, and they end".to_owned());
    }
    if let Some(why) = joins {
        return Some(format!(
            "{why}: the node joins anew, and kubelet ends pods that the API server does not give it"
        ));
    }
    let after = new.kubernetes.as_ref()?;
    let extensions = other_extensions(before, after);
    if !extensions.is_empty() {
        return Some(format!(
            "extensions change under them: {}",
            extensions.join(", ")
        ));
    }
    let images = changed_images(before, after);
    (!images.is_empty()).then(|| "DaemonSets that they may depend on get other images".to_owned())
}

/// Why the node joins a cluster anew with the other config; none if it stays the member that it is, or is none. `node`: its name, if it has one
/// already.
///
/// A host name that no longer comes from the config counts as another one: nobody knows what a lease will say.
pub(super) fn why_node_joins_anew(
    old: &MachineConfig,
    new: &MachineConfig,
    node: Option<&str>,
) -> Option<&'static str> {
    let (from, to) = (old.kubernetes.as_ref()?, new.kubernetes.as_ref()?);
    let (before, after) = (&from.cluster, &to.cluster);
    if before.endpoint != after.endpoint {
        return Some("the config names another endpoint of the cluster");
    }
    if before.authorities != after.authorities {
        return Some("the config names other authorities of the cluster");
    }
    let is_renamed = match (from.node.own_name(), to.node.own_name()) {
        (before, Some(after)) => before.as_ref() != Some(&after) && node != Some(after.as_str()),
        (None, None) if old.hostname == new.hostname => false,
        (_, None) => match (&new.hostname, node) {
            (HostnamePolicy::Fixed(name), Some(node)) => {
                !name.to_string().eq_ignore_ascii_case(node)
            }
            _ => true,
        },
    };
    is_renamed.then_some("the machine gets another name")
}

/// Warns of a node that joins anew: without a token that its cluster takes it joins nowhere, and nobody looks after its pods.
pub(super) fn warning_of_joining(why: &str, new: &MachineConfig) -> Option<String> {
    let kubernetes = new.kubernetes.as_ref()?;
    // The machine of a control plane gives its cluster the token itself.
    let condition = match kubernetes.control_plane {
        Some(_) => "",
        None => " with the bootstrap token `cluster.token`, which has to be valid still",
    };
    Some(format!("{why}: the node joins anew{condition}"))
}

/// Why the pods should have left before these containers end, whose images new rules do not allow: only one of them has pods.
pub(super) fn why_pods_end<'a>(mut ending: impl Iterator<Item = &'a str>) -> Option<String> {
    ending.any(|name| name == Kubernetes::CONTAINER).then(|| {
        "the container of Kubernetes ends, as its image is not allowed any more, and they end"
            .to_owned()
    })
}

/// The names of extensions that come, go, or come from elsewhere.
fn other_extensions<'a>(before: &'a Kubernetes, after: &'a Kubernetes) -> Vec<&'a str> {
    let (old, new) = (&before.extensions, &after.extensions);
    let gone = old
        .iter()
        .filter(|it| !new.iter().any(|other| other.name == it.name));
    let other = new
        .iter()
        .filter(|it| !old.iter().any(|before| is_same(before, it)));
    gone.chain(other).map(|it| it.name.as_str()).collect()
}

/// Whether the same files come by both. When a publisher is asked, and when its files are taken, changes none of them.
fn is_same(one: &Extension, other: &Extension) -> bool {
    use ExtensionSource::Published;
    let are_same = match (&one.source, &other.source) {
        (Published(one), Published(other)) => {
            (&one.folder, &one.pattern, &one.key) == (&other.folder, &other.pattern, &other.key)
        }
        (one, other) => one == other,
    };
    one.name == other.name && are_same
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config;

    const WORKER: &str = include_str!("../../../config/tests/data/1.14/worker.yaml");
    const NODE: &str = "
---
apiVersion: instar.dev/v1alpha1
kind: KubernetesConfig
image: r.example.com/kubernetes:v1
---
apiVersion: instar.dev/v1alpha1
kind: ExtensionConfig
name: kubernetes
image: r.example.com/ext/kubernetes:v1
";
    const CONTAINERD: &str = "
---
apiVersion: instar.dev/v1alpha1
kind: ExtensionConfig
name: containerd
image: r.example.com/ext/containerd:v1
";

    fn why(old: &str, new: &str, reboots: bool) -> Option<String> {
        let [old, new] = [old, new].map(|text| config::parse(text.as_bytes()).unwrap().config);
        let joins = why_node_joins_anew(&old, &new, Some("node-1"));
        let change = ConfigChange::between(&old, &new);
        why_pods_leave(&old, &new, &change, reboots, joins)
    }

    #[test]
    fn pods_leave_before_what_they_do_not_live_through() {
        let node = &format!("{WORKER}{NODE}");
        let worker = "    type: worker\n";
        let with_sysctl = format!("{worker}    sysctls: {{vm.swappiness: \"42\"}}\n");
        let sysctl = node.replace(worker, &with_sysctl);
        assert_ne!(&sysctl, node);
        let extension = "extensions change under them: ";
        for (new, reboots, expected) in [
            (node.clone(), false, None),
            (sysctl.clone(), false, None),
            (sysctl, true, Some("the machine reboots".to_owned())),
            (
                node.replace("com/kubernetes:v1", "com/kubernetes:v2"),
                false,
                Some("the container of Kubernetes starts again, and they end".to_owned()),
            ),
            (
                node.replace("ext/kubernetes:v1", "ext/kubernetes:v2"),
                false,
                Some(format!("{extension}kubernetes")),
            ),
            (
                format!("{node}{CONTAINERD}"),
                false,
                Some(format!("{extension}containerd")),
            ),
        ] {
            assert_eq!(why(node, &new, reboots), expected, "{new}");
        }
        let both = format!("{node}{CONTAINERD}");
        assert_eq!(
            why(&both, node, false),
            Some(format!("{extension}containerd"))
        );
    }

    #[test]
    fn pods_leave_before_their_node_joins_anew() {
        let of_lease = &format!("{WORKER}{NODE}");
        let named = |name: &str| of_lease.replace("auto: stable", &format!("hostname: {name}"));
        let kubelet = "kind: KubeletConfig\n";
        let overridden = |config: &str, name: &str| {
            let own = format!("{kubelet}extraArgs: {{hostname-override: {name}}}\n");
            config.replace(kubelet, &own)
        };
        let (endpoint, authorities, name) = (
            "the config names another endpoint of the cluster",
            "the config names other authorities of the cluster",
            "the machine gets another name",
        );
        let server = of_lease.replace("10.0.2.15:6443", "10.0.2.16:6443");
        let accepted = include_str!("../../../pki/tests/data/etcd-ca-1.14.crt");
        let accepted: String = accepted.lines().map(|it| format!("      {it}\n")).collect();
        let one_more = format!("acceptedCAs:\n    - |\n{accepted}");
        let two = of_lease.replace("acceptedCAs:\n", &one_more);
        let token = of_lease.replace("token: tuws7j", "token: tuws7k");
        for (old, new, expected) in [
            (of_lease, &server, Some(endpoint)),
            (of_lease, &two, Some(authorities)),
            (of_lease, &token, None),
            // The name that the node has already.
            (of_lease, &named("Node-1"), None),
            (of_lease, &named("node-2"), Some(name)),
            (&named("node-1"), &named("node-2"), Some(name)),
            (&named("node-1"), of_lease, Some(name)),
            (of_lease, &overridden(of_lease, "Node-1"), None),
            (of_lease, &overridden(of_lease, "node-2"), Some(name)),
            (&overridden(of_lease, "node-1"), of_lease, Some(name)),
            // The host's name is none of kubelet's business there.
            (
                &overridden(of_lease, "node-1"),
                &overridden(&named("node-2"), "node-1"),
                None,
            ),
        ] {
            assert_ne!(old, new);
            let why = why(old, new, false);
            let reason = why.as_deref().map(|why| why.split(':').next().unwrap());
            assert_eq!(reason, expected, "{new}");
        }
        assert_eq!(why(of_lease, &server, true).unwrap(), "the machine reboots");
    }

    #[test]
    fn a_node_that_joins_anew_is_told_of_its_token() {
        let parse = |text: String| config::parse(text.as_bytes()).unwrap().config;
        let worker = parse(format!("{WORKER}{NODE}"));
        let warning = warning_of_joining("why", &worker).unwrap();
        assert!(warning.contains("`cluster.token`"), "{warning}");
        let plane = include_str!("../../../config/tests/data/1.14/controlplane.yaml");
        let warning = warning_of_joining("why", &parse(format!("{plane}{NODE}"))).unwrap();
        assert_eq!(warning, "why: the node joins anew");
    }

    #[test]
    fn pods_stay_when_a_publisher_is_asked_at_other_times() {
        let followed = |folder: &str, rest: &str| {
            let key = "-----BEGIN PUBLIC KEY-----\n  MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n  -----END PUBLIC KEY-----";
            format!(
                "{WORKER}{NODE}---\napiVersion: instar.dev/v1alpha1\nkind: ExtensionConfig\nname: containerd\n\
                 url: https://example.com/{folder}/\nmatch: containerd-@v-%a.raw\npublicKey: |\n  {key}\n{rest}"
            )
        };
        let old = followed("a", "interval: 6h\n");
        for (folder, rest, stays) in [
            ("a", "interval: 1h\n", true),
            ("a", "window: {start: \"02:00\", length: 2h}\n", true),
            ("b", "interval: 6h\n", false),
        ] {
            let why = why(&old, &followed(folder, rest), false);
            assert_eq!(why.is_none(), stays, "{folder} {rest} {why:?}");
        }
    }

    #[test]
    fn a_machine_without_pods_has_none_that_leave() {
        assert_eq!(why(WORKER, WORKER, true), None);
        assert_eq!(why(WORKER, &format!("{WORKER}{NODE}"), false), None);
    }

    #[test]
    fn pods_end_with_the_container_of_kubernetes_alone() {
        assert_eq!(why_pods_end(["web", "db"].into_iter()), None);
        let why = why_pods_end(["web", Kubernetes::CONTAINER].into_iter());
        assert!(why.unwrap().contains("not allowed"));
    }

    /// machined's own DaemonSet, kube-proxy, is one of them.
    #[test]
    fn pods_leave_before_a_daemon_set_gets_another_image() {
        let plane = include_str!("../../../config/tests/data/1.14/controlplane.yaml");
        let manifest = |image: &str| {
            format!(
                "{plane}{NODE}---\napiVersion: v1alpha1\nkind: KubeInlineManifestConfig\nname: net\nmanifest: |\n  apiVersion: apps/v1\n  \
                 kind: DaemonSet\n  metadata: {{name: net, namespace: kube-system}}\n  \
                 spec: {{template: {{spec: {{containers: [{{name: net, image: '{image}'}}]}}}}}}\n"
            )
        };
        let (old, new) = (manifest("r.io/net:v1"), manifest("r.io/net:v2"));
        assert_eq!(why(&old, &old, false), None);
        assert!(why(&old, &new, false).unwrap().contains("DaemonSets"));
    }
}
