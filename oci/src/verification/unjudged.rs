//! Signatures that came with an image and that no rule has asked for: a rule of tomorrow may, where no registry is.

use instar_values::Digest;
use serde::{Deserialize, Serialize};

use super::findings::Subject;
use super::proof::Index;
use super::signature::Signature;

/// Limit on the signatures that an image keeps: anyone can add some to a bundle.
const MOST: usize = 8;
/// Size limit of what is signed, in bytes. Payloads that name one image have some hundred.
const LARGEST: usize = 64 << 10;

/// Signatures that are kept with an image. They hold nothing until they are judged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Unjudged {
    /// Oldest first.
    signatures: Vec<Signature>,
    /// The index with the image, if its name pointed to one: it may be what was signed.
    index: Option<Index>,
}

impl Unjudged {
    /// Those of these signatures that say that they are about the image or its index.
    pub(super) fn about(
        subject: &Subject<'_>,
        signatures: impl IntoIterator<Item = Signature>,
    ) -> Self {
        let digests = subject.digests();
        let is_about = |signature: &Signature| {
            signature.payload.len() <= LARGEST
                && signature
                    .subjects()
                    .is_ok_and(|named| named.iter().any(|it| digests.contains(it)))
        };
        let ours = signatures.into_iter().filter(is_about);
        let signatures: Vec<_> = ours.take(MOST).collect();
        let index = subject.index.filter(|_| !signatures.is_empty());
        Unjudged {
            signatures,
            index: index.map(|index| Index(index.to_vec())),
        }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.signatures.is_empty()
    }

    /// All of them, newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Signature> {
        self.signatures.iter().rev()
    }

    /// What they have to be about: the image of this digest, or the index that is kept.
    pub(super) fn subject(&self, image: Digest) -> Subject<'_> {
        let index = self.index.as_ref();
        // Another image's index proves nothing about this one.
        let index = index.filter(|index| index.names(image));
        Subject {
            image,
            index: index.map(|index| index.0.as_slice()),
        }
    }

    /// Adds newer ones; returns whether anything has changed.
    pub(crate) fn add(&mut self, newer: &Self) -> bool {
        let is_known = |it: &Signature| self.signatures.contains(it);
        if newer.signatures.iter().all(is_known) {
            return false;
        }
        let older = std::mem::take(&mut self.signatures).into_iter();
        self.signatures = older.filter(|it| !newer.signatures.contains(it)).collect();
        self.signatures.extend_from_slice(&newer.signatures);
        let surplus = self.signatures.len().saturating_sub(MOST);
        self.signatures.drain(..surplus);
        self.index = newer.index.clone().or(self.index.take());
        true
    }
}

/// Reads kept signatures.
pub(crate) fn read(bytes: &[u8]) -> Option<Unjudged> {
    serde_json::from_slice(bytes).ok()
}

/// Writes signatures for keeping.
pub(crate) fn write(signatures: &Unjudged) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(signatures)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verification::test_signing::{Signer, payload};

    #[test]
    fn only_signatures_about_the_image_are_kept_and_not_more_than_the_limit() {
        let image = Digest::of(b"image");
        let subject = Subject { image, index: None };
        let signed = |digest| Signer::ecdsa().simple(payload(digest));
        let large = Signer::ecdsa().simple(vec![b' '; LARGEST + 1]);
        let noise = [signed(Digest::of(b"other")), large];
        assert!(Unjudged::about(&subject, noise.clone()).is_empty());
        let many: Vec<_> = (0..=MOST).map(|_| signed(image)).collect();
        let all = noise.into_iter().chain(many.clone());
        let kept = Unjudged::about(&subject, all);
        assert_eq!(kept.iter().count(), MOST);
        assert_eq!(read(&write(&kept).unwrap()), Some(kept.clone()));

        let mut more = kept.clone();
        assert!(!more.add(&kept));
        let last = Unjudged::about(&subject, [many[MOST].clone()]);
        assert!(more.add(&last));
        let newest: Vec<_> = more.iter().cloned().collect();
        let expected: Vec<_> = many.into_iter().skip(1).rev().collect();
        assert_eq!(newest, expected);
    }
}
