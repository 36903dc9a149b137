//! The proof that an image was signed, as the store keeps it: enough to verify the image again without a registry.
//!
//! Every byte of a kept proof counts: it is signed, or it has to equal something that is.

use instar_values::{Digest, PublicKey};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::signature::{Signature, base64_text};
use crate::manifest::{self, Manifest};

/// Limit on the proofs that an image keeps: one for each of the keys that policies have named.
const MOST_PROOFS: usize = 4;

/// The type of manifests.
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A signature that was verified, and the way from the digest that it names to the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Proof {
    /// The key's fingerprint.
    key: Digest,
    signature: Signature,
    /// The index with the image, if the index is what was signed.
    index: Option<Index>,
}

/// An index as the registry serves it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Index(#[serde(with = "base64_text")] pub(super) Vec<u8>);

/// The kept proofs of an image, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Proofs {
    proofs: Vec<Proof>,
}

/// Why a proof does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is by another key.
    OtherKey,
    /// It is not signed by the key that it names.
    NotSigned,
    /// It is about another image.
    OtherImage,
}

impl Proof {
    /// A proof from a signature that was found; it holds nothing until [`holds`](Self::holds) says so.
    pub(super) fn new(key: &PublicKey, signature: Signature, index: Option<Vec<u8>>) -> Self {
        Proof {
            key: key.fingerprint(),
            signature,
            index: index.map(Index),
        }
    }

    /// The fingerprint of its key.
    pub fn key(&self) -> Digest {
        self.key
    }

    /// The documents of a manifest with this signature, as a registry would have them: the manifest comes last. They are made anew, since only
    /// what is signed was kept.
    pub(crate) fn as_documents(&self) -> Vec<Vec<u8>> {
        documents([&self.signature])
    }

    /// The digest that was signed, if it is this image's or that of an index with it; and the index.
    pub(crate) fn subject(&self, image: Digest) -> (Digest, Option<&[u8]>) {
        match &self.index {
            None => (image, None),
            Some(index) => (Digest::of(&index.0), Some(&index.0)),
        }
    }

    /// The index with the image, if the index is what was signed.
    pub(super) fn index(&self) -> Option<&Index> {
        self.index.as_ref()
    }

    /// Its signature.
    pub(super) fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Its signature.
    pub(super) fn into_signature(self) -> Signature {
        self.signature
    }

    /// Whether it shows that the owner of this key has signed the image of this digest.
    pub(super) fn holds(&self, key: &PublicKey, image: Digest) -> Result<(), Fault> {
        if self.key != key.fingerprint() {
            return Err(Fault::OtherKey);
        }
        if !self.signature.is_by(key) {
            return Err(Fault::NotSigned);
        }
        let subjects = self.signature.subjects().unwrap_or_default();
        let signed = match &self.index {
            None => image,
            Some(index) if index.names(image) => Digest::of(&index.0),
            Some(_) => return Err(Fault::OtherImage),
        };
        match subjects.contains(&signed) {
            true => Ok(()),
            false => Err(Fault::OtherImage),
        }
    }
}

/// The documents of a manifest with these signatures; it comes last.
pub(super) fn documents<'a>(signatures: impl IntoIterator<Item = &'a Signature>) -> Vec<Vec<u8>> {
    const CONFIG: &[u8] = b"{}";
    let (mut documents, mut layers) = (vec![CONFIG.to_vec()], Vec::new());
    for signature in signatures {
        let layer = signature.as_layer();
        let mut described = named(&layer.content, layer.media_type);
        if let Some((name, value)) = layer.annotation {
            described["annotations"] = json!({ name: value });
        }
        layers.push(described);
        documents.push(layer.content);
    }
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": named(CONFIG, "application/vnd.oci.empty.v1+json"),
        "layers": layers,
    });
    documents.push(manifest.to_string().into_bytes());
    documents
}

/// Describes a document, for a manifest or an index that names it.
pub(super) fn named(bytes: &[u8], media_type: &str) -> serde_json::Value {
    json!({"mediaType": media_type, "digest": Digest::of(bytes), "size": bytes.len()})
}

impl Index {
    /// Whether this machine takes this image from the index.
    pub(super) fn names(&self, image: Digest) -> bool {
        let Ok(Manifest::Index(entries)) = Manifest::parse(&self.0, None) else {
            return false;
        };
        manifest::select(entries).is_ok_and(|ours| ours.digest == image)
    }
}

impl Proofs {
    /// All of them, newest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Proof> {
        self.proofs.iter().rev()
    }

    /// Adds a proof in the place of an older one by the same key; returns whether anything has changed.
    pub(crate) fn add(&mut self, proof: &Proof) -> bool {
        if self.proofs.contains(proof) {
            return false;
        }
        self.proofs.retain(|older| older.key != proof.key);
        self.proofs.push(proof.clone());
        let surplus = self.proofs.len().saturating_sub(MOST_PROOFS);
        self.proofs.drain(..surplus);
        true
    }
}

/// Reads kept proofs. Only the very bytes that are written are read again.
pub(crate) fn read(bytes: &[u8]) -> Option<Proofs> {
    let proofs: Proofs = serde_json::from_slice(bytes).ok()?;
    (write(&proofs).ok()? == bytes).then_some(proofs)
}

/// Writes proofs for keeping.
pub(crate) fn write(proofs: &Proofs) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(proofs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verification::test_signing::{Signer, payload, statement};

    fn index_with(image: Digest) -> Vec<u8> {
        let document = json!({
            "schemaVersion": 2,
            "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": image, "size": 1,
                           "platform": {"os": "linux", "architecture": "amd64"}}],
        });
        document.to_string().into_bytes()
    }

    #[test]
    fn a_signature_proves_its_own_image_alone() {
        let (signer, image) = (Signer::ecdsa(), Digest::of(b"image"));
        let key = signer.public_key();
        let proof = Proof::new(&key, signer.simple(payload(image)), None);
        assert_eq!(proof.holds(&key, image), Ok(()));
        assert_eq!(
            proof.holds(&key, Digest::of(b"other")),
            Err(Fault::OtherImage)
        );
        let other = Signer::ecdsa().public_key();
        assert_eq!(proof.holds(&other, image), Err(Fault::OtherKey));
        let renamed = Proof::new(&other, signer.simple(payload(image)), None);
        assert_eq!(renamed.holds(&other, image), Err(Fault::NotSigned));
    }

    #[test]
    fn a_signed_index_proves_the_image_that_this_machine_takes_from_it() {
        let (signer, image) = (Signer::ed25519(), Digest::of(b"image"));
        let key = signer.public_key();
        let index = index_with(image);
        let signature = signer.statement(statement(Digest::of(&index)));
        let proof = Proof::new(&key, signature.clone(), Some(index.clone()));
        assert_eq!(proof.holds(&key, image), Ok(()));
        assert_eq!(
            proof.holds(&key, Digest::of(&index)),
            Err(Fault::OtherImage)
        );
        let bare = Proof::new(&key, signature.clone(), None);
        assert_eq!(bare.holds(&key, image), Err(Fault::OtherImage));
        let other = index_with(Digest::of(b"other"));
        for index in [other, b"{}".to_vec(), Vec::new()] {
            let proof = Proof::new(&key, signature.clone(), Some(index));
            assert_eq!(proof.holds(&key, image), Err(Fault::OtherImage));
        }
    }

    #[test]
    fn a_flipped_bit_in_a_kept_proof_refuses() {
        let (signer, image) = (Signer::ecdsa(), Digest::of(b"image"));
        let key = signer.public_key();
        let index = index_with(image);
        let of_index = signer.statement(statement(Digest::of(&index)));
        for proof in [
            Proof::new(&key, signer.simple(payload(image)), None),
            Proof::new(&key, of_index, Some(index)),
        ] {
            let mut proofs = Proofs::default();
            proofs.add(&proof);
            let good = write(&proofs).unwrap();
            let admits = |bytes: &[u8]| {
                let proofs = read(bytes).unwrap_or_default();
                proofs.iter().any(|proof| proof.holds(&key, image).is_ok())
            };
            assert!(admits(&good));
            for at in 0..good.len() {
                for bit in 0..8 {
                    let mut bad = good.clone();
                    bad[at] ^= 1 << bit;
                    assert!(!admits(&bad), "byte {at}, bit {bit}");
                }
                assert!(!admits(&good[..at]));
            }
        }
    }

    #[test]
    fn one_proof_by_each_key_is_kept_and_not_more_than_the_limit() {
        let image = Digest::of(b"image");
        let mut proofs = Proofs::default();
        let signers: Vec<_> = (0..=MOST_PROOFS).map(|_| Signer::ecdsa()).collect();
        for signer in &signers {
            let key = signer.public_key();
            let proof = Proof::new(&key, signer.simple(payload(image)), None);
            assert!(proofs.add(&proof));
            assert!(!proofs.add(&proof));
            assert!(proofs.add(&Proof::new(&key, signer.simple(payload(image)), None)));
        }
        let keys: Vec<_> = proofs.iter().map(Proof::key).collect();
        let newest = signers.iter().skip(1).rev();
        let newest: Vec<_> = newest
            .map(|signer| signer.public_key().fingerprint())
            .collect();
        assert_eq!(keys, newest);
    }
}
