//! Whether what a machine config asks for can be made at all: asked before anything of it is kept or in force.

use super::{disk, puller, trust};
use crate::machine::Configured;

/// Makes what can fail of all that is made of a config, and throws it away. Nothing on the machine changes.
///
/// # Errors
/// The first part that cannot be made, by its name in the config.
pub fn check(configured: &Configured) -> anyhow::Result<()> {
    let config = &configured.config;
    trust::check(config)?;
    puller(Some(configured)).check_settings()?;
    disk(config)?;
    Ok(())
}
