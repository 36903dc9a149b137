//! The files of a channel that somebody carries to machines: in a folder, in a bundle, or in a call.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_values::Digest;
use serde::{Deserialize, Serialize};

use crate::{LARGEST, MOST_RELEASES};

/// Limit on a signature, in bytes.
pub const LARGEST_SIGNATURE: usize = 16 << 10;

/// A list with its signature, and signatures that approve releases of it. Nothing of it is believed yet: see [`open`](crate::open).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ChannelFiles {
    list: String,
    /// In base64.
    signature: String,
    /// By the digest of the release's image, in base64.
    approvals: BTreeMap<Digest, String>,
}

/// Why files are not those of a channel.
#[derive(Debug, thiserror::Error)]
pub enum NotChannelFiles {
    /// The list is too large or no text.
    #[error("the list is no text of at most {LARGEST} bytes")]
    List,
    /// A signature is too large.
    #[error("a signature has {0} bytes; at most {LARGEST_SIGNATURE} are read")]
    Signature(usize),
    /// There are more approvals than releases.
    #[error("there are {0} approvals; a list has at most {MOST_RELEASES} releases")]
    Approvals(usize),
}

impl ChannelFiles {
    /// Files with these contents. Signatures may be in base64 or as they are; approvals come with the digest of the release's image.
    ///
    /// # Errors
    /// A limit, or a list that is no text.
    pub fn new(
        list: Vec<u8>,
        signature: &[u8],
        approvals: impl IntoIterator<Item = (Digest, Vec<u8>)>,
    ) -> Result<Self, NotChannelFiles> {
        if list.len() > LARGEST {
            return Err(NotChannelFiles::List);
        }
        let of_release = |(release, bytes): (Digest, Vec<u8>)| Ok((release, as_text(&bytes)?));
        let approvals = approvals.into_iter().map(of_release);
        let approvals: BTreeMap<Digest, String> = approvals.collect::<Result<_, _>>()?;
        if approvals.len() > MOST_RELEASES {
            return Err(NotChannelFiles::Approvals(approvals.len()));
        }
        Ok(ChannelFiles {
            list: String::from_utf8(list).map_err(|_| NotChannelFiles::List)?,
            signature: as_text(signature)?,
            approvals,
        })
    }

    /// The bytes of the list.
    #[must_use]
    pub fn list(&self) -> &[u8] {
        self.list.as_bytes()
    }

    /// The signature of the list.
    #[must_use]
    pub fn signature(&self) -> &[u8] {
        self.signature.as_bytes()
    }

    /// The signature that approves a release.
    #[must_use]
    pub fn approval(&self, release: Digest) -> Option<&[u8]> {
        self.approvals.get(&release).map(|text| text.as_bytes())
    }

    /// All signatures that approve releases, by the digest of the release's image.
    pub fn approvals(&self) -> impl Iterator<Item = (Digest, &[u8])> {
        let approvals = self.approvals.iter();
        approvals.map(|(release, text)| (*release, text.as_bytes()))
    }
}

fn as_text(signature: &[u8]) -> Result<String, NotChannelFiles> {
    if signature.len() > LARGEST_SIGNATURE {
        return Err(NotChannelFiles::Signature(signature.len()));
    }
    let text = std::str::from_utf8(signature.trim_ascii()).ok();
    let is_base64 = |text: &&str| BASE64_STANDARD.decode(text).is_ok();
    let text = text.filter(is_base64).map(str::to_owned);
    Ok(text.unwrap_or_else(|| BASE64_STANDARD.encode(signature)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_signature_is_the_same_in_both_forms() {
        let raw = [0xff, 0, 1, 2];
        let base64 = format!("{}\n", BASE64_STANDARD.encode(raw));
        let release = Digest::of(b"image");
        let files = |signature: &[u8]| {
            let approvals = [(release, signature.to_vec())];
            ChannelFiles::new(b"{}".to_vec(), signature, approvals).unwrap()
        };
        assert_eq!(files(&raw), files(base64.as_bytes()));
        assert_eq!(files(&raw).signature(), base64.trim().as_bytes());
        assert_eq!(
            files(&raw).approval(release),
            Some(base64.trim().as_bytes())
        );
        assert_eq!(files(&raw).approval(Digest::of(b"other")), None);
    }

    #[test]
    fn what_is_too_large_or_no_text_is_refused() {
        let large = vec![b'a'; LARGEST + 1];
        let long = vec![b'a'; LARGEST_SIGNATURE + 1];
        assert!(ChannelFiles::new(large, b"", []).is_err());
        assert!(ChannelFiles::new(vec![0xff], b"", []).is_err());
        assert!(ChannelFiles::new(Vec::new(), &long, []).is_err());
        let approvals = (0..=MOST_RELEASES).map(|it| (Digest::of(&it.to_be_bytes()), Vec::new()));
        assert!(ChannelFiles::new(Vec::new(), b"", approvals).is_err());
    }
}
