//! The version of Talos whose file `gen secrets` writes.

use std::str::FromStr;

/// The oldest version whose file has all authorities that ours has.
const OLDEST: TalosVersion = TalosVersion { major: 1, minor: 0 };

/// The newest version whose file is known.
const NEWEST: TalosVersion = TalosVersion {
    major: 1,
    minor: 14,
};

/// Major and minor number: a patch release changes no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TalosVersion {
    major: u16,
    minor: u16,
}

/// Why no file is written for a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoVersion {
    #[error("it is no version; write it like v1.14")]
    Malformed,
    #[error("files of versions before v1.0 lack what later ones need; take v1.0 to v1.14")]
    TooOld,
    #[error(
        "its file is not known, only those of v1.0 to v1.14; leave the option out for the newest"
    )]
    TooNew,
}

impl TalosVersion {
    /// Before 1.3 etcd's content was encrypted by AES-CBC, from then on by a secretbox.
    pub(crate) fn encrypts_by_secretbox(self) -> bool {
        self >= TalosVersion { major: 1, minor: 3 }
    }
}

impl Default for TalosVersion {
    fn default() -> Self {
        NEWEST
    }
}

impl FromStr for TalosVersion {
    type Err = NoVersion;

    /// Parses a version as talosctl does: with or without a `v`, and with any text after the minor number and a point.
    fn from_str(text: &str) -> Result<Self, NoVersion> {
        let mut parts = text.strip_prefix('v').unwrap_or(text).splitn(3, '.');
        let mut number = || {
            let digits = parts.next()?;
            let bare = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| bare)
        };
        let (major, minor) = number().zip(number()).ok_or(NoVersion::Malformed)?;
        match (TalosVersion { major, minor }) {
            version if version < OLDEST => Err(NoVersion::TooOld),
            version if version > NEWEST => Err(NoVersion::TooNew),
            version => Ok(version),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn versions_are_read_as_talosctl_reads_them() {
        let read = |text: &str| text.parse::<TalosVersion>();
        for newest in ["v1.14", "1.14", "v1.14.0", "v1.14.0-alpha.1"] {
            assert_eq!(read(newest), Ok(TalosVersion::default()), "{newest}");
        }
        for (text, secretbox) in [("v1.0", false), ("v1.2.8", false), ("v1.3", true)] {
            assert_eq!(read(text).unwrap().encrypts_by_secretbox(), secretbox);
        }
        for (text, why) in [
            ("v0.8", NoVersion::TooOld),
            ("v1.15", NoVersion::TooNew),
            ("v2.0", NoVersion::TooNew),
            ("", NoVersion::Malformed),
            ("v1", NoVersion::Malformed),
            ("vv1.14", NoVersion::Malformed),
            ("v1.+3", NoVersion::Malformed),
            ("v1.14-alpha", NoVersion::Malformed),
            ("latest", NoVersion::Malformed),
        ] {
            assert_eq!(read(text), Err(why), "{text:?}");
        }
    }
}
