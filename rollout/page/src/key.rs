//! The key to a page.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};

/// The bytes of a key: nobody guesses 16.
const BYTES: usize = 16;

/// A key. `Display` shows it, `Debug` does not.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// Makes a new one of the kernel's random bytes.
    ///
    /// # Errors
    /// /dev/urandom cannot be read.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; BYTES];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        Ok(Self(digits.collect()))
    }

    /// Whether a request's `authorization` has the key. It takes the same time wherever the two differ.
    pub(crate) fn opens(&self, authorization: &[u8]) -> bool {
        let expected = format!("Bearer {}", self.0).into_bytes();
        if expected.len() != authorization.len() {
            return false;
        }
        let pairs = expected.iter().zip(authorization);
        pairs.fold(0, |difference, (one, other)| difference | (one ^ other)) == 0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_whole_key_opens() {
        let key = Key::random().unwrap();
        assert_ne!(key, Key::random().unwrap());
        assert!(key.opens(format!("Bearer {key}").as_bytes()));
        let text = key.to_string();
        for wrong in [
            "",
            &text,
            "Bearer ",
            &format!("Bearer {}", &text[1..]),
            &format!("Bearer {text}0"),
        ] {
            assert!(!key.opens(wrong.as_bytes()), "{wrong}");
        }
        assert_eq!(format!("{key:?}"), "Key");
    }
}
