//! The machine config on STATE: what a machine boots with when nobody else gives it one.

use std::io;
use std::path::{Path, PathBuf};

use crate::base::whole_file;
use crate::state_partition::MACHINE_CONFIG;

/// Where the config is, below the place that STATE is mounted at.
pub fn path(state: &Path) -> PathBuf {
    state.join(MACHINE_CONFIG.name)
}

/// Writes the config, whole or not at all; nothing when it is there already.
///
/// # Errors
/// STATE cannot be written.
pub fn write(state: &Path, text: &str) -> io::Result<()> {
    let path = path(state);
    if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
        return Ok(());
    }
    whole_file::replace(&path, MACHINE_CONFIG.mode, text.as_bytes())
}
