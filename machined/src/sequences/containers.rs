//! What containers need of the kernel, before the first one.

use anyhow::Context as _;

use crate::machine::Machine;

/// Loads what a container's root filesystem is made with.
pub(super) async fn prepare(machine: &Machine) -> anyhow::Result<()> {
    machine
        .drivers()?
        .load_named("overlay")
        .await
        .context("load the module overlay")?;
    Ok(())
}
