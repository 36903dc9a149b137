//! Bandwidths: bytes per second that a transfer may use.

use std::fmt;
use std::str::FromStr;

use crate::quantity::ByteSize;

/// With less, a registry takes the machine for a client that hangs, and ends the transfer.
const LEAST: u64 = 16 << 10;

/// A limit in bytes per second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bandwidth(u64);

/// The text is not a bandwidth.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a bandwidth: expected something like 2MiB/s or 500KB/s, and at least 16KiB/s"
)]
pub struct NotABandwidth(String);

impl Bandwidth {
    /// Bytes per second.
    pub fn bytes_per_second(self) -> u64 {
        self.0
    }
}

impl FromStr for Bandwidth {
    type Err = NotABandwidth;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let size: Option<ByteSize> = text.strip_suffix("/s").and_then(|size| size.parse().ok());
        match size {
            Some(ByteSize(bytes)) if bytes >= LEAST => Ok(Bandwidth(bytes)),
            _ => Err(NotABandwidth(text.chars().take(40).collect())),
        }
    }
}

impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1_u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let whole = |(unit, _): &(u64, &str)| self.0.is_multiple_of(*unit);
        match units.into_iter().find(whole) {
            Some((unit, name)) => write!(f, "{}{name}/s", self.0 / unit),
            None => write!(f, "{}B/s", self.0),
        }
    }
}

crate::text_form::serde_by_text!(Bandwidth);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bandwidths_are_read_and_written() {
        for (text, bytes, shown) in [
            ("2MiB/s", 2 << 20, "2MiB/s"),
            ("500KB/s", 500_000, "500000B/s"),
            ("16384/s", 16 << 10, "16KiB/s"),
            ("1.5GiB/s", 3 << 29, "1536MiB/s"),
        ] {
            let bandwidth: Bandwidth = text.parse().unwrap();
            assert_eq!(bandwidth.bytes_per_second(), bytes);
            assert_eq!(bandwidth.to_string(), shown);
            assert_eq!(shown.parse(), Ok(bandwidth));
        }
        for bad in ["", "2MiB", "2MiB/m", "0/s", "16383/s", "fast", "-1MiB/s"] {
            assert!(bad.parse::<Bandwidth>().is_err(), "{bad:?}");
        }
    }
}
