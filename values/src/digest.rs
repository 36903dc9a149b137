//! Content digests. Only sha256: registries use it, and one algorithm is easier to get right.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// A sha256 digest; every value is well formed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

/// Why a text is not a supported digest.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DigestError {
    /// The `ALGORITHM:` in front is missing.
    #[error("{0:?} is not a digest: sha256: and 64 lower-case hexadecimal digits are expected")]
    NotADigest(String),
    /// The algorithm is not supported.
    #[error("digest algorithm {0:?} is not supported; name the image by its sha256 digest")]
    Algorithm(String),
}

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(Sha256::digest(bytes).into())
    }

    /// The digest with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Digest(bytes)
    }

    /// The 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The 64 hexadecimal digits, without the algorithm.
    pub fn hex(&self) -> String {
        use fmt::Write;
        let mut hex = String::with_capacity(64);
        for byte in self.0 {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        hex
    }

    /// Parses a digest from its 64 digits alone, the form of directory names in the image store.
    pub fn from_hex(hex: &str) -> Result<Self, DigestError> {
        let bad = || DigestError::NotADigest(shown(hex));
        if hex.len() != 64 {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            let [high, low] = [nibble(pair[0]), nibble(pair[1])];
            *byte = high.ok_or_else(bad)? << 4 | low.ok_or_else(bad)?;
        }
        Ok(Digest(bytes))
    }
}

/// The value of a lower-case digit. Upper case is not valid in the image specification, so that each content has one name.
fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Shortens text for an error: it may be hostile.
fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            Some(("sha256", hex)) => {
                Digest::from_hex(hex).map_err(|_| DigestError::NotADigest(shown(text)))
            }
            Some((algorithm @ ("sha384" | "sha512" | "blake3"), _)) => {
                Err(DigestError::Algorithm(algorithm.to_owned()))
            }
            _ => Err(DigestError::NotADigest(shown(text))),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

crate::text_form::serde_by_text!(Digest);

/// Computes a digest piece by piece.
#[derive(Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything that was added.
    pub fn finish(self) -> Digest {
        Digest(self.0.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const EMPTY: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn reads_and_writes_the_same() {
        let digest: Digest = EMPTY.parse().unwrap();
        assert_eq!(digest, Digest::of(b""));
        assert_eq!(digest, Hasher::default().finish());
        assert_eq!(digest.to_string(), EMPTY);
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
    }

    #[test]
    fn refuses_what_is_not_one() {
        let hex = &EMPTY["sha256:".len()..];
        for bad in [
            String::new(),
            "sha256:".into(),
            hex.into(),
            format!("sha256:{}", &hex[1..]),
            format!("sha256:{hex}0"),
            format!("sha256:{}", hex.to_uppercase()),
            format!("SHA256:{hex}"),
            format!("sha256: {}", &hex[1..]),
            format!("sha256:../../{}", &hex[6..]),
            format!("sha256:{}é", &hex[2..]),
        ] {
            assert!(
                matches!(bad.parse::<Digest>(), Err(DigestError::NotADigest(_))),
                "{bad:?}"
            );
        }
        let sha512 = format!("sha512:{hex}{hex}");
        assert_eq!(
            sha512.parse::<Digest>(),
            Err(DigestError::Algorithm("sha512".into()))
        );
    }
}
