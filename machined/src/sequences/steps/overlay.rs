//! The kernel module that containers need.

use super::load_modules::load_modules;
use crate::machine::Machine;

/// Loads the overlay filesystem, which joins the layers of containers' files.
pub(in crate::sequences) async fn load_overlay(machine: &Machine) -> anyhow::Result<()> {
    load_modules(machine, &["overlay"]).await
}
