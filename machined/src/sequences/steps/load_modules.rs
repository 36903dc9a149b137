//! Kernel modules that no device asks for. The kernel would have a program of the root filesystem load them, which there is none of.

use anyhow::Context as _;

use crate::machine::Machine;

/// Loads these and what they need.
pub(in crate::sequences) async fn load_modules(
    machine: &Machine,
    names: &[&str],
) -> anyhow::Result<()> {
    let drivers = machine.drivers()?;
    for name in names {
        let loaded = drivers.load_named(name).await;
        loaded.with_context(|| format!("load the module {name}"))?;
    }
    Ok(())
}
