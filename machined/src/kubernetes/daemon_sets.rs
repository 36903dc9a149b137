//! DaemonSets whose images another config changes: their pods start again on every node of the cluster, and nobody drains a node for it.
//!
//! The decision: the machine says so before the config is in force, and changes the objects all the same. It cannot drain the other nodes, and
//! Kubernetes replaces the pods of a DaemonSet by itself, one node after the other, once its object has changed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::config::{Component, ControlPlane, Kubernetes, ManifestObject};

/// Names the DaemonSets of this machine's cluster whose pods start again by another config, a sentence for each.
pub fn changed_images(before: &Kubernetes, after: &Kubernetes) -> Vec<String> {
    let planes = before.control_plane.as_ref();
    let Some((before, after)) = planes.zip(after.control_plane.as_ref()) else {
        return Vec::new();
    };
    let (old, new) = (daemon_sets(before), daemon_sets(after));
    let both = new
        .iter()
        .filter_map(|(key, new)| Some((old.get(key)?, *new)));
    let changed = both.filter_map(|(old, new)| {
        let images = changed(&images(old), &images(new))?;
        (!waits_for_deletion(new)).then(|| sentence(&new.title(), &images))
    });
    changed.chain(proxy(before, after)).collect()
}

/// The DaemonSets of a config's manifests, by namespace and name.
fn daemon_sets(plane: &ControlPlane) -> BTreeMap<(&str, &str), &ManifestObject> {
    let objects = plane.manifests.iter().flat_map(|it| &it.objects);
    let sets = objects.filter(|it| it.kind == "DaemonSet");
    let keyed = sets.map(|set| {
        let namespace = set.namespace.as_deref().unwrap_or("default");
        ((namespace, set.name.as_str()), set)
    });
    keyed.collect()
}

/// The image of each container.
fn images(object: &ManifestObject) -> BTreeMap<String, String> {
    let containers = object.containers().into_iter();
    containers.map(|it| (it.name, it.image)).collect()
}

/// Says which images differ; `None` if all of them are the same.
fn changed(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Option<String> {
    let differing = new.iter().filter_map(|(container, image)| {
        let before = old.get(container)?;
        (before != image).then(|| format!("{image} instead of {before}"))
    });
    let added = new
        .iter()
        .filter(|(container, _)| !old.contains_key(*container));
    let added = added.map(|(_, image)| format!("{image} as well"));
    let all: Vec<String> = differing.chain(added).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// Whether the DaemonSet replaces a pod only once its pod was deleted, so that each node can be drained first.
fn waits_for_deletion(object: &ManifestObject) -> bool {
    let strategy = object.content.pointer("/spec/updateStrategy/type");
    strategy.and_then(Value::as_str) == Some("OnDelete")
}

/// kube-proxy, which machined applies itself.
fn proxy(before: &ControlPlane, after: &ControlPlane) -> Option<String> {
    let image = |plane: &ControlPlane| plane.proxy.as_ref().and_then(named_image);
    let (old, new) = (image(before)?, image(after)?);
    (old != new).then(|| {
        let images = format!("{new} instead of {old}");
        sentence("DaemonSet kube-system/kube-proxy", &images)
    })
}

fn named_image(component: &Component) -> Option<String> {
    component.image.as_ref().map(ToString::to_string)
}

fn sentence(title: &str, images: &str) -> String {
    format!(
        "{title} gets {images}: its pods start again on every node, one after the other, and no node is drained for it. \
         Where other pods depend on it, as on a network, drain the nodes first, or set `updateStrategy: {{type: OnDelete}}` \
         and delete its pod on each node that you have drained"
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::a_node;
    use super::*;
    use crate::config::{Manifest, manifest_objects};

    fn node(manifest: &str) -> Kubernetes {
        let mut plane = a_node::plane();
        plane.manifests = vec![Manifest {
            name: "network".to_owned(),
            objects: manifest_objects(manifest).unwrap(),
        }];
        Kubernetes {
            control_plane: Some(Box::new(plane)),
            ..a_node::kubernetes()
        }
    }

    fn network(kind: &str, image: &str, strategy: &str) -> Kubernetes {
        let containers = format!("[{{name: net, image: '{image}'}}]");
        node(&format!(
            "{{apiVersion: apps/v1, kind: {kind}, metadata: {{name: net, namespace: kube-system}}, \
             spec: {{updateStrategy: {{type: {strategy}}}, template: {{spec: {{containers: {containers}}}}}}}}}"
        ))
    }

    #[test]
    fn another_image_of_a_daemon_set_is_told() {
        let before = network("DaemonSet", "r.io/net:v1", "RollingUpdate");
        let after = network("DaemonSet", "r.io/net:v2", "RollingUpdate");
        let told = changed_images(&before, &after);
        assert_eq!(told.len(), 1, "{told:?}");
        let begin = "DaemonSet kube-system/net gets r.io/net:v2 instead of r.io/net:v1: ";
        assert!(told[0].starts_with(begin), "{}", told[0]);

        let by_deletion = network("DaemonSet", "r.io/net:v2", "OnDelete");
        let deployment = |image| network("Deployment", image, "RollingUpdate");
        for (one, other) in [
            (&before, &before),
            (&before, &by_deletion),
            (&deployment("r.io/net:v1"), &deployment("r.io/net:v2")),
            // A new one takes nothing away from the pods that run.
            (
                &node("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"),
                &after,
            ),
            (&a_node::kubernetes(), &after),
        ] {
            assert_eq!(changed_images(one, other), Vec::<String>::new());
        }
    }

    #[test]
    fn another_image_of_kube_proxy_is_told() {
        let with = |image: &str| {
            let mut node = network("DaemonSet", "r.io/net:v1", "RollingUpdate");
            let plane = node.control_plane.as_mut().unwrap();
            plane.proxy = Some(Component {
                image: Some(image.parse().unwrap()),
                ..Component::default()
            });
            node
        };
        let (one, other) = (with("r.io/proxy:v1"), with("r.io/proxy:v2"));
        assert_eq!(changed_images(&one, &one), Vec::<String>::new());
        let told = changed_images(&one, &other);
        let begin = "DaemonSet kube-system/kube-proxy gets r.io/proxy:v2 instead of r.io/proxy:v1";
        assert!(told[0].starts_with(begin), "{told:?}");
    }
}
