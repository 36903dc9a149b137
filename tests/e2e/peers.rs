//! The frame's own servers do what tests count on.

use anyhow::ensure;
use instar_tests::{Outcome, Registry, Scratch, Test, http, sha256_digest, tests};

pub(crate) fn tests() -> Vec<Test> {
    tests![
        the_registry_keeps_what_it_is_given,
        two_registries_do_not_know_each_other
    ]
}

const CONFIG: &[u8] = b"{\"architecture\":\"amd64\",\"os\":\"linux\",\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[]}}";

async fn the_registry_keeps_what_it_is_given(scratch: Scratch) -> Outcome {
    let registry = Registry::start(&scratch)?;
    let layer = vec![7; 3 << 20];
    let layout = scratch.join("layout");
    std::fs::create_dir_all(layout.join("blobs/sha256"))?;
    let put = |content: &[u8]| -> anyhow::Result<String> {
        let digest = sha256_digest(content);
        std::fs::write(layout.join("blobs/sha256").join(&digest[7..]), content)?;
        Ok(digest)
    };
    let manifest = format!(
        r#"{{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"{}","size":{}}},"layers":[{{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{}","size":{}}}]}}"#,
        put(CONFIG)?,
        CONFIG.len(),
        put(&layer)?,
        layer.len(),
    );
    let digest = put(manifest.as_bytes())?;
    std::fs::write(
        layout.join("index.json"),
        format!(r#"{{"schemaVersion":2,"manifests":[{{"digest":"{digest}"}}]}}"#),
    )?;

    ensure!(registry.push_layout(&layout, "some/image", "v1")? == digest);
    let accept = [("Accept", "application/vnd.oci.image.manifest.v1+json")];
    let back = http(
        &registry.address(),
        "GET",
        "/v2/some/image/manifests/v1",
        &accept,
        &[],
    )?;
    ensure!(
        back.status == 200 && back.body == manifest.as_bytes(),
        "the registry gives {}",
        back.status
    );
    let target = format!("/v2/some/image/blobs/{}", sha256_digest(&layer));
    ensure!(http(&registry.address(), "GET", &target, &[], &[])?.body == layer);

    let missing = manifest.replace(&sha256_digest(&layer), &sha256_digest(b"never stored"));
    ensure!(
        registry
            .put_manifest("some/image", "v2", missing.as_bytes())
            .is_err(),
        "a manifest with a hole"
    );
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
