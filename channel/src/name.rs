//! Names of channels.

use std::fmt;
use std::str::FromStr;

/// Limit on the length, in bytes: that of a label's value in Kubernetes.
const LONGEST: usize = 63;

/// The name of a channel, such as `stable`: lower-case letters, digits and inner `-` and `.`. It is part of addresses and file names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelName(String);

/// The text is not a name of a channel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a name of a channel: expected lower-case letters, digits, and - or . between them, such as stable"
)]
pub struct NotAChannelName(String);

impl ChannelName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ChannelName {
    type Err = NotAChannelName;

    fn from_str(text: &str) -> Result<Self, NotAChannelName> {
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = text.as_bytes();
        let is_name = bytes.len() <= LONGEST
            && bytes.first().copied().is_some_and(is_plain)
            && bytes.last().copied().is_some_and(is_plain)
            && bytes
                .iter()
                .all(|&byte| is_plain(byte) || byte == b'-' || byte == b'.')
            && !text.contains("..");
        match is_name {
            true => Ok(ChannelName(text.to_owned())),
            false => Err(NotAChannelName(text.chars().take(LONGEST).collect())),
        }
    }
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

instar_values::serde_by_text!(ChannelName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_safe_in_a_path() {
        for good in ["stable", "beta-2", "v1.2", "a"] {
            assert!(good.parse::<ChannelName>().is_ok(), "{good}");
        }
        let long = "a".repeat(LONGEST + 1);
        for bad in [
            "", ".", "..", "a..b", "-a", "a-", "Stable", "a/b", "a b", "ä", &long,
        ] {
            assert!(bad.parse::<ChannelName>().is_err(), "{bad}");
        }
    }
}
