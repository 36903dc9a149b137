//! Signatures that came with an image and that no rule has asked for: a rule of tomorrow may, where no registry is. They are kept with the
//! image, or with the version that its installer has written.

use instar_values::Digest;
use serde::{Deserialize, Serialize};

use super::findings::Subject;
use super::proof::{Index, Proof};
use super::signature::Signature;

/// Limit on the signatures that an image keeps: anyone can add some to a bundle.
const MOST: usize = 8;
/// Size limit of what is signed, in bytes. Payloads that name one image have some hundred.
const LARGEST: usize = 64 << 10;
/// Size limit of a signature itself, in bytes: one by a key of RSA with 8192 bits has a KiB.
const LARGEST_SIGNATURE: usize = 4 << 10;

/// Signatures that are kept with an image. They hold nothing until they are judged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Unjudged {
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
                && signature.signature.len() <= LARGEST_SIGNATURE
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

    /// The signature that an image was verified by, as one that is judged again.
    pub(crate) fn of_proof(proof: &Proof) -> Self {
        Unjudged {
            signatures: vec![proof.signature().clone()],
            index: proof.index().cloned(),
        }
    }

    /// The oldest of them that have at most so many bytes together, with the index, as JSON.
    #[must_use]
    pub fn within(mut self, bytes: usize) -> Self {
        while !self.is_empty() && write(&self).map_or(usize::MAX, |json| json.len()) > bytes {
            self.signatures.pop();
        }
        match self.is_empty() {
            true => Unjudged::default(),
            false => self,
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.signatures.is_empty()
    }

    /// All of them, newest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Signature> {
        self.signatures.iter().rev()
    }

    /// The subject that they have to be about: the image of this digest, or the index that is kept.
    pub(super) fn subject(&self, image: Digest) -> Subject<'_> {
        let index = self.index.as_ref();
        // Another image's index proves nothing about this one.
        let index = index.filter(|index| index.names(image));
        Subject {
            image,
            index: index.map(|index| index.0.as_slice()),
        }
    }

    /// Adds newer ones where there is room; returns whether anything has changed. The older ones and their index stay: else whoever brings the
    /// image again could take its signatures away from it.
    pub fn add(&mut self, newer: &Self) -> bool {
        let before = self.signatures.len();
        let index = self.index.as_ref().or(newer.index.as_ref()).cloned();
        // An index that is not kept proves nothing, and neither does a signature of it.
        let other_index = newer.index.as_ref().filter(|it| index.as_ref() != Some(it));
        let other_index = other_index.map(|index| Digest::of(&index.0));
        let is_of_use = |it: &Signature| {
            let named = it.subjects().unwrap_or_default();
            named.iter().any(|digest| Some(*digest) != other_index)
        };
        for signature in newer.signatures.iter().filter(|it| is_of_use(it)) {
            if self.signatures.len() < MOST && !self.signatures.contains(signature) {
                self.signatures.push(signature.clone());
            }
        }
        let has_changed = self.signatures.len() > before;
        if has_changed {
            self.index = index;
        }
        has_changed
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
    }

    #[test]
    fn a_record_keeps_no_more_than_its_room() {
        let image = Digest::of(b"image");
        let subject = |index| Subject { image, index };
        let signers: Vec<_> = (0..3).map(|_| Signer::ecdsa()).collect();
        let signed = signers.iter().map(|it| it.simple(payload(image)));
        let all = Unjudged::about(&subject(Some(b"index")), signed.collect::<Vec<_>>());
        let whole = write(&all).unwrap().len();
        assert_eq!(all.clone().within(whole), all);
        let fewer = all.clone().within(whole - 1);
        let (first, kept): (Vec<_>, Vec<_>) =
            (all.iter().skip(1).collect(), fewer.iter().collect());
        assert_eq!(first, kept, "the oldest stay");
        assert_eq!(all.within(1), Unjudged::default());
    }

    #[test]
    fn whoever_brings_an_image_again_takes_no_signature_from_it() {
        let (image, signer) = (Digest::of(b"image"), Signer::ecdsa());
        let signed = |digest| signer.simple(payload(digest));
        let about = |index: Option<&[u8]>, signatures: &[Signature]| {
            Unjudged::about(&Subject { image, index }, signatures.to_vec())
        };
        let many: Vec<_> = (0..MOST).map(|_| Signer::ecdsa()).collect();
        let many: Vec<_> = many.iter().map(|it| it.simple(payload(image))).collect();
        let full = about(None, &many);
        let mut kept = full.clone();
        assert!(!kept.add(&full));
        assert!(!kept.add(&about(None, &[signed(image)])));
        assert_eq!(kept, full);
        let mut room = about(None, &many[..1]);
        assert!(room.add(&about(None, &many[1..])));
        assert_eq!(room, full);

        // The index stays, and signatures of another one are of no use without theirs.
        let of_index = about(Some(b"index"), &[signed(Digest::of(b"index"))]);
        let of_other = about(Some(b"other"), &[signed(Digest::of(b"other"))]);
        let mut kept = of_index.clone();
        assert!(!kept.add(&of_other));
        assert_eq!(kept, of_index);
        assert!(kept.add(&about(Some(b"other"), &many[..1])));
        assert_eq!((kept.iter().count(), &kept.index), (2, &of_index.index));
        let mut kept = Unjudged::default();
        assert!(kept.add(&of_other));
        assert_eq!(kept, of_other);
    }
}
