//! The signatures that are kept with an image, as a registry would have them: for a registry that serves images of the store.
//!
//! ```text
//! sha256-X.sig   a manifest with all signatures of cosign's older form as layers
//! sha256-X       an index of manifests, each with a bundle
//! ```
//!
//! X is the digest that was signed, of the image or of an index with it.

use std::collections::{BTreeMap, BTreeSet};

use instar_values::Digest;
use serde_json::json;

use super::proof::{MANIFEST, Proofs, documents, named};
use super::signature::{Form, Signature};
use super::{bundle, places};
use crate::store::PulledImage;

const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// The signatures that are kept with an image.
#[derive(Debug, Default)]
pub struct KeptSignatures {
    /// The tags that lead to them.
    pub tags: BTreeMap<String, Digest>,
    /// The index of the image that was signed, if it is not the image itself.
    pub signed_index: Option<Digest>,
    /// Manifests and indexes.
    pub manifests: BTreeSet<Digest>,
    /// Manifests, indexes, configs, and the signatures themselves.
    pub documents: BTreeMap<Digest, Vec<u8>>,
}

impl KeptSignatures {
    /// Those of this image. Waits for the disk.
    pub fn of(image: &PulledImage) -> Self {
        Self::of_proofs(&image.proofs(), image.digest())
    }

    fn of_proofs(proofs: &Proofs, image: Digest) -> Self {
        let mut kept = KeptSignatures::default();
        let mut by_subject = BTreeMap::<Digest, Vec<&Signature>>::new();
        for proof in proofs.iter() {
            let (subject, index) = proof.subject(image);
            if let Some(index) = index {
                kept.signed_index = Some(kept.manifest(index.to_vec()));
            }
            by_subject
                .entry(subject)
                .or_default()
                .push(proof.signature());
        }
        for (subject, signatures) in by_subject {
            kept.add(subject, &signatures);
        }
        kept
    }

    fn add(&mut self, subject: Digest, signatures: &[&Signature]) {
        let of = |form| {
            let all = signatures.iter().copied();
            all.filter(move |signature| signature.form == form)
        };
        if of(Form::SimpleSigning).next().is_some() {
            let (manifest, _) = self.with_documents(documents(of(Form::SimpleSigning)));
            self.tags.insert(places::tag_of_payloads(subject), manifest);
        }
        let mut entries = Vec::new();
        for signature in of(Form::Statement) {
            let (_, mut entry) = self.with_documents(documents([signature]));
            entry["artifactType"] = json!(bundle::WRITTEN_TYPE);
            entries.push(entry);
        }
        if !entries.is_empty() {
            let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
            let index = self.manifest(index.to_string().into_bytes());
            self.tags.insert(places::tag_of_bundles(subject), index);
        }
    }

    /// Adds a manifest, which comes last, with all that it names; describes it.
    fn with_documents(&mut self, mut all: Vec<Vec<u8>>) -> (Digest, serde_json::Value) {
        let manifest = all.pop().unwrap_or_default();
        for document in all {
            self.documents.insert(Digest::of(&document), document);
        }
        let entry = named(&manifest, MANIFEST);
        (self.manifest(manifest), entry)
    }

    fn manifest(&mut self, bytes: Vec<u8>) -> Digest {
        let digest = Digest::of(&bytes);
        self.manifests.insert(digest);
        self.documents.insert(digest, bytes);
        digest
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::Value;

    use super::*;
    use crate::verification::proof::Proof;
    use crate::verification::test_signing::{Signer, payload, statement};

    fn document(kept: &KeptSignatures, digest: &Value) -> Value {
        let digest = digest.as_str().unwrap().parse().unwrap();
        serde_json::from_slice(&kept.documents[&digest]).unwrap()
    }

    #[test]
    fn signatures_of_both_forms_and_all_keys_are_behind_their_tags() {
        let image = Digest::of(b"image");
        let signers = [
            Signer::ecdsa(),
            Signer::p384(),
            Signer::ed25519(),
            Signer::ecdsa(),
        ];
        let mut proofs = Proofs::default();
        for (at, signer) in signers.iter().enumerate() {
            let signature = match at < 2 {
                true => signer.simple(payload(image)),
                false => signer.statement(statement(image)),
            };
            proofs.add(&Proof::new(&signer.public_key(), signature, None));
        }
        let kept = KeptSignatures::of_proofs(&proofs, image);
        assert_eq!((kept.tags.len(), kept.signed_index), (2, None));
        let tag = |name: &str| Value::from(kept.tags[name].to_string());
        let payloads = document(&kept, &tag(&format!("sha256-{}.sig", image.hex())));
        assert_eq!(payloads["layers"].as_array().unwrap().len(), 2);
        let bundles = document(&kept, &tag(&format!("sha256-{}", image.hex())));
        let entries = bundles["manifests"].as_array().unwrap();
        assert_eq!(entries.len(), 2);
        for entry in entries {
            assert_eq!(entry["artifactType"], bundle::WRITTEN_TYPE);
            let manifest = document(&kept, &entry["digest"]);
            document(&kept, &manifest["layers"][0]["digest"]);
            document(&kept, &manifest["config"]["digest"]);
        }
        // A manifest of payloads, two of bundles, and the list of these.
        assert_eq!(kept.manifests.len(), 4);
    }
}
