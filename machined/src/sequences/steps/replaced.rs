//! The start of a version that replaces all that was on the machine (`upgrade::replacement`).

use std::collections::BTreeSet;

use crate::disk::{Label, Wipe};
use crate::machine::Machine;
use crate::upgrade::replacement::{Mark, Replacement};

/// Erases EPHEMERAL at the start of a version that is to replace all that was there. Called before EPHEMERAL is mounted.
pub(in crate::sequences) async fn at_start(machine: &Machine) -> anyhow::Result<()> {
    let Some(state) = machine.disk.state() else {
        return Ok(());
    };
    let Some(replacement) = Replacement::load(state)? else {
        return Ok(());
    };
    let (version, boot) = (
        &machine.running.version,
        machine.generation.kernel_boot_id.to_string(),
    );
    if replacement.at_start(version, &boot) == Mark::Erase {
        tracing::info!("EPHEMERAL is erased: this machine was replaced by {version}");
        erase(machine).await?;
    }
    Replacement::remove(state)
}

/// Erases EPHEMERAL, which is not mounted.
pub(in crate::sequences) async fn erase(machine: &Machine) -> anyhow::Result<()> {
    let ephemeral = Wipe::Partitions(BTreeSet::from([Label::Ephemeral]));
    Ok(machine.disk.wipe(ephemeral).await?)
}
