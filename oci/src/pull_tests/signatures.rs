//! Images that need a signature, pulled from a real registry.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use instar_base::error_chain::chain;
use instar_values::{Digest, ImagePattern, ImageRule, RuleEffect};
use serde_json::{Value, json};

use super::pulling::{layer, puller, puller_with, store};
use super::registry::{Registry, mirrored};
use crate::verification::test_signing::{Signer, annotation, bundle_of, payload, statement};
use crate::verification::{Basis, Signature};
use crate::{ImageStore, Keeps, Limits, Policy, PulledImage, Puller, ResolvedImage};

const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
pub(super) const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

pub(super) async fn pushed() -> (Registry, ResolvedImage) {
    let registry = Registry::start();
    registry
        .push("v1", "amd64", &[layer("a", b"content")])
        .await;
    let (puller, name) = (puller(registry.settings()), registry.reference(":v1"));
    let resolved = puller.resolve(&name).await.unwrap();
    (registry, resolved)
}

pub(super) async fn sign(registry: &Registry, digest: Digest, signatures: &[Signature]) {
    let layers = signatures.iter().map(|signature| {
        let beside = [(
            "dev.cosignproject.cosign/signature".to_owned(),
            annotation(signature),
        )];
        (
            signature.payload().to_vec(),
            PAYLOAD,
            BTreeMap::from(beside),
        )
    });
    let tag = format!("sha256-{}.sig", digest.hex());
    registry.push_signatures(&tag, layers.collect()).await;
}

async fn refused(puller: &Puller, registry: &Registry) -> String {
    chain(
        &puller
            .look_up(&registry.reference(":v1"))
            .await
            .unwrap_err(),
    )
}

#[tokio::test]
async fn a_signature_of_the_older_form_is_found_and_kept() {
    let (registry, image) = pushed().await;
    let (signer, other) = (Signer::ecdsa(), Signer::ecdsa());
    let key = signer.public_key().fingerprint();
    let puller = puller_with(registry.settings(), signer.policy());
    let said = refused(&puller, &registry).await;
    let expected = format!(
        "{} ({}) is not allowed: rule 0000 (*) of ImageVerificationConfig wants a signature by the key {key}, and no signature was found; \
         sign the image, or change the rule",
        image.reference,
        image.digest()
    );
    assert_eq!(said, expected);

    let by_other = other.simple(payload(image.digest()));
    sign(&registry, image.digest(), std::slice::from_ref(&by_other)).await;
    let said = refused(&puller, &registry).await;
    assert!(
        said.contains("and 1 signature, not by this key was found"),
        "{said}"
    );

    sign(
        &registry,
        image.digest(),
        &[by_other, signer.simple(payload(image.digest()))],
    )
    .await;
    let verified = puller.look_up(&image.reference).await.unwrap();
    assert!(matches!(verified.basis(), Basis::Signed { key: by, .. } if *by == key));
    let (_directory, store) = store();
    let pulled = puller
        .pull(&verified, &store, &Limits::default())
        .await
        .unwrap();
    assert_eq!(pulled.signed_by(), [key]);

    // No registry is needed any more.
    drop(registry);
    let again = store.get(image.digest()).unwrap();
    let admitted = puller
        .admit(&image.reference, again.clone(), &store)
        .await
        .unwrap();
    assert_eq!(admitted.basis(), verified.basis());
    let error = puller_with(Default::default(), other.policy());
    let error = error
        .admit(&image.reference, again, &store)
        .await
        .unwrap_err();
    assert!(error.is_unreachable(), "{}", chain(&error));
}

#[tokio::test]
async fn a_signature_for_another_image_is_named_as_such() {
    let (registry, image) = pushed().await;
    let (signer, old) = (Signer::ecdsa(), Digest::of(b"old"));
    sign(&registry, image.digest(), &[signer.simple(payload(old))]).await;
    let puller = puller_with(registry.settings(), signer.policy());
    let said = refused(&puller, &registry).await;
    let expected = format!("and a signature by this key, but for the digest {old} was found");
    assert!(said.contains(&expected), "{said}");
}

/// A signer signs the index; the machine takes one image from it.
#[tokio::test]
async fn a_bundle_for_an_index_is_found_behind_its_tag() {
    let (registry, image) = pushed().await;
    let signer = Signer::ecdsa();
    let index = json!({
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": [{"mediaType": MANIFEST, "digest": image.digest(), "size": size_of(&registry, image.digest()),
                       "platform": {"os": "linux", "architecture": "amd64"}}],
    });
    let index = Digest::of(&registry.push_manifest("v1", &index).await);
    let bundle = bundle_of(&signer.statement(statement(index)));
    let tag = format!("sha256-{}", index.hex());
    registry
        .push_signatures(&tag, vec![(bundle, BUNDLE, BTreeMap::new())])
        .await;
    let puller = puller_with(registry.settings(), signer.policy());
    let verified = puller.look_up(&image.reference).await.unwrap();
    let (_directory, store) = store();
    let pulled = puller
        .pull(&verified, &store, &Limits::default())
        .await
        .unwrap();
    assert_eq!(
        (pulled.digest(), pulled.named_digest()),
        (image.digest(), index)
    );

    drop(registry);
    let again = store.get(image.digest()).unwrap();
    signer.policy().admit(&image.reference, again).unwrap();
}

#[tokio::test]
async fn a_bundle_in_a_list_of_referrers_behind_a_tag_is_found() {
    let (registry, image) = pushed().await;
    let signer = Signer::ed25519();
    let bundle = bundle_of(&signer.statement(statement(image.digest())));
    registry
        .push_signatures("bundle", vec![(bundle, BUNDLE, BTreeMap::new())])
        .await;
    let manifest = {
        // The reference of a manifest of signatures is not one of an image.
        let body = get(&registry, "manifests/bundle", MANIFEST);
        (Digest::of(&body), body.len())
    };
    let referrers = json!({
        "schemaVersion": 2, "mediaType": INDEX,
        "manifests": others(&registry, &image).chain([
            json!({"mediaType": MANIFEST, "artifactType": BUNDLE, "digest": manifest.0, "size": manifest.1}),
        ]).collect::<Vec<_>>(),
    });
    let tag = format!("sha256-{}", image.digest().hex());
    registry.push_manifest(&tag, &referrers).await;
    let puller = puller_with(registry.settings(), signer.policy());
    puller.look_up(&image.reference).await.unwrap();
}

/// As many referrers as are looked at of one list, and none of them a signature.
fn others(registry: &Registry, image: &ResolvedImage) -> impl Iterator<Item = Value> {
    let (digest, size) = (image.digest(), size_of(registry, image.digest()));
    let other = json!({"mediaType": MANIFEST, "artifactType": "application/spdx+json", "digest": digest, "size": size});
    std::iter::repeat_n(other, 100)
}

/// Documents by their paths with the queries, each behind further headers.
pub(super) type Documents = BTreeMap<String, (String, Vec<u8>)>;

/// Serves these documents. The name of the registry that is mirrored is left out of a query.
pub(super) fn serve(documents: Documents) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut lines = BufReader::new(client.try_clone().unwrap()).lines();
            let request = lines.next().unwrap().unwrap();
            lines.find(|line| line.as_ref().unwrap().is_empty());
            let target = request.split(' ').nth(1).unwrap();
            let target = target.split("ns=").next().unwrap();
            let found = documents.get(target.trim_end_matches(['?', '&']));
            let (status, headers, body) = match found {
                Some((headers, body)) => ("200 OK", headers.as_str(), body.as_slice()),
                None => ("404 Not Found", "", &b""[..]),
            };
            let length = body.len();
            let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}");
            write!(client, "{head}\r\nConnection: close\r\n\r\n").unwrap();
            client.write_all(body).unwrap();
        }
    });
    url
}

/// The documents of registries that tell of one signature of an image in lists of referrers, each in its way, and the digest of its manifest.
pub(super) fn lists_of_referrers(
    registry: &Registry,
    image: &ResolvedImage,
    signer: &Signer,
) -> (Digest, Vec<Documents>) {
    let bundle = bundle_of(&signer.statement(statement(image.digest())));
    let config = b"{}";
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::of(config), "size": config.len()},
        "layers": [{"mediaType": BUNDLE, "digest": Digest::of(&bundle), "size": bundle.len()}],
    });
    let manifest = manifest.to_string().into_bytes();
    let (digest, size) = (Digest::of(&manifest), manifest.len());
    let signed =
        json!({"mediaType": MANIFEST, "artifactType": BUNDLE, "digest": digest, "size": size});
    let untyped = json!({"mediaType": MANIFEST, "digest": digest, "size": size});
    let others: Vec<Value> = others(registry, image).collect();
    let place = format!("/v2/app/referrers/{}", image.digest());
    let alone = "?artifactType=application%2Fvnd.dev.sigstore.bundle.v0.3%2Bjson";
    // By query: the entries, and the query of the next page.
    let lists = [
        // A registry that knows the types of artifacts.
        vec![(alone, vec![signed.clone()], None)],
        // One that does not.
        vec![
            (alone, others.clone(), Some("last=1")),
            ("?last=1", others.clone(), Some("last=2")),
            ("?last=2", vec![signed], None),
        ],
        // A bundle without a type, or of another version.
        vec![
            (alone, vec![], None),
            ("", [others, vec![untyped]].concat(), None),
        ],
    ];
    let documents = lists.map(|list| {
        let pages = list.into_iter().map(|(query, entries, next)| {
            let list = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
            let link = next.map(|next| format!("Link: <{place}?{next}>; rel=\"next\"\r\n"));
            let page = (link.unwrap_or_default(), list.to_string().into_bytes());
            (format!("{place}{query}"), page)
        });
        let document = |kind: &str, bytes: &[u8]| {
            let path = format!("/v2/app/{kind}/{}", Digest::of(bytes));
            (path, (String::new(), bytes.to_vec()))
        };
        let documents = [
            document("manifests", &manifest),
            document("blobs", &bundle),
            document("blobs", config),
        ];
        pages.chain(documents).collect()
    });
    (digest, documents.into())
}

#[tokio::test]
async fn a_list_of_referrers_is_asked_for_bundles_and_read_to_its_end() {
    let (registry, image) = pushed().await;
    let signer = Signer::ecdsa();
    let (_, lists) = lists_of_referrers(&registry, &image, &signer);
    for (number, documents) in lists.into_iter().enumerate() {
        let url = serve(documents);
        let puller = puller_with(mirrored(&registry.host(), &[&url]), signer.policy());
        let verified = puller.verify(image.clone()).await;
        verified.unwrap_or_else(|error| panic!("list {number}: {}", chain(&error)));
    }
}

#[tokio::test]
async fn a_flipped_byte_of_the_blob_at_the_registry_refuses() {
    let (registry, image) = pushed().await;
    let signer = Signer::ecdsa();
    let signature = signer.simple(payload(image.digest()));
    sign(&registry, image.digest(), std::slice::from_ref(&signature)).await;
    let puller = puller_with(registry.settings(), signer.policy());
    let file = registry.blob(signature.payload());
    let good = fs::read(&file).unwrap();
    for at in [0, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&file, &bad).unwrap();
        let error = puller.look_up(&image.reference).await.unwrap_err();
        assert!(!error.is_unreachable(), "{}", chain(&error));
    }
    fs::write(&file, &good).unwrap();
    puller.look_up(&image.reference).await.unwrap();
}

#[tokio::test]
async fn a_flipped_byte_of_the_kept_proof_refuses_until_the_registry_has_another() {
    let (registry, image) = pushed().await;
    let signer = Signer::ecdsa();
    sign(
        &registry,
        image.digest(),
        &[signer.simple(payload(image.digest()))],
    )
    .await;
    let puller = puller_with(registry.settings(), signer.policy());
    let (directory, store) = store();
    let verified = puller.look_up(&image.reference).await.unwrap();
    puller
        .pull(&verified, &store, &Limits::default())
        .await
        .unwrap();
    let kept = directory
        .path()
        .join("images")
        .join(image.digest().hex())
        .join("proofs.json");
    let good = fs::read(&kept).unwrap();
    let admits = |image: PulledImage| signer.policy().admit(&verified.reference, image).is_ok();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&kept, &bad).unwrap();
        assert!(!admits(store.get(image.digest()).unwrap()), "byte {at}");
    }
    let here = store.get(image.digest()).unwrap();
    puller
        .admit(&image.reference, here.clone(), &store)
        .await
        .unwrap();
    assert!(admits(here));
}

#[tokio::test]
async fn a_policy_changes_while_the_image_is_here() {
    let (registry, image) = pushed().await;
    let (one, two) = (Signer::ecdsa(), Signer::p384());
    let (_directory, store) = store();
    let free = puller(registry.settings());
    let verified = free.look_up(&image.reference).await.unwrap();
    assert_eq!(*verified.basis(), Basis::NoRule);
    let pulled = free
        .pull(&verified, &store, &Limits::default())
        .await
        .unwrap();
    assert!(pulled.signed_by().is_empty());
    let pulled = pulled.into_inner();

    let both = [
        one.simple(payload(image.digest())),
        two.simple(payload(image.digest())),
    ];
    sign(&registry, image.digest(), &both).await;
    for signer in [&one, &two] {
        let strict = puller_with(registry.settings(), signer.policy());
        strict
            .admit(&image.reference, pulled.clone(), &store)
            .await
            .unwrap();
    }
    drop(registry);
    for signer in [&one, &two] {
        signer
            .policy()
            .admit(&image.reference, pulled.clone())
            .unwrap();
    }
    let deny = Policy::new(vec![ImageRule {
        pattern: ImagePattern::new("*"),
        effect: RuleEffect::Deny,
    }]);
    let said = chain(&deny.admit(&image.reference, pulled).unwrap_err());
    assert!(
        said.ends_with("rule 0000 (*) of ImageVerificationConfig denies it"),
        "{said}"
    );
}

#[tokio::test]
async fn a_registry_that_is_away_is_not_an_absent_signature() {
    let (registry, image) = pushed().await;
    let signer = Signer::ecdsa();
    let settings = registry.settings();
    drop(registry);
    let puller = puller_with(settings, signer.policy());
    let error = puller.verify(image).await.unwrap_err();
    assert!(error.is_unreachable(), "{}", chain(&error));
}

#[tokio::test]
async fn a_denied_image_is_not_asked_for() {
    let deny = Policy::new(vec![ImageRule {
        pattern: ImagePattern::new("r.invalid/*"),
        effect: RuleEffect::Deny,
    }]);
    let puller = puller_with(Default::default(), deny);
    let error = puller
        .resolve(&"r.invalid/a".parse().unwrap())
        .await
        .unwrap_err();
    let expected = "r.invalid/a:latest is not allowed: rule 0000 (r.invalid/*) of ImageVerificationConfig denies it";
    assert_eq!(chain(&error), expected);
}

pub(super) fn size_of(registry: &Registry, manifest: Digest) -> usize {
    get(registry, &format!("manifests/{manifest}"), MANIFEST).len()
}

fn get(registry: &Registry, place: &str, accept: &str) -> Vec<u8> {
    use std::io::Read as _;
    let mut stream = std::net::TcpStream::connect(registry.host()).unwrap();
    let head = format!(
        "GET /v2/app/{place} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.as_bytes().to_vec()
}

#[tokio::test]
async fn a_damaged_image_that_needs_a_signature_is_made_again_as_trusted_as_before() {
    let (registry, image) = pushed().await;
    let signer = Signer::ecdsa();
    let signature = signer.simple(payload(image.digest()));
    sign(&registry, image.digest(), std::slice::from_ref(&signature)).await;
    let puller = puller_with(registry.settings(), signer.policy());
    let (directory, store) = store();
    let verified = puller.look_up(&image.reference).await.unwrap();
    let pulled = puller.pull(&verified, &store, &Limits::default()).await;
    let place = pulled.unwrap().rootfs().parent().unwrap().to_owned();
    drop(registry);
    let next_boot = || ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
    for file in ["rootfs/a", "image.json"] {
        fs::write(place.join(file), "damaged").unwrap();
        let store = next_boot();
        if file == "image.json" {
            // The sweep may come first.
            store.sweep().unwrap();
            assert!(!place.exists());
        }
        let whole = puller.whole(&image.reference, image.digest(), &store).await;
        let whole = whole.unwrap().unwrap();
        signer.policy().admit(&image.reference, whole).unwrap();
    }
    // Without the proofs nobody says that the blobs are signed.
    fs::remove_dir_all(&place).unwrap();
    let store = next_boot();
    let whole = puller.whole(&image.reference, image.digest(), &store).await;
    assert_eq!(whole.unwrap(), None);
}
