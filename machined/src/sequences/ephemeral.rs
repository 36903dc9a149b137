//! /var, and what the config wants on it.

use std::path::Path;

use anyhow::Context as _;

use crate::config::UserVolumeKind;
use crate::disk::{make_user_volume, user_volume};
use crate::intent;
use crate::machine::Machine;
use crate::modules::Class;
use crate::status;

/// Where logs are kept.
const LOGS: &str = "/var/log";

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

/// Makes what belongs on /var: the logs and the user volumes.
pub(super) async fn furnish(machine: &Machine) {
    keep_logs(machine).await;
    make_user_volumes(machine);
}

/// Logs go to the disk, if there is one: in memory they are already.
async fn keep_logs(machine: &Machine) {
    let (mounted, on_disk) = {
        let status = machine.ephemeral.status();
        let status = status.borrow();
        (status.mounted, status.device.is_some())
    };
    if on_disk {
        if let Err(error) = machine.log_disk.open(Path::new(LOGS)).await {
            tracing::warn!("logs are kept in memory alone: cannot make {LOGS}: {error}");
        }
    } else if mounted {
        tracing::info!("logs are kept in memory alone, as /var is: they end with this generation");
    }
}

/// What cannot be made is a problem of its own, for the containers that wait for it and not for the machine.
fn make_user_volumes(machine: &Machine) {
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
