//! The copy of the machine config on STATE. A machine boots with it if there is no other source.

use std::io;
use std::path::{Path, PathBuf};

use crate::base::whole_file;
use crate::state_partition::MACHINE_CONFIG;

/// Returns the path of the config below the mount point of STATE.
pub fn path(state: &Path) -> PathBuf {
    state.join(MACHINE_CONFIG.name)
}

/// Writes the config atomically. An equal config is not written again.
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
