//! The release file of an extension: the systems that it fits (`extension-release.NAME`, systemd-sysext(8)).

use std::collections::BTreeMap;

use crate::{Architecture, ExtensionName, Hierarchy};

/// The description of an extension by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    fields: BTreeMap<String, String>,
}

/// The system that extensions are merged into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host<'a> {
    /// `ID` of its os-release.
    pub id: &'a str,
    /// `VERSION_ID` of its os-release.
    pub version: &'a str,
    /// `SYSEXT_LEVEL` of its os-release, if it has one. Its `CONFEXT_LEVEL` is the same.
    pub level: Option<&'a str>,
    /// Its architecture.
    pub architecture: Architecture,
}

impl<'a> Host<'a> {
    /// `ID` of Instar's os-release.
    pub const ID: &'static str = "instar";
    /// `SYSEXT_LEVEL` and `CONFEXT_LEVEL` of Instar's os-release: the level of systemd's own examples. Another one would say that extensions of this one do
    /// not fit any more.
    pub const LEVEL: &'static str = "1.0";

    /// Instar in a version, with or without the `v` before its number.
    pub fn instar(version: &'a str, architecture: Architecture) -> Self {
        Host {
            id: Self::ID,
            version,
            level: Some(Self::LEVEL),
            architecture,
        }
    }
}

/// Why an extension does not fit a system.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// A line is no assignment.
    #[error("line {line} of its release file is no NAME=VALUE: {text:?}")]
    Line {
        /// The line's number, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// A field is missing.
    #[error("its release file for {name} has no {field}: it says for no system that it fits")]
    Missing {
        /// The extension.
        name: ExtensionName,
        /// The field.
        field: &'static str,
    },
    /// A field differs.
    #[error("{name} is for {field} {found:?}, and this system has {wanted:?}")]
    Differs {
        /// The extension.
        name: ExtensionName,
        /// The field.
        field: &'static str,
        /// Its value in the release file.
        found: String,
        /// The value that would fit.
        wanted: String,
    },
}

/// The ID of extensions for every system, and the architecture of those without programs.
const ANY: &str = "_any";

impl Release {
    /// Reads a release file: the assignments of os-release(5).
    ///
    /// # Errors
    /// A line is none.
    pub fn parse(text: &str) -> Result<Self, Misfit> {
        let mut fields = BTreeMap::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let assignment = line.split_once('=').and_then(|(key, value)| {
                let is_key =
                    |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
                (!key.is_empty() && key.bytes().all(is_key)).then_some((key, unquoted(value)?))
            });
            let (key, value) = assignment.ok_or_else(|| Misfit::Line {
                line: number + 1,
                text: line.to_owned(),
            })?;
            fields.insert(key.to_owned(), value);
        }
        Ok(Release { fields })
    }

    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// Checks whether the extension fits a system: its ID, then its level or version, and its architecture.
    ///
    /// # Errors
    /// It does not; the first field that differs.
    pub fn fits(
        &self,
        name: &ExtensionName,
        host: Host<'_>,
        hierarchy: Hierarchy,
    ) -> Result<(), Misfit> {
        let differs = |field, found: &str, wanted: &str| Misfit::Differs {
            name: name.clone(),
            field,
            found: found.to_owned(),
            wanted: wanted.to_owned(),
        };
        let id = self.field("ID").ok_or_else(|| Misfit::Missing {
            name: name.clone(),
            field: "ID",
        })?;
        if let Some(architecture) = self.field("ARCHITECTURE") {
            let own = host.architecture.name();
            if architecture != own && architecture != ANY {
                return Err(differs("ARCHITECTURE", architecture, own));
            }
        }
        if id == ANY {
            return Ok(());
        }
        if id != host.id {
            return Err(differs("ID", id, host.id));
        }
        // A level that both have decides alone.
        let field = hierarchy.level_field();
        if let (Some(level), Some(wanted)) = (self.field(field), host.level) {
            return match level == wanted {
                true => Ok(()),
                false => Err(differs(field, level, wanted)),
            };
        }
        let version = self.field("VERSION_ID").ok_or_else(|| Misfit::Missing {
            name: name.clone(),
            field: "VERSION_ID",
        })?;
        match without_v(version) == without_v(host.version) {
            true => Ok(()),
            false => Err(differs("VERSION_ID", version, host.version)),
        }
    }
}

/// A version as it is compared: tags and files have a `v` before it, os-release(5) has none.
fn without_v(version: &str) -> &str {
    version.strip_prefix('v').unwrap_or(version)
}

/// A value without its quotes and escapes; `None` if they do not end.
fn unquoted(value: &str) -> Option<String> {
    let Some(quote) = value.chars().next().filter(|first| "\"'".contains(*first)) else {
        let is_plain = !value.contains(['"', '\'', '`', '$', '\\', ' ']);
        return is_plain.then(|| value.to_owned());
    };
    let inner = value.strip_prefix(quote)?.strip_suffix(quote)?;
    let mut plain = String::new();
    let mut characters = inner.chars();
    while let Some(next) = characters.next() {
        match next {
            '\\' if quote == '"' => plain.push(characters.next()?),
            next if next == quote => return None,
            next => plain.push(next),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn judged(text: &str, version: &str) -> Result<(), String> {
        let name: ExtensionName = "kubernetes".parse().unwrap();
        let host = Host::instar(version, Architecture::X86_64);
        let fits =
            Release::parse(text).and_then(|release| release.fits(&name, host, Hierarchy::Usr));
        fits.map_err(|misfit| misfit.to_string())
    }

    #[test]
    fn an_extension_fits_by_id_and_level_or_version_and_architecture() {
        for fits in [
            "ID=_any\n",
            "# a comment\n\nID=\"_any\"\nARCHITECTURE=x86-64\nEXTENSION_RELOAD_MANAGER=1\n",
            "ID=_any\nARCHITECTURE=_any\n",
            "ID=instar\nVERSION_ID='v0.1.0'\n",
            "ID=instar\nVERSION_ID=0.1.0\n",
            "ID=instar\nSYSEXT_LEVEL=1.0\n",
            "ID=instar\nSYSEXT_LEVEL=1.0\nVERSION_ID=v0.0.9\n",
        ] {
            for version in ["v0.1.0", "0.1.0"] {
                assert_eq!(judged(fits, version), Ok(()), "{fits}");
            }
        }
        for (other, why) in [
            ("", "has no ID"),
            ("NAME=x\n", "has no ID"),
            ("ID=flatcar\nVERSION_ID=v0.1.0\n", "is for ID \"flatcar\""),
            ("ID=instar\n", "has no VERSION_ID"),
            ("ID=instar\nVERSION_ID=v0.2.0\n", "is for VERSION_ID"),
            (
                "ID=instar\nSYSEXT_LEVEL=2.0\n",
                "is for SYSEXT_LEVEL \"2.0\"",
            ),
            (
                "ID=_any\nARCHITECTURE=arm64\n",
                "is for ARCHITECTURE \"arm64\"",
            ),
            ("ID=_any\nnonsense\n", "line 2 of its release file"),
            ("ID=\"_any\n", "line 1 of its release file"),
            ("ID=$HOME\n", "line 1 of its release file"),
        ] {
            let judged = judged(other, "v0.1.0").unwrap_err();
            assert!(judged.contains(why), "{other}: {judged}");
        }
    }
}
