//! The effect of another config on the pods of this node: a program that changes the configs of many nodes has them leave first where this says so.
//!
//! The decision: the machine says it, as it does in the plan of an upgrade. Whoever asks has the text of both configs, and would have to know which
//! settings restart a container, and which only a boot takes over.

use super::ConfigChange;
use crate::config::{Extension, ExtensionSource, Kubernetes, MachineConfig};
use crate::kubernetes::changed_images;

/// Why the pods should have left before the change: they would end, or what they stand on changes under them. None if they live through it, or
/// this machine is no node. `reboots`: whether the change takes a reboot at once.
pub(super) fn why_pods_leave(
    old: &MachineConfig,
    new: &MachineConfig,
    change: &ConfigChange,
    reboots: bool,
) -> Option<String> {
    let before = old.kubernetes.as_ref()?;
    if reboots {
        return Some("the machine reboots".to_owned());
    }
    let mut containers = change.removed.iter().chain(&change.started);
    if containers.any(|name| name == Kubernetes::CONTAINER) {
        return Some("the container of Kubernetes starts again, and they end".to_owned());
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
        why_pods_leave(&old, &new, &ConfigChange::between(&old, &new), reboots)
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
