//! From signed bytes to a list.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_values::{Digest, PublicKey};

use crate::{ChannelName, List, NotAList, Release};

/// The file of a list, and that of its signature: by `instar-channel`, `cosign sign-blob` or `openssl dgst -sign`, in base64 or as it is.
pub const LIST: &str = "releases-v1.json";
/// See [`LIST`].
pub const SIGNATURE: &str = "releases-v1.json.sig";

/// Why a list is not believed.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The signature is not of this key over these bytes.
    #[error(
        "the list is not signed by the key {0}, or its signature is of another list; nothing of it is read"
    )]
    Signature(Digest),
    /// Its owner has signed bytes that are no list.
    #[error(transparent)]
    List(#[from] NotAList),
    /// It is the list of another channel.
    #[error("this is the list of the channel {found}, not of {wanted}")]
    Channel {
        /// The channel of the list.
        found: ChannelName,
        /// The channel that was asked for.
        wanted: ChannelName,
    },
}

/// Reads a list by its signature.
///
/// # Errors
/// It is not signed by this key, is no list, or is of another channel.
pub fn open(
    channel: &ChannelName,
    key: &PublicKey,
    bytes: &[u8],
    signature: &[u8],
) -> Result<List, Refused> {
    if !is_signed(key, bytes, signature) {
        return Err(Refused::Signature(key.fingerprint()));
    }
    let list = List::parse(bytes)?;
    match list.channel == *channel {
        true => Ok(list),
        false => Err(Refused::Channel {
            found: list.channel,
            wanted: channel.clone(),
        }),
    }
}

/// Whether this is a signature of these bytes, in base64 or as it is.
#[must_use]
pub fn is_signed(key: &PublicKey, bytes: &[u8], signature: &[u8]) -> bool {
    let decoded = BASE64_STANDARD.decode(signature.trim_ascii());
    let signature = decoded.as_deref().unwrap_or(signature);
    instar_pki::is_signature(key, bytes, signature)
}

/// The bytes that a person signs who approves a release of a channel.
#[must_use]
pub fn approval(channel: &ChannelName, release: &Release) -> Vec<u8> {
    let Release {
        version, digest, ..
    } = release;
    format!("instar.dev/approval/v1 {channel} {version} {digest}\n").into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::change::tests::list_of;
    use instar_pki::PrivateKey;

    fn public(key: &PrivateKey) -> PublicKey {
        key.public_key_pem().parse().unwrap()
    }

    #[test]
    fn a_list_is_believed_by_its_key_and_its_name_alone() {
        let (key, other) = (
            PrivateKey::generate().unwrap(),
            PrivateKey::generate_p256().unwrap(),
        );
        let list = list_of(&["v0.2.0"]);
        let bytes = list.to_bytes().unwrap();
        let stable: ChannelName = "stable".parse().unwrap();
        for signer in [&key, &other] {
            let raw = signer.sign(&bytes).unwrap();
            let base64 = format!("{}\n", BASE64_STANDARD.encode(&raw)).into_bytes();
            for signature in [&raw, &base64] {
                let opened = open(&stable, &public(signer), &bytes, signature);
                assert_eq!(opened.unwrap(), list);
            }
            let beta = "beta".parse().unwrap();
            let refused = open(&beta, &public(signer), &bytes, &raw).unwrap_err();
            assert!(matches!(refused, Refused::Channel { .. }), "{refused}");
        }
        let by_other = other.sign(&bytes).unwrap();
        let of_other = key.sign(b"another list").unwrap();
        for signature in [&by_other[..], &of_other, b"", b"AAAA"] {
            let refused = open(&stable, &public(&key), &bytes, signature).unwrap_err();
            assert!(matches!(refused, Refused::Signature(_)), "{refused}");
        }
        let signature = key.sign(b"no list").unwrap();
        let refused = open(&stable, &public(&key), b"no list", &signature).unwrap_err();
        assert!(matches!(refused, Refused::List(_)), "{refused}");
    }
}
