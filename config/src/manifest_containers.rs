//! The containers in manifests, and whether a node asks a registry each time that it starts one.

use serde_json::Value;

use super::{model::ManifestObject, resolve};

/// The places of pods in objects: of a Pod itself, of those that make pods (Deployment, DaemonSet, Job, …), of a CronJob and of a PodTemplate.
const PODS: [&str; 4] = [
    "/spec",
    "/spec/template/spec",
    "/spec/jobTemplate/spec/template/spec",
    "/template/spec",
];

/// A container of an object's pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestContainer {
    /// Its name.
    pub name: String,
    /// Its image, as it is written.
    pub image: String,
    /// When a node asks a registry for the image.
    pub pull: Pull,
}

/// When a node asks a registry for an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// At each start of the container, as `imagePullPolicy: Always` says.
    Always,
    /// At each start, as this is what Kubernetes does with an image by the tag `latest`, or without a tag, whose policy is not said.
    AlwaysByDefault,
    /// Only if the image is not on the node, or never.
    Otherwise,
}

impl Pull {
    /// Says why the registry is asked at each start; `None` if it is not.
    pub fn why_always(self) -> Option<&'static str> {
        match self {
            Pull::Always => Some("imagePullPolicy Always"),
            Pull::AlwaysByDefault => {
                Some("imagePullPolicy Always, the default for the tag `latest` and for no tag")
            }
            Pull::Otherwise => None,
        }
    }

    fn of(image: &str, policy: Option<&str>) -> Self {
        match policy {
            Some("Always") => Pull::Always,
            // Kubernetes takes an empty policy for none.
            None | Some("") if means_latest(image) => Pull::AlwaysByDefault,
            _ => Pull::Otherwise,
        }
    }
}

/// Whether an image is named by no digest, and by the tag `latest` or none. A colon before the last slash is that of a port.
fn means_latest(image: &str) -> bool {
    let last = image.rsplit('/').next().unwrap_or_default();
    let tag = last.split_once(':').map(|(_, tag)| tag);
    !image.contains('@') && matches!(tag, None | Some("latest"))
}

impl ManifestObject {
    /// Lists the containers of the object's pods, those that run first in front. An object without pods has none.
    pub fn containers(&self) -> Vec<ManifestContainer> {
        let pods = PODS.iter().filter_map(|place| self.content.pointer(place));
        let lists = pods.flat_map(|pod| [pod.get("initContainers"), pod.get("containers")]);
        let containers = lists.flatten().filter_map(Value::as_array).flatten();
        containers.filter_map(container).collect()
    }

    /// Returns kind, namespace and name, for people.
    pub fn title(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{} {namespace}/{}", self.kind, self.name),
            None => format!("{} {}", self.kind, self.name),
        }
    }
}

/// Reads a container; `None` if it is none, which the API server will say.
fn container(content: &Value) -> Option<ManifestContainer> {
    let text = |field| content.get(field).and_then(Value::as_str);
    let image = text("image")?.to_owned();
    Some(ManifestContainer {
        name: text("name")?.to_owned(),
        pull: Pull::of(&image, text("imagePullPolicy")),
        image,
    })
}

/// Why a text has no objects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotManifests(String);

/// Reads the objects of manifests, as they are given to `kubectl apply`.
///
/// # Errors
/// The text is no YAML, or one of its documents is no object of Kubernetes.
pub fn manifest_objects(text: &str) -> Result<Vec<ManifestObject>, NotManifests> {
    resolve::manifest_objects(text).map_err(NotManifests)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_policy_follows_from_the_name_where_it_is_not_said() {
        for (image, policy, pull) in [
            ("r.io/a:v1", None, Pull::Otherwise),
            ("r.io/a:v1", Some("Always"), Pull::Always),
            ("r.io/a", Some("IfNotPresent"), Pull::Otherwise),
            ("r.io/a", Some("Never"), Pull::Otherwise),
            ("r.io/a", None, Pull::AlwaysByDefault),
            ("r.io:5000/a", Some(""), Pull::AlwaysByDefault),
            ("r.io:5000/a:latest", None, Pull::AlwaysByDefault),
            ("r.io/a:latest-1", None, Pull::Otherwise),
            ("r.io/a@sha256:0", None, Pull::Otherwise),
            ("r.io/a:latest@sha256:0", None, Pull::Otherwise),
        ] {
            assert_eq!(Pull::of(image, policy), pull, "{image} {policy:?}");
        }
    }

    #[test]
    fn containers_are_found_in_all_kinds_that_make_pods() {
        let pod = "{initContainers: [{name: i, image: r.io/i:v1}], containers: [{name: c, image: r.io/c}, {name: none}]}";
        let metadata = "metadata: {name: n, namespace: s}";
        for (kind, spec) in [
            ("Pod", format!("spec: {pod}")),
            ("DaemonSet", format!("spec: {{template: {{spec: {pod}}}}}")),
            (
                "CronJob",
                format!("spec: {{jobTemplate: {{spec: {{template: {{spec: {pod}}}}}}}}}"),
            ),
            ("PodTemplate", format!("template: {{spec: {pod}}}")),
        ] {
            let text = format!("{{apiVersion: v1, kind: {kind}, {metadata}, {spec}}}");
            let objects = manifest_objects(&text).unwrap();
            let found = objects[0].containers();
            let names: Vec<_> = found.iter().map(|it| (&*it.name, it.pull)).collect();
            assert_eq!(
                names,
                [("i", Pull::Otherwise), ("c", Pull::AlwaysByDefault)],
                "{kind}"
            );
            assert_eq!(objects[0].title(), format!("{kind} s/n"));
        }
        let other =
            "{apiVersion: v1, kind: ConfigMap, metadata: {name: n}, data: {containers: ''}}";
        assert_eq!(manifest_objects(other).unwrap()[0].containers(), []);
        let fault = manifest_objects("kind: Pod").unwrap_err().to_string();
        assert!(fault.contains("apiVersion"), "{fault}");
    }
}
