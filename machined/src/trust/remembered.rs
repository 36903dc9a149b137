//! The authorities that the machine trusted when it last had a config, kept beside the config in a file of their own: it decides when the
//! config cannot be read.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::whole_file;
use crate::state_partition::TRUST;

/// The content of the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Remembered {
    /// The trusted authorities.
    Authorities(Authorities),
    /// No authority is trusted: an administrator had the config erased, so that any caller can bring another one.
    Reset,
}

/// The certificate authorities of a machine config.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Authorities {
    /// The machine's own authority, PEM.
    pub ca: String,
    /// Its key, PEM. Kept on STATE only, where the config with the same key is: without it clients cannot verify this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Further authorities whose clients are let in, PEM.
    pub accepted: Vec<String>,
    /// Further names of the machine.
    pub names: Vec<String>,
}

impl std::fmt::Debug for Authorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authorities")
            .field("has_key", &self.key.is_some())
            .field("accepted", &self.accepted.len())
            .finish_non_exhaustive()
    }
}

impl Authorities {
    /// Returns a copy without the key, for a place where the key must not be.
    #[must_use]
    pub fn without_key(&self) -> Self {
        Self {
            key: None,
            ..self.clone()
        }
    }
}

impl Remembered {
    /// Reads the record from this folder; None if there is none.
    ///
    /// # Errors
    /// The record exists and cannot be read.
    pub fn read(folder: &Path) -> anyhow::Result<Option<Self>> {
        whole_file::read_json(&folder.join(TRUST.name))
    }

    /// Writes the record into this folder, whole or not at all; does nothing if the same record is there already.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let path = folder.join(TRUST.name);
        let json = serde_json::to_vec(self)?;
        if std::fs::read(&path).is_ok_and(|there| there == json) {
            return Ok(());
        }
        whole_file::replace(&path, TRUST.mode, &json)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_written_is_read_and_the_key_stays_where_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Remembered::read(folder.path()).unwrap(), None);
        let authorities = Authorities {
            ca: "ca".to_owned(),
            key: Some("secret".to_owned()),
            accepted: vec!["other".to_owned()],
            names: Vec::new(),
        };
        let elsewhere = Remembered::Authorities(authorities.without_key());
        for remembered in [
            Remembered::Authorities(authorities.clone()),
            elsewhere,
            Remembered::Reset,
        ] {
            remembered.write(folder.path()).unwrap();
            let read = Remembered::read(folder.path()).unwrap();
            assert_eq!(read, Some(remembered));
        }
        assert!(!format!("{authorities:?}").contains("secret"));
        let without = serde_json::to_string(&authorities.without_key()).unwrap();
        assert!(!without.contains("secret"));
        // Half a record is an error, and no trust.
        std::fs::write(folder.path().join(TRUST.name), "{\"authorities\":").unwrap();
        assert!(Remembered::read(folder.path()).is_err());
    }
}
