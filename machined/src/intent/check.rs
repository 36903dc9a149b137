//! Checks whether all that a machine config asks for can be made, before the config is kept or in force.

use super::{disk, puller, trust};
use crate::machine::Configured;

/// Makes all parts of a config that can fail, and throws them away. Nothing on the machine changes.
///
/// # Errors
/// The first part that cannot be made, named as in the config.
pub fn check(configured: &Configured) -> anyhow::Result<()> {
    let config = &configured.config;
    trust::check(config)?;
    puller(Some(configured)).check_settings()?;
    disk(config)?;
    Ok(())
}
