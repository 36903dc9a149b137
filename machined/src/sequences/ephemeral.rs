//! /var, and what the config wants on it.

use anyhow::Context as _;

use crate::config::UserVolumeKind;
use crate::disk::{make_user_volume, user_volume};
use crate::intent;
use crate::machine::Machine;
use crate::modules::Class;
use crate::status;

/// Mounts /var as the config says; without a config it stays away.
pub(super) async fn mount(machine: &Machine) -> anyhow::Result<()> {
    let Some(configured) = machine.config() else {
        return Ok(());
    };
    let wish = intent::disk(&configured.config)?;
    // Drivers of disks take a second and two MiB, which a machine without a disk can keep.
    if wish.disk.is_some() {
        machine
            .drivers()?
            .load_for(Class::Block)
            .await
            .context("load the drivers of disks")?;
    }
    machine
        .ephemeral
        .mount(&wish)
        .await
        .context("mount EPHEMERAL")
}

/// Makes what containers expect on /var. What cannot be made is a problem of its own, for the containers that wait for it
/// and not for the machine.
pub(super) fn furnish(machine: &Machine) {
    let Some(configured) = machine.config() else {
        return;
    };
    let volumes = configured.config.user_volumes.iter();
    for volume in volumes.filter(|volume| volume.kind == UserVolumeKind::Directory) {
        if let Err(error) = make_user_volume(&user_volume(volume.name.as_str())) {
            let reason = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!("user volume {}: {reason}", volume.name);
            status::note_problem(machine, &format!("user volume {}", volume.name), &reason);
        }
    }
}
