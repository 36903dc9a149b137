//! Bundles of images from a real registry, and their use without it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use instar_base::back_off::BackOff;
use instar_base::error_chain::chain;
use instar_bundle::{Files, Platform, VerifiedBundle, verify};
use instar_values::{Digest, ImageReference};
use serde_json::json;

use super::pulling::{layer, puller_with, store};
use super::registry::{Registry, mirrored};
use super::signatures::{
    BUNDLE, INDEX, MANIFEST, lists_of_referrers, pushed, serve, sign, size_of,
};
use crate::bundled::{BundleError, Gathered, Naming, StoredBundle, Target, import, resolve, write};
use crate::registry::RegistryClient;
use crate::store::ImageStore;
use crate::verification::test_signing::{Signer, bundle_of, payload, statement};
use crate::verification::{Basis, is_signed_by};
use crate::{Keeps, Limits, Policy, Registries, Retries};

fn client(settings: Registries) -> RegistryClient {
    let pauses = BackOff {
        first: Duration::from_millis(10),
        longest: Duration::from_millis(10),
    };
    let retries = Retries {
        attempts: 2,
        pauses,
    };
    RegistryClient::new(Arc::new(settings), retries)
}

fn amd64() -> Platform {
    Platform {
        architecture: "amd64".to_owned(),
        os: "linux".to_owned(),
    }
}

async fn gathered(registry: &Registry, references: &[ImageReference]) -> Vec<Gathered> {
    let client = client(registry.settings());
    let mut images = Vec::new();
    for reference in references {
        images.push(client.gather(reference, &amd64()).await.unwrap());
    }
    images
}

async fn archive(
    registry: &Registry,
    references: &[ImageReference],
    path: &Path,
) -> Result<VerifiedBundle, BundleError> {
    let images = gathered(registry, references).await;
    let target = Target::Archive(File::create(path).unwrap());
    write(
        &client(registry.settings()),
        images,
        &[],
        &[],
        target,
        &|_| {},
    )
    .await?;
    Ok(verify(Files::open(path).unwrap(), &mut |_| {}).unwrap())
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bundle");
    (directory, path)
}

#[tokio::test]
async fn images_are_verified_from_a_bundle_by_the_signatures_in_it() {
    let registry = Registry::start();
    let (base, own) = (layer("base", b"base"), layer("own", b"own"));
    registry.push("v1", "amd64", &[base.clone(), own]).await;
    registry.push("v2", "amd64", &[base]).await;
    let references = [registry.reference(":v1"), registry.reference(":v2")];
    let digests: Vec<Digest> = gathered(&registry, &references)
        .await
        .iter()
        .map(|it| it.image.manifest.digest)
        .collect();
    let (signer, other) = (Signer::ecdsa(), Signer::ed25519());
    sign(&registry, digests[0], &[signer.simple(payload(digests[0]))]).await;
    let bundle = bundle_of(&signer.statement(statement(digests[1])));
    let tag = format!("sha256-{}", digests[1].hex());
    registry
        .push_signatures(&tag, vec![(bundle, BUNDLE, BTreeMap::new())])
        .await;

    let (_directory, path) = scratch();
    let bundle = archive(&registry, &references, &path).await.unwrap();
    drop(registry);
    let (_images, store) = store();
    assert_eq!(bundle.index().signatures().len(), 2);
    for image in bundle.index().images() {
        let resolved = resolve(&bundle, image).unwrap();
        let verified = signer.policy().verify_offline(&bundle, image, resolved);
        let verified = verified.unwrap();
        assert!(matches!(verified.basis(), Basis::Signed { .. }));
        let limits = Limits::default();
        let imported = import(&bundle, &verified, Naming::Moves, &store, &limits, &|_| {})
            .await
            .unwrap();
        assert!(imported.rootfs().join("base").exists());
        let found = store.find(&image.reference).unwrap();
        signer.policy().admit(&image.reference, found).unwrap();
        assert!(is_signed_by(&bundle, image, &signer.public_key()).unwrap());
        assert!(!is_signed_by(&bundle, image, &other.public_key()).unwrap());
        let resolved = resolve(&bundle, image).unwrap();
        let refused = other.policy().verify_offline(&bundle, image, resolved);
        let said = chain(&refused.unwrap_err());
        assert!(said.contains("1 signature, not by this key"), "{said}");
    }
    let bundle = from_store(&store, &references, &path);
    for image in bundle.index().images() {
        let resolved = resolve(&bundle, image).unwrap();
        let verified = signer.policy().verify_offline(&bundle, image, resolved);
        assert!(matches!(verified.unwrap().basis(), Basis::Signed { .. }));
        assert!(!is_signed_by(&bundle, image, &other.public_key()).unwrap());
    }
}

/// At the import no rule wants a signature; later, where no registry is, one does.
#[tokio::test]
async fn signatures_of_a_bundle_are_kept_for_rules_of_later() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"1")]).await;
    let references = [registry.reference(":v1")];
    let digest = gathered(&registry, &references).await[0]
        .image
        .manifest
        .digest;
    let (signer, second, other) = (Signer::ecdsa(), Signer::ed25519(), Signer::ecdsa());
    let both = [&signer, &second].map(|signer| signer.simple(payload(digest)));
    sign(&registry, digest, &both).await;
    let (_directory, path) = scratch();
    let bundle = archive(&registry, &references, &path).await.unwrap();
    drop(registry);
    let (images, store) = store();
    let image = &bundle.index().images()[0];
    let resolved = resolve(&bundle, image).unwrap();
    let verified = Policy::default().verify_offline(&bundle, image, resolved);
    let verified = verified.unwrap();
    assert_eq!(*verified.basis(), Basis::NoRule);
    let limits = Limits::default();
    let imported = import(&bundle, &verified, Naming::Moves, &store, &limits, &|_| {}).await;
    let imported = imported.unwrap().into_inner();
    assert!(imported.signed_by().is_empty());
    for wanted in [&signer, &second] {
        let admitted = wanted.policy().admit(&image.reference, imported.clone());
        assert!(matches!(admitted.unwrap().basis(), Basis::Signed { .. }));
    }
    let refused = other.policy().admit(&image.reference, imported.clone());
    let said = chain(&refused.unwrap_err());
    assert!(said.contains("2 signatures, none by this key"), "{said}");

    // A damaged image leaves them for the one that is made again.
    std::fs::write(imported.rootfs().join("a"), b"0").unwrap();
    let store = ImageStore::new(images.path().to_owned(), Keeps::Blobs);
    let strict = puller_with(Registries::default(), signer.policy());
    let whole = strict.whole(&image.reference, digest, &store).await;
    let whole = whole.unwrap().unwrap();
    second.policy().admit(&image.reference, whole).unwrap();
}

/// An old image is as well signed as a new one, and a bundle may give it any name.
#[tokio::test]
async fn a_bundle_that_nobody_approved_moves_no_name_to_an_old_image() {
    let registry = Registry::start();
    let reference = registry.reference(":v1");
    let (_directory, path) = scratch();
    let (_images, store) = store();
    let mut found = Vec::new();
    for (content, naming) in [
        (b"1", Naming::MovesToNewer),
        (b"2", Naming::MovesToNewer),
        (b"2", Naming::Moves),
    ] {
        registry.push("v1", "amd64", &[layer("a", content)]).await;
        let references = std::slice::from_ref(&reference);
        let bundle = archive(&registry, references, &path).await.unwrap();
        let image = &bundle.index().images()[0];
        let resolved = resolve(&bundle, image).unwrap();
        let verified = Policy::default().verify_offline(&bundle, image, resolved);
        let (verified, limits) = (verified.unwrap(), Limits::default());
        let imported = import(&bundle, &verified, naming, &store, &limits, &|_| {}).await;
        let imported = imported.unwrap();
        found.push((imported.is_named(&reference), imported.digest()));
        let named = store.find(&reference).unwrap();
        assert_eq!(
            named.digest(),
            if found.len() < 3 {
                found[0].1
            } else {
                found[2].1
            }
        );
        if naming == Naming::MovesToNewer {
            assert_eq!(imported.names().len(), 1);
        }
    }
    assert_eq!(
        found.iter().map(|it| it.0).collect::<Vec<_>>(),
        [true, false, true]
    );
}

#[tokio::test]
async fn a_signature_that_is_too_large_or_cannot_be_read_is_no_signature() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"1")]).await;
    let references = [registry.reference(":v1")];
    let gathered = gathered(&registry, &references).await;
    let digest = gathered[0].image.manifest.digest;
    let signer = Signer::ecdsa();
    let mut large = payload(digest);
    large.resize(300 << 10, b' ');
    sign(&registry, digest, &[signer.simple(large)]).await;
    let (_directory, path) = scratch();
    let bundle = archive(&registry, &references, &path).await.unwrap();
    let image = &bundle.index().images()[0];
    let judged = |policy: Policy, resolved| {
        let verified = policy.verify_offline(&bundle, image, resolved);
        verified.map_err(|error| chain(&error))
    };
    let resolved = resolve(&bundle, image).unwrap();
    let said = judged(signer.policy(), resolved.clone()).unwrap_err();
    assert!(said.contains("it has 307200 bytes"), "{said}");

    // A stick that is pulled out.
    std::fs::write(&path, b"").unwrap();
    let said = judged(Policy::default(), resolved.clone()).unwrap_err();
    let named = format!("{} ({digest}) is not verified", image.reference);
    assert!(said.starts_with(&named), "{said}");
    let said = judged(signer.policy(), resolved).unwrap_err();
    let key = signer.public_key().fingerprint();
    let wanted = format!("rule 0000 (*) of ImageVerificationConfig wants one by the key {key}");
    assert!(said.starts_with(&named) && said.contains(&wanted), "{said}");
}

/// Makes a bundle of images of a store, and verifies every byte of it.
fn from_store(store: &ImageStore, references: &[ImageReference], path: &Path) -> VerifiedBundle {
    let stored = StoredBundle::new(store, references).unwrap();
    let (digest, bytes) = (stored.digest(), stored.bytes());
    stored.write(Box::new(File::create(path).unwrap())).unwrap();
    assert_eq!(std::fs::metadata(path).unwrap().len(), bytes);
    let bundle = verify(Files::open(path).unwrap(), &mut |_| {}).unwrap();
    assert_eq!(bundle.digest(), digest);
    bundle
}

#[tokio::test]
async fn a_bundle_has_the_signatures_of_all_pages_of_a_list_of_referrers() {
    let (registry, image) = pushed().await;
    let (digest, lists) = lists_of_referrers(&registry, &image, &Signer::ecdsa());
    for (number, documents) in lists.into_iter().enumerate() {
        // A mirror that knows of signatures alone.
        let urls = [serve(documents), format!("http://{}", registry.host())];
        let settings = mirrored(&registry.host(), &urls.each_ref().map(String::as_str));
        let gathered = client(settings).gather(&image.reference, &amd64()).await;
        let found = gathered.unwrap().signatures;
        let found: Vec<Digest> = found.iter().map(|it| it.manifest.digest).collect();
        assert_eq!(found, [digest], "list {number}");
    }
}

#[tokio::test]
async fn the_same_images_give_the_same_bundle() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"1")]).await;
    registry.push("v2", "amd64", &[layer("b", b"2")]).await;
    let mut references = vec![registry.reference(":v1"), registry.reference(":v2")];
    let (_directory, path) = scratch();
    archive(&registry, &references, &path).await.unwrap();
    let one = std::fs::read(&path).unwrap();
    references.reverse();
    archive(&registry, &references, &path).await.unwrap();
    assert_eq!(one, std::fs::read(&path).unwrap());
}

#[tokio::test]
async fn a_signed_index_is_in_the_bundle_with_the_one_image_from_it() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"1")]).await;
    let reference = registry.reference(":v1");
    let image = &gathered(&registry, std::slice::from_ref(&reference)).await[0].image;
    let digest = image.manifest.digest;
    let entry = |digest: Digest, architecture: &str| {
        json!({"mediaType": MANIFEST, "digest": digest, "size": size_of(&registry, digest),
               "platform": {"os": "linux", "architecture": architecture}})
    };
    registry.push("arm", "arm64", &[layer("c", b"3")]).await;
    let arm = registry.reference(":arm");
    let other = Platform {
        architecture: "arm64".to_owned(),
        ..amd64()
    };
    let client = client(registry.settings());
    let arm = client.gather(&arm, &other).await.unwrap();
    let arm = arm.image.manifest.digest;
    let index = json!({"schemaVersion": 2, "mediaType": INDEX,
                       "manifests": [entry(arm, "arm64"), entry(digest, "amd64")]});
    let index = Digest::of(&registry.push_manifest("both", &index).await);
    let signer = Signer::p384();
    sign(&registry, index, &[signer.simple(payload(index))]).await;

    let (_directory, path) = scratch();
    let references = [
        registry.reference(":both"),
        registry.reference(&format!("@{index}")),
    ];
    let bundle = archive(&registry, &references, &path).await.unwrap();
    assert_eq!(bundle.index().images().len(), 2);
    for image in bundle.index().images() {
        assert_eq!((image.manifest.digest, image.index), (digest, Some(index)));
        let resolved = resolve(&bundle, image).unwrap();
        let verified = signer.policy().verify_offline(&bundle, image, resolved);
        assert_eq!(verified.unwrap().digest(), digest);
        assert!(is_signed_by(&bundle, image, &signer.public_key()).unwrap());
    }

    let both = [
        client.gather(&references[0], &amd64()).await.unwrap(),
        client.gather(&references[0], &other).await.unwrap(),
    ];
    let target = Target::Archive(File::create(&path).unwrap());
    let summary = write(&client, both.into(), &[], &[], target, &|_| {})
        .await
        .unwrap();
    assert_eq!(summary.architectures.len(), 2);
    let bundle = verify(Files::open(&path).unwrap(), &mut |_| {}).unwrap();
    let refused = resolve(&bundle, &bundle.index().images()[1]).unwrap_err();
    let expected = "the image is for linux/arm64, this machine is linux/amd64";
    assert!(chain(&refused).ends_with(expected), "{}", chain(&refused));
}

#[tokio::test]
async fn what_a_registry_does_not_give_is_said() {
    let registry = Registry::start();
    registry.push("v1", "amd64", &[layer("a", b"1")]).await;
    let client = client(registry.settings());
    let absent = client.gather(&registry.reference(":v2"), &amd64()).await;
    assert!(chain(&absent.unwrap_err()).contains("it does not have it"));
    let other = Platform {
        architecture: "arm64".to_owned(),
        ..amd64()
    };
    let refused = client.gather(&registry.reference(":v1"), &other).await;
    let said = chain(&refused.unwrap_err());
    assert!(
        said.ends_with("the image is for linux/amd64, not for linux/arm64"),
        "{said}"
    );

    let images = vec![
        client
            .gather(&registry.reference(":v1"), &amd64())
            .await
            .unwrap(),
    ];
    drop(registry);
    let (_directory, path) = scratch();
    let target = Target::Archive(File::create(path).unwrap());
    let error = write(&client, images, &[], &[], target, &|_| {})
        .await
        .unwrap_err();
    assert!(
        chain(&error).contains("no registry gives"),
        "{}",
        chain(&error)
    );
}
