//! Whether what a machine config asks for can be made at all: asked before anything of it is kept or in force.

use anyhow::Context as _;

use super::{container, disk, gate_probes, puller, trust};
use crate::machine::Configured;

/// Makes everything that is made of a config, and throws it away. Nothing on the machine changes.
///
/// # Errors
/// The first part that cannot be made, by its name in the config.
pub fn check(configured: &Configured) -> anyhow::Result<()> {
    let config = &configured.config;
    trust::check(config)?;
    puller(Some(configured))?.check_settings()?;
    gate_probes(config)?;
    disk(config)?;
    for wanted in &config.containers {
        container::check(wanted, config)
            .with_context(|| format!("the container {}", wanted.name))?;
    }
    Ok(())
}
