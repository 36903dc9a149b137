//! Compares the images of a bundle with the containers of the manifests that it is made for.
//!
//! A pod starts without a registry if the bundle has its image, and if no node asks a registry for it all the same. That is better known
//! while the bundle is made than at the place that has no registry.

use std::fs;
use std::path::Path;

use instar_bundle::Image;
use instar_client::{Failure, FailureKind};
use instar_config::{ManifestContainer, ManifestObject, manifest_objects};
use instar_values::ImageReference;

use crate::cli::CreateBundle;

/// Reads the objects of all manifests, and of the manifests in machine configs.
pub(super) fn read(arguments: &CreateBundle) -> Result<Vec<ManifestObject>, Failure> {
    let mut objects = Vec::new();
    for path in &arguments.manifests {
        let text = text(path)?;
        let found = manifest_objects(&text);
        objects.extend(found.map_err(|fault| unusable(path, "Kubernetes manifests", fault))?);
    }
    for path in &arguments.machine_config {
        let text = text(path)?;
        let parsed = instar_config::parse(text.as_bytes());
        let parsed = parsed.map_err(|fault| unusable(path, "machine config", fault))?;
        let kubernetes = parsed.config.kubernetes;
        let plane = kubernetes.and_then(|kubernetes| kubernetes.control_plane);
        let manifests = plane.map(|plane| plane.manifests).unwrap_or_default();
        objects.extend(manifests.into_iter().flat_map(|manifest| manifest.objects));
    }
    Ok(objects)
}

fn text(path: &Path) -> Result<String, Failure> {
    let doing = format!("cannot read {}", path.display());
    fs::read_to_string(path).map_err(|error| Failure::io(doing, error))
}

fn unusable(
    path: &Path,
    kind: &str,
    fault: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Failure {
    let message = format!("cannot use {} as {kind}", path.display());
    Failure::new(FailureKind::Failed, message).because(fault)
}

/// The warnings about containers that do not start from a bundle of these images, or not on every node.
pub(super) fn warnings<'a>(
    objects: &[ManifestObject],
    images: impl Iterator<Item = &'a Image>,
) -> Vec<String> {
    let images: Vec<&Image> = images.collect();
    let containers = objects.iter().flat_map(|object| {
        let containers = object.containers().into_iter();
        containers.map(move |container| (object.title(), container))
    });
    let warnings = containers.filter_map(|(title, container)| {
        let fault = fault(&container, &images)?;
        Some(format!("{title}, container {}: {fault}", container.name))
    });
    warnings.collect()
}

fn fault(container: &ManifestContainer, images: &[&Image]) -> Option<String> {
    let image = &container.image;
    let Ok(reference) = image.parse::<ImageReference>() else {
        return Some(format!("{image} is no reference of an image"));
    };
    let Some(here) = images.iter().find(|here| is_image(here, &reference)) else {
        return Some(format!(
            "its image {image} is not in this bundle: take it in with --image"
        ));
    };
    let why = container.pull.why_always()?;
    let digest = here.named_digest();
    Some(format!(
        "each start asks a registry for {image} ({why}); without a registry only a node of Instar starts it, which answers for the images of \
         its bundles itself. Set imagePullPolicy IfNotPresent, and name the image by its digest: {}",
        reference.at(digest)
    ))
}

/// Whether an image of the bundle is the one of this reference: by its digest, or else by its tag.
fn is_image(here: &Image, reference: &ImageReference) -> bool {
    let is_of_repository = here.reference.registry() == reference.registry()
        && here.reference.repository() == reference.repository();
    let is_same = match reference.digest() {
        Some(digest) => digest == here.named_digest() || digest == here.manifest.digest,
        None => here.reference.tag() == reference.tag(),
    };
    is_of_repository && is_same
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_bundle::{Document, Platform};
    use instar_values::Digest;

    use super::*;

    fn bundled(reference: &str) -> Image {
        Image {
            reference: reference.parse().unwrap(),
            platform: Platform {
                architecture: "amd64".to_owned(),
                os: "linux".to_owned(),
            },
            manifest: Document {
                media_type: "application/vnd.oci.image.manifest.v1+json".to_owned(),
                digest: Digest::of(b"manifest"),
                size: 8,
            },
            index: Some(Digest::of(b"index")),
        }
    }

    /// The warnings about a pod with one container.
    fn of_pod(container: &str) -> Vec<String> {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{containers: [{{name: c, {container}}}]}}}}"
        );
        let images = [bundled("r.io/a:v1"), bundled("r.io/b")];
        warnings(&manifest_objects(&text).unwrap(), images.iter())
    }

    #[test]
    fn a_container_that_needs_a_registry_is_told() {
        let digest = Digest::of(b"index");
        for well in [
            "image: 'r.io/a:v1'".to_owned(),
            format!("image: 'r.io/a@{digest}'"),
            format!("image: 'r.io/a@{}'", Digest::of(b"manifest")),
            "image: r.io/b, imagePullPolicy: IfNotPresent".to_owned(),
        ] {
            assert_eq!(of_pod(&well), Vec::<String>::new(), "{well}");
        }
        for (container, said) in [
            ("image: 'r.io/a:v2'", "r.io/a:v2 is not in this bundle"),
            ("image: 'r.io/c:v1'", "take it in with --image"),
            (
                "image: 'r.io/a:v1', imagePullPolicy: Always",
                "asks a registry for r.io/a:v1",
            ),
            ("image: r.io/b", "the default for the tag `latest`"),
            ("image: 'R.IO/%'", "no reference"),
        ] {
            let warnings = of_pod(container);
            assert_eq!(warnings.len(), 1, "{container}: {warnings:?}");
            let warning = &warnings[0];
            assert!(warning.starts_with("Pod p, container c: "), "{warning}");
            assert!(warning.contains(said), "{warning}");
        }
        let named = &of_pod("image: r.io/b")[0];
        assert!(named.ends_with(&format!("r.io/b@{digest}")), "{named}");
    }
}
