//! The disk that the kernel finds late.
//!
//! A driver is there before its disks are: the kernel searches USB and eMMC in the background, for seconds. A machine that looks for its disk too
//! early takes itself for one without data, and waits for a config from anybody. So it waits for the disk that the firmware started it from,
//! or that its config names; a machine that came another way, and names none, waits for nothing.

use std::time::Duration;

use anyhow::Context as _;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::boot_assets;
use super::load_modules::load_disk_drivers;
use crate::disk::{DiskSpec, OwnedDiskError, SelectError};
use crate::machine::Machine;

/// Time limit for a disk: a USB stick takes three seconds, and some controllers longer.
const LATE: Duration = Duration::from_secs(10);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(250);

/// Loads the drivers of disks, and waits for the disk that this machine was started from. Returns the EFI system partition that it was started
/// from, if anybody can tell. A disk that has not come is not waited for again.
pub(in crate::sequences) async fn own_disk(machine: &Machine) -> anyhow::Result<Option<Uuid>> {
    load_disk_drivers(machine).await?;
    let started_from = boot_assets::started_from(machine).await;
    let started_from = started_from.unwrap_or_else(|error| {
        tracing::warn!("nobody can tell which disk this machine was started from: {error:#}");
        None
    });
    let Some(partition) = started_from else {
        return Ok(None);
    };
    let until = Instant::now() + LATE;
    while !is_here(machine, partition).await? && !machine.disk.is_given_up() {
        if Instant::now() >= until {
            tracing::error!(
                "the disk that this machine was started from is not here after {} s",
                LATE.as_secs()
            );
            machine.disk.give_up();
            break;
        }
        sleep(POLL).await;
        // A stick asks for its driver once its USB host has found it.
        load_disk_drivers(machine).await?;
    }
    Ok(Some(partition))
}

async fn is_here(machine: &Machine, partition: Uuid) -> anyhow::Result<bool> {
    let found = machine.disk.is_here(partition).await;
    found.context("look for the disk that this machine was started from")
}

/// Mounts the machine's disk, and waits for it if no disk fits yet.
pub(in crate::sequences) async fn mount(
    machine: &Machine,
    spec: &DiskSpec,
) -> Result<(), OwnedDiskError> {
    let until = Instant::now() + LATE;
    loop {
        let mounted = machine.disk.mount(spec).await;
        let is_missing = matches!(
            &mounted,
            Err(OwnedDiskError::Select(SelectError::None { .. }))
        );
        if !is_missing || Instant::now() >= until {
            return mounted;
        }
        sleep(POLL).await;
        if let Err(error) = load_disk_drivers(machine).await {
            tracing::warn!("{error:#}");
            return mounted;
        }
    }
}
