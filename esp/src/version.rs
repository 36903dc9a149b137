//! The version that an image carries.

use std::{fmt, str::FromStr};

use serde::Serialize;
use thiserror::Error;

/// A version, for example `v0.2.0` or `v1.0.0-rc.1`. It is part of file names, labels and tags, so its characters are limited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Version(String);

/// The text is not a version.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a version: expected something like v0.2.0 or v1.0.0-rc.1")]
pub struct NotAVersion(String);

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let error = || NotAVersion(text.to_owned());
        let numbers = text.strip_prefix('v').ok_or_else(error)?;
        let (core, extra) = numbers
            .split_once('-')
            .map_or((numbers, None), |(core, extra)| (core, Some(extra)));
        let is_number = |part: &str| {
            !part.is_empty() && part.len() < 10 && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        let parts: Vec<_> = core.split('.').collect();
        let plain_extra = extra.is_none_or(|extra| {
            !extra.is_empty()
                && extra
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
        });
        // A tag of an OCI registry has at most 128 characters.
        if parts.len() == 3
            && parts.iter().all(|part| is_number(part))
            && plain_extra
            && text.len() <= 128
        {
            Ok(Self(text.to_owned()))
        } else {
            Err(error())
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_versions_are_versions() {
        for good in ["v0.1.0", "v10.20.30", "v1.0.0-rc.1"] {
            assert_eq!(good.parse::<Version>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "0.1.0",
            "v1.2",
            "v1.2.3.4",
            "v1..2",
            "v1.2.x",
            "v1.2.3-",
            "v1.2.3\n",
            "v1.2.3 ",
            // In an entry's file name the number of tries left follows the version.
            "v1.2.3+x5",
            "v1.2.3-a/b",
            "v1.2.3-é",
        ] {
            bad.parse::<Version>().unwrap_err();
        }
    }
}
