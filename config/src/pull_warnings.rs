//! Warnings of containers in the config's manifests that start only with a registry, on a machine that has its images with it.

use instar_values::ImageReference;

use super::{
    documents::Identified, manifest_containers::manifest_objects, warnings::Warning, yaml::Node,
};

/// The documents by which a machine has images with it: pinned ones, and those of bundles.
const PINS: &str = "ImagePinConfig";
const BUNDLES: &str = "BundleConfig";

/// The warnings of all manifests; none where Kubernetes does not run, or the config neither pins images nor speaks of bundles.
pub(super) fn collect(documents: &[Identified<'_>]) -> Vec<Warning> {
    let has = |kind| documents.iter().any(|document| document.kind.name == kind);
    if !has("KubernetesConfig") || (!has(PINS) && !has(BUNDLES)) {
        return Vec::new();
    }
    let pinned = pinned(documents);
    let manifests = documents.iter().flat_map(manifests);
    let warnings = manifests.flat_map(|(path, text)| of_manifest(&path, text, &pinned));
    warnings.collect()
}

/// The images that the config pins.
fn pinned(documents: &[Identified<'_>]) -> Vec<ImageReference> {
    let pins = documents.iter().filter(|it| it.kind.name == PINS);
    let images = pins.filter_map(|document| document.root.get("images"));
    let images = images.flat_map(Node::items).filter_map(Node::text);
    images.filter_map(|image| image.parse().ok()).collect()
}

/// The manifests of a document, each with its path.
fn manifests<'a>(document: &Identified<'a>) -> Vec<(String, &'a Node)> {
    let root = document.root;
    if document.kind.name == "KubeInlineManifestConfig" {
        let manifest = root.get("manifest").into_iter();
        let manifest = manifest.map(|it| ("KubeInlineManifestConfig.manifest".to_owned(), it));
        return manifest.collect();
    }
    let cluster = root.get("cluster").filter(|_| document.is_machine());
    let manifests = cluster.and_then(|cluster| cluster.get("inlineManifests"));
    let manifests = manifests.map(Node::items).unwrap_or_default().iter();
    let contents = manifests.enumerate().filter_map(|(number, manifest)| {
        let path = format!("cluster.inlineManifests[{number}].contents");
        Some((path, manifest.get("contents")?))
    });
    contents.collect()
}

fn of_manifest(path: &str, text: &Node, pinned: &[ImageReference]) -> Vec<Warning> {
    let objects = text.text().map(manifest_objects);
    // What is no manifest was an error already, where the config has a use for manifests.
    let objects = objects.and_then(Result::ok).unwrap_or_default();
    let containers = objects.iter().flat_map(|object| {
        let containers = object.containers().into_iter();
        containers.map(move |container| (object.title(), container))
    });
    let warnings = containers.filter_map(|(title, container)| {
        let why = container.pull.why_always()?;
        let (name, image) = (container.name, container.image);
        if is_pinned(&image, pinned) {
            return None;
        }
        Some(Warning {
            path: path.to_owned(),
            at: text.at,
            message: format!(
                "{title}, container {name}: each start asks a registry for {image} ({why}), and this config does not pin that image. \
                 Without a registry the container starts only where a bundle has brought it. \
                 Name it in an `ImagePinConfig`, or set `imagePullPolicy: IfNotPresent`"
            ),
        })
    });
    warnings.collect()
}

/// Whether the machine itself answers for an image. A pinned image with a digest answers for its tag, too.
fn is_pinned(image: &str, pinned: &[ImageReference]) -> bool {
    let Ok(image) = image.parse::<ImageReference>() else {
        return false;
    };
    pinned.iter().any(|pinned| {
        let is_of_repository =
            pinned.registry() == image.registry() && pinned.repository() == image.repository();
        let is_same = match image.digest() {
            Some(digest) => pinned.digest() == Some(digest),
            None => pinned.tag() == image.tag(),
        };
        is_of_repository && is_same
    })
}
