//! The findings of a search for signatures so far, and their summary for a refusal.

use std::fmt;

use instar_values::{Digest, PublicKey};

use super::proof::{Fault, Proof};
use super::signature::{NotASignature, Signature};
use instar_base::error_chain::chain;

/// The signatures of an image that do not verify it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Number of signatures by other keys.
    by_others: usize,
    /// A signature by the key, with the digest that it is for.
    for_another: Option<Digest>,
    /// A statement by the key that is no signature of an image, and why.
    other_statement: Option<String>,
    /// Documents that cannot be read: their number, and why the first one cannot.
    unreadable: Option<(usize, String)>,
}

/// An image and the document that its name points to.
pub(super) struct Subject<'a> {
    /// The digest of the image's manifest for this machine.
    pub(super) image: Digest,
    /// The index, if the name points to one.
    pub(super) index: Option<&'a [u8]>,
}

impl Subject<'_> {
    /// The digests that may have been signed: that of the index first, which people sign.
    pub(super) fn digests(&self) -> Vec<Digest> {
        let index = self.index.map(Digest::of);
        index.into_iter().chain([self.image]).collect()
    }
}

impl Findings {
    /// Judges a signature; returns the proof if it verifies the image.
    pub(super) fn judge(
        &mut self,
        signature: Signature,
        key: &PublicKey,
        subject: &Subject<'_>,
    ) -> Option<Proof> {
        let alone = Proof::new(key, signature, None);
        match alone.holds(key, subject.image) {
            Ok(()) => return Some(alone),
            Err(Fault::OtherImage) => {}
            Err(Fault::OtherKey | Fault::NotSigned) => {
                self.by_others += 1;
                return None;
            }
        }
        let signature = alone.into_signature();
        let of_index = subject.index.map(|index| {
            let proof = Proof::new(key, signature.clone(), Some(index.to_vec()));
            (proof.holds(key, subject.image), proof)
        });
        if let Some((Ok(()), proof)) = of_index {
            return Some(proof);
        }
        match signature.subjects() {
            Ok(digests) => self.for_another = self.for_another.or(digests.first().copied()),
            Err(error) => self.other_statement = Some(chain(&error)),
        }
        None
    }

    /// Notes a document that cannot be read.
    pub(super) fn unreadable(&mut self, error: &NotASignature) {
        let (count, _) = self.unreadable.get_or_insert_with(|| (0, chain(error)));
        *count += 1;
    }

    /// Whether anything was found.
    pub(super) fn is_empty(&self) -> bool {
        *self == Findings::default()
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if let Some(digest) = self.for_another {
            parts.push(format!(
                "a signature by this key, but for the digest {digest}"
            ));
        }
        if let Some(why) = &self.other_statement {
            parts.push(format!(
                "a statement by this key that is no signature of an image: {why}"
            ));
        }
        match self.by_others {
            0 => {}
            1 => parts.push("1 signature, not by this key".to_owned()),
            count => parts.push(format!("{count} signatures, none by this key")),
        }
        if let Some((count, why)) = &self.unreadable {
            let documents = if *count == 1 { "document" } else { "documents" };
            parts.push(format!("{count} unusable {documents} ({why})"));
        }
        if parts.is_empty() {
            return f.write_str("no signature");
        }
        f.write_str(&parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verification::test_signing::{Signer, payload, statement};

    #[test]
    fn the_summary_says_how_near_the_signatures_came() {
        let (signer, other, image) = (Signer::ecdsa(), Signer::ecdsa(), Digest::of(b"image"));
        let (key, old) = (signer.public_key(), Digest::of(b"old"));
        let subject = Subject { image, index: None };
        let mut findings = Findings::default();
        assert_eq!(findings.to_string(), "no signature");
        assert!(findings.is_empty());

        let by_other = other.simple(payload(image));
        assert_eq!(findings.judge(by_other.clone(), &key, &subject), None);
        assert_eq!(findings.to_string(), "1 signature, not by this key");
        assert_eq!(findings.judge(by_other, &key, &subject), None);
        assert_eq!(findings.to_string(), "2 signatures, none by this key");

        let mut findings = Findings::default();
        assert_eq!(
            findings.judge(signer.statement(statement(old)), &key, &subject),
            None
        );
        let expected = format!("a signature by this key, but for the digest {old}");
        assert_eq!(findings.to_string(), expected);

        let mut findings = Findings::default();
        let sbom = String::from_utf8(statement(image)).unwrap();
        let sbom = sbom.replace(
            "https://sigstore.dev/cosign/sign/v1",
            "https://spdx.dev/Document",
        );
        let sbom = signer.statement(sbom.into_bytes());
        assert_eq!(findings.judge(sbom, &key, &subject), None);
        let said = findings.to_string();
        assert!(
            said.starts_with("a statement by this key that is no signature"),
            "{said}"
        );

        let mut findings = Findings::default();
        findings.unreadable(&NotASignature::Bare);
        findings.unreadable(&NotASignature::NoEnvelope);
        let expected = "2 unusable documents (the payload has no signature beside it)";
        assert_eq!(findings.to_string(), expected);

        let proof = findings.judge(signer.simple(payload(image)), &key, &subject);
        assert_eq!(proof.unwrap().holds(&key, image), Ok(()));
    }
}
