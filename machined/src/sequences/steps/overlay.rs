//! What the kernel needs before there can be containers.

use super::load_modules::load_modules;
use crate::machine::Machine;

/// Loads the file system that containers' files are joined with.
pub(in crate::sequences) async fn load_overlay(machine: &Machine) -> anyhow::Result<()> {
    load_modules(machine, &["overlay"]).await
}
