//! Values under one-byte keys that operators keep on a machine, on STATE.
//!
//! Talos has a partition for them; here they are a file. Instar itself does not use them so far; only operators read them.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::base::lock::Lock as _;
use crate::base::whole_file;
use crate::state_partition::META;

/// Limit on all values together, in bytes, as on Talos's partition.
const ROOM: usize = 256 * 1024;

/// Why a value was not written or removed.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// There is no disk to keep values on.
    #[error(
        "there is no STATE to keep values on: the machine owns no disk, or has not mounted it yet"
    )]
    NoState,
    /// There is no value under this key.
    #[error("there is no value under key {0}")]
    Unknown(u8),
    /// All values together would be too large.
    #[error("no room: all values together may have {ROOM} bytes")]
    Full,
    /// The file cannot be read or written.
    #[error("cannot {step} {}", path.display())]
    Io {
        /// `read` or `write`.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error, or the error of parsing the file.
        source: io::Error,
    },
}

/// The values, in a directory of STATE.
#[derive(Debug)]
pub struct Meta {
    path: PathBuf,
    /// Held during a change, so that changes come one after the other.
    turn: std::sync::Mutex<()>,
}

impl Meta {
    /// Returns the values on STATE, which is mounted at `state`.
    pub fn on(state: &Path) -> Self {
        Meta {
            path: state.join(META.name),
            turn: std::sync::Mutex::new(()),
        }
    }

    /// Writes a value; when this returns, it is on the disk.
    pub fn write(&self, key: u8, value: &[u8]) -> Result<(), MetaError> {
        self.change(|values| {
            values.insert(key, BASE64.encode(value));
            let encoded: usize = values.values().map(String::len).sum();
            if encoded / 4 * 3 > ROOM {
                return Err(MetaError::Full);
            }
            Ok(())
        })
    }

    /// Removes a value.
    pub fn delete(&self, key: u8) -> Result<(), MetaError> {
        self.change(|values| values.remove(&key).map(drop).ok_or(MetaError::Unknown(key)))
    }

    /// Returns all values, sorted by key.
    pub fn values(&self) -> Result<BTreeMap<u8, Vec<u8>>, MetaError> {
        let decoded = self.read()?.into_iter().map(|(key, value)| {
            let value = BASE64.decode(value);
            let value = value.map_err(|error| self.failed("read", io::Error::other(error)))?;
            Ok((key, value))
        });
        decoded.collect()
    }

    fn change(
        &self,
        change: impl FnOnce(&mut BTreeMap<u8, String>) -> Result<(), MetaError>,
    ) -> Result<(), MetaError> {
        let _turn = self.turn.locked();
        let mut values = self.read()?;
        change(&mut values)?;
        let failed = |source| self.failed("write", source);
        let text = serde_json::to_vec(&values).map_err(|error| failed(error.into()))?;
        whole_file::replace(&self.path, META.mode, &text).map_err(failed)
    }

    fn read(&self) -> Result<BTreeMap<u8, String>, MetaError> {
        let failed = |source| self.failed("read", source);
        match std::fs::read(&self.path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(failed(error)),
        }
    }

    fn failed(&self, step: &'static str, source: io::Error) -> MetaError {
        MetaError::Io {
            step,
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn values_stay_until_they_are_removed() {
        let state = tempfile::tempdir().unwrap();
        let meta = Meta::on(state.path());
        assert!(matches!(meta.delete(10), Err(MetaError::Unknown(10))));
        meta.write(10, b"network").unwrap();
        meta.write(12, &[0, 255]).unwrap();
        meta.write(10, b"another").unwrap();
        let again = Meta::on(state.path()).read().unwrap();
        assert_eq!(again[&10], BASE64.encode("another"));
        assert_eq!(again.len(), 2);
        assert_eq!(meta.values().unwrap()[&12], [0, 255]);
        meta.delete(10).unwrap();
        assert_eq!(meta.read().unwrap().len(), 1);
    }

    #[test]
    fn they_have_room_and_no_more() {
        let state = tempfile::tempdir().unwrap();
        let meta = Meta::on(state.path());
        meta.write(1, &vec![1; ROOM - 8]).unwrap();
        assert!(matches!(meta.write(2, &[0; 100]), Err(MetaError::Full)));
        assert_eq!(meta.read().unwrap().len(), 1);
    }

    #[test]
    fn a_broken_file_is_not_overwritten() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join("meta.json"), "{").unwrap();
        let error = Meta::on(state.path()).write(1, b"x").unwrap_err();
        assert!(error.to_string().contains("cannot read"), "{error}");
    }
}
