//! The values in messages. One that exists is valid.

use crate::error::InvalidValue;
use std::fmt::{self, Write as _};
use std::str::FromStr;

/// One line of text of at most [`Line::MAX`] bytes, without control characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line(String);

impl Line {
    /// The longest line, in bytes. The longest message (a `welcome` with 64 kept names) still fits into a packet.
    pub const MAX: usize = 512;

    /// Makes a line of any text: control characters become spaces, what is too long is cut off.
    pub fn lossy(text: &str) -> Self {
        let mut line = String::new();
        for c in text
            .trim_matches(|c: char| c.is_whitespace() || c.is_control())
            .chars()
        {
            let c = if c.is_control() { ' ' } else { c };
            if line.len() + c.len_utf8() > Self::MAX {
                break;
            }
            line.push(c);
        }
        if line.is_empty() {
            line.push('-');
        }
        Self(line)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Line {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        if text.is_empty() {
            return Err(InvalidValue("is empty"));
        }
        if text.len() > Self::MAX {
            return Err(InvalidValue("is longer than 512 bytes"));
        }
        if text.chars().any(char::is_control) {
            return Err(InvalidValue("holds a control character"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of a boot, of the kernel or of a generation: a UUID in its lower-case form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BootId(String);

impl BootId {
    /// A version 4 UUID of 16 random bytes.
    pub fn from_random(mut bytes: [u8; 16]) -> Self {
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let mut text = String::with_capacity(36);
        for (i, byte) in bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                text.push('-');
            }
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }

    /// The text, 36 characters.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BootId {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let right = text.len() == 36
            && text.bytes().enumerate().all(|(i, byte)| match i {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            });
        if right {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidValue("is not a lower-case UUID"))
        }
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A BLAKE3 digest, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Blake3([u8; 32]);

impl Blake3 {
    /// The 32 bytes of the digest.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl From<[u8; 32]> for Blake3 {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl FromStr for Blake3 {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        const WRONG: InvalidValue = InvalidValue("is not 64 lower-case hex digits");
        fn digit(byte: u8) -> Result<u8, InvalidValue> {
            match byte {
                b'0'..=b'9' => Ok(byte - b'0'),
                b'a'..=b'f' => Ok(byte - b'a' + 10),
                _ => Err(WRONG),
            }
        }
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
            return Err(WRONG);
        };
        if pairs.len() != 32 {
            return Err(WRONG);
        }
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Blake3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Blake3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Blake3({self})")
    }
}

/// The name of a kept descriptor: 1 to 32 of `a-z0-9.-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FdName(String);

impl FdName {
    /// The longest name, in bytes.
    pub const MAX: usize = 32;

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for FdName {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let allowed = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-');
        if text.is_empty() || text.len() > Self::MAX || !text.bytes().all(allowed) {
            return Err(InvalidValue("is not 1 to 32 of a-z, 0-9, '.' and '-'"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for FdName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How long init keeps a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Over restarts of machined, until the generation ends.
    Generation,
    /// Over generations, until the kernel ends.
    Machine,
}

impl Scope {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Generation => "generation",
            Self::Machine => "machine",
        }
    }
}

impl FromStr for Scope {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        match text {
            "generation" => Ok(Self::Generation),
            "machine" => Ok(Self::Machine),
            _ => Err(InvalidValue("is neither 'generation' nor 'machine'")),
        }
    }
}

/// The time that a generation gets to become healthy: 1 to 3600 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Deadline(u32);

impl Deadline {
    /// The longest, in seconds.
    pub const MAX: u32 = 3600;

    /// A deadline of so many seconds, if that is in the range.
    pub fn from_secs(seconds: u32) -> Result<Self, InvalidValue> {
        match seconds {
            1..=Self::MAX => Ok(Self(seconds)),
            _ => Err(InvalidValue("is not a number of seconds from 1 to 3600")),
        }
    }

    /// Seconds.
    pub const fn secs(self) -> u32 {
        self.0
    }
}

impl FromStr for Deadline {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Self::from_secs(text.parse().unwrap_or(0))
    }
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
