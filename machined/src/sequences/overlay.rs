//! What the kernel needs before there can be containers.

use anyhow::Context as _;

use crate::machine::Machine;

/// Loads the file system that containers' files are joined with.
pub(super) async fn load_overlay(machine: &Machine) -> anyhow::Result<()> {
    machine
        .drivers()?
        .load_named("overlay")
        .await
        .context("load the module overlay")?;
    Ok(())
}
