//! Selects a disk: by path, by a CEL expression, or by properties.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::ByteSize;

/// A way to select a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskSelector {
    /// A device path or one of its names below /dev/disk/by-id.
    Path(PathBuf),
    /// A CEL expression over `disk` and `system_disk`, not parsed yet.
    Cel(String),
    /// Properties, all of which must match.
    Fields(Box<DiskFields>),
}

/// Properties of a disk, as in Talos's older `diskSelector`. Texts may contain `*`, `?` and `[sets]`; `None` matches any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskFields {
    /// Its size.
    pub size: Option<SizeCondition>,
    /// The kernel's name, such as `vda`.
    pub name: Option<String>,
    /// `/sys/block/<dev>/device/model`.
    pub model: Option<String>,
    /// Serial number.
    pub serial: Option<String>,
    /// `/sys/block/<dev>/device/modalias`.
    pub modalias: Option<String>,
    /// `/sys/block/<dev>/uuid`, which NVMe disks have.
    pub uuid: Option<String>,
    /// `/sys/block/<dev>/wwid`, the world-wide name.
    pub wwid: Option<String>,
    /// The kind of disk.
    pub kind: Option<DiskKind>,
    /// Its path on the bus, as below /sys/devices.
    pub bus_path: Option<String>,
}

/// The kind of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskKind {
    /// A rotating disk.
    Hdd,
    /// A disk that does not rotate, and is neither NVMe nor SD.
    Ssd,
    /// NVMe.
    Nvme,
    /// SD card or eMMC.
    Sd,
}

/// A comparison with a size: `4GB`, `>= 1TB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeCondition {
    /// The comparison.
    pub comparison: Comparison,
    /// The size to compare with.
    pub size: ByteSize,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `==`, or nothing.
    Equal,
    /// `>`.
    Greater,
    /// `>=`.
    GreaterOrEqual,
    /// `<`.
    Less,
    /// `<=`.
    LessOrEqual,
}

/// The text is not a comparison with a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("write a size such as `4GB`, `>= 1TB` or `<= 2TB`")]
pub struct NotASizeCondition;

impl fmt::Display for DiskSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "the path {}", path.display()),
            Self::Cel(text) => write!(f, "the expression {text:?}"),
            Self::Fields(fields) => write!(f, "the disk selector {fields:?}"),
        }
    }
}

impl SizeCondition {
    /// Whether a disk of this many bytes matches.
    #[must_use]
    pub fn holds(self, bytes: u64) -> bool {
        match self.comparison {
            Comparison::Equal => bytes == self.size.0,
            Comparison::Greater => bytes > self.size.0,
            Comparison::GreaterOrEqual => bytes >= self.size.0,
            Comparison::Less => bytes < self.size.0,
            Comparison::LessOrEqual => bytes <= self.size.0,
        }
    }
}

impl FromStr for SizeCondition {
    type Err = NotASizeCondition;

    fn from_str(text: &str) -> Result<Self, NotASizeCondition> {
        let text = text.trim();
        // The longer operators first, as `>` is a prefix of `>=`.
        let operators = [
            (">=", Comparison::GreaterOrEqual),
            ("<=", Comparison::LessOrEqual),
            ("==", Comparison::Equal),
            (">", Comparison::Greater),
            ("<", Comparison::Less),
        ];
        let (comparison, size) = operators
            .into_iter()
            .find_map(|(operator, comparison)| Some((comparison, text.strip_prefix(operator)?)))
            .unwrap_or((Comparison::Equal, text));
        let size = size.parse().map_err(|_| NotASizeCondition)?;
        Ok(Self { comparison, size })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sizes_compare() {
        for (text, yes, no) in [
            ("4GB", 4_000_000_000, 4_000_000_001),
            (">= 1TB", 1_000_000_000_000, 999_999_999_999),
            ("<=2TiB", 2 << 40, (2 << 40) + 1),
            ("> 1k", 1001, 1000),
            ("< 1k", 999, 1000),
            ("== 1.5TB", 1_500_000_000_000, 1_499_999_999_999),
            ("<= 64 GiB", 64 << 30, (64 << 30) + 1),
        ] {
            let condition: SizeCondition = text.parse().unwrap();
            assert!(condition.holds(yes), "{text} {yes}");
            assert!(!condition.holds(no), "{text} {no}");
        }
        for text in ["", "=> 1", ">", "large", "4 parsecs", ">= ", "-1GB"] {
            assert!(text.parse::<SizeCondition>().is_err(), "{text}");
        }
    }
}
