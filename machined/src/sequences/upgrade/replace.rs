//! The steps of a replacement in the upgrade that makes it (`upgrade::replacement`). Those at the start of the version that it brings are in
//! `steps::replaced`.

use std::sync::Arc;

use anyhow::Context as _;

use super::trial_record::with_state;
use crate::disk::Users;
use crate::machine::Machine;
use crate::sequences::Phase;
use crate::sequences::steps::{boot_assets, disk, replaced};
use crate::upgrade::replacement::Replacement;
use crate::upgrade::{UpgradeError, UpgradeMode, UpgradeRequest};

/// Checks that the machine can be replaced if that was asked for: only one that boots from its disk gets the image by its next boot.
pub(super) async fn check(machine: &Machine, request: &UpgradeRequest) -> Result<(), UpgradeError> {
    if request.mode != UpgradeMode::Replace {
        return Ok(());
    }
    let installed = boot_assets::installed(machine).await;
    match installed.map_err(UpgradeError::Machine)? {
        Some(_) => Ok(()),
        None => Err(UpgradeError::NothingToReplace),
    }
}

/// Writes the mark: from now on the next boot into this version erases EPHEMERAL.
pub(super) async fn mark(machine: &Machine, version: &str) -> anyhow::Result<()> {
    let mark = Replacement {
        version: version.to_owned(),
        begun_in: machine.generation.kernel_boot_id.to_string(),
    };
    let marked = with_state(machine.disk.state(), move |state| mark.save(state)).await;
    let marked = marked.context("note the replacement on STATE")?;
    marked.context("STATE is not mounted")
}

/// Takes the mark back: the machine goes on with its data.
pub(super) async fn unmark(machine: &Machine) -> anyhow::Result<()> {
    let unmarked = with_state(machine.disk.state(), Replacement::remove).await;
    unmarked.map(drop)
}

/// Unmounts the disk, and erases EPHEMERAL.
pub(super) fn phases(machine: &Arc<Machine>) -> [Phase; 2] {
    let unmounted = machine.clone();
    let unmount = Phase::of("unmount", async move {
        Ok(disk::unmount(&unmounted, Users::MustBeGone).await?)
    });
    let erased = machine.clone();
    [
        unmount,
        Phase::of("reset", async move { replaced::erase(&erased).await }),
    ]
}
