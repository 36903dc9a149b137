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

    /// Whether a visitor's token is the key. It takes the same time wherever the two differ.
    pub fn opens(&self, token: &str) -> bool {
        let (expected, token) = (self.0.as_bytes(), token.as_bytes());
        if expected.len() != token.len() {
            return false;
        }
        let pairs = expected.iter().zip(token);
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
        let text = key.to_string();
        assert!(key.opens(&text));
        for wrong in ["", "Key", &text[1..], &format!("{text}0")] {
            assert!(!key.opens(wrong), "{wrong}");
        }
        assert_eq!(format!("{key:?}"), "Key");
    }
}
