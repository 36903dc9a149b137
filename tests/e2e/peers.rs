//! Checks of the test frame's own servers.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use instar_tests::{Outcome, Registry, Scratch, Test, chapters, http, sha256_digest, tests};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        the_registry_keeps_what_it_is_given,
        two_registries_do_not_know_each_other
    ]
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";
const CONFIG_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const CONFIG: &[u8] = b"{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[]}}";

async fn the_registry_keeps_what_it_is_given(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let (layout, manifest) = image_layout(&scratch)?;
    let digest = registry.push_layout(&layout, "some/image", "v1")?;
    ensure!(digest == sha256_digest(manifest.as_bytes()));
    chapters![
        the_registry_gives_a_manifest_and_a_layer_back(&registry, &manifest),
        the_registry_refuses_a_manifest_with_a_hole(&registry, &manifest),
    ]
    .await
}

fn layer() -> Vec<u8> {
    vec![7; 3 << 20]
}

/// An image of one layer: the folder of its layout, and its manifest.
fn image_layout(scratch: &Scratch) -> anyhow::Result<(PathBuf, String)> {
    let layout = scratch.join("layout");
    let blobs = layout.join("blobs/sha256");
    std::fs::create_dir_all(&blobs)?;
    let config = put_blob(&blobs, CONFIG_TYPE, CONFIG)?;
    let layer = put_blob(&blobs, LAYER_TYPE, &layer())?;
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"{MANIFEST}","config":{config},"layers":[{layer}]}}"#
    );
    let described = put_blob(&blobs, MANIFEST, manifest.as_bytes())?;
    let index = format!(r#"{{"schemaVersion":2,"manifests":[{described}]}}"#);
    std::fs::write(layout.join("index.json"), index)?;
    Ok((layout, manifest))
}

/// Writes a blob, and describes it.
fn put_blob(blobs: &Path, media_type: &str, content: &[u8]) -> anyhow::Result<String> {
    let (digest, size) = (sha256_digest(content), content.len());
    std::fs::write(blobs.join(&digest[7..]), content)?;
    Ok(format!(
        r#"{{"mediaType":"{media_type}","digest":"{digest}","size":{size}}}"#
    ))
}

async fn the_registry_gives_a_manifest_and_a_layer_back(
    registry: &Registry,
    manifest: &str,
) -> Outcome {
    let get = |target: &str| {
        let accept = [("Accept", MANIFEST)];
        http(&registry.address(), "GET", target, &accept, &[])
    };
    let back = get("/v2/some/image/manifests/v1")?;
    ensure!(
        back.status == 200 && back.body == manifest.as_bytes(),
        "the registry gives {}",
        back.status
    );
    let layer = layer();
    let target = format!("/v2/some/image/blobs/{}", sha256_digest(&layer));
    ensure!(get(&target)?.body == layer);
    Ok(())
}

async fn the_registry_refuses_a_manifest_with_a_hole(
    registry: &Registry,
    manifest: &str,
) -> Outcome {
    let (layer, absent) = (sha256_digest(&layer()), sha256_digest(b"never stored"));
    let missing = manifest.replace(&layer, &absent);
    let put = registry.put_manifest("some/image", "v2", missing.as_bytes());
    ensure!(put.is_err(), "it takes a manifest with a hole");
    Ok(())
}

async fn two_registries_do_not_know_each_other(scratch: Scratch) -> Outcome {
    let one = Registry::start(&scratch)?;
    let digest = one.put_blob("x", b"content")?;
    let other = Registry::start(&scratch.below("other")?)?;
    ensure!(one.address() != other.address());
    let target = format!("/v2/x/blobs/{digest}");
    ensure!(http(&one.address(), "HEAD", &target, &[], &[])?.status == 200);
    ensure!(http(&other.address(), "HEAD", &target, &[], &[])?.status == 404);
    let address = one.address();
    drop(one);
    ensure!(
        http(&address, "GET", "/v2/", &[], &[]).is_err(),
        "it outlives its value"
    );
    Ok(())
}
