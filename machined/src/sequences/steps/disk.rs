//! The machine's disk, and the directories that the config wants on it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;

use super::boot_assets;
use super::late_disk;
use super::load_modules::load_disk_drivers;
use super::needs_uefi::refuse_without_uefi;
use super::replaced;
use crate::base::blocking_io::{self, ANSWER};
use crate::config::{Kubernetes, MachineConfig, UserVolumeKind};
use crate::config_source::persisted::Keep;
use crate::disk::{DiskPlan, DiskSpec, OwnedDiskError, Users, make_user_volume};
use crate::init_link::StartReason;
use crate::intent;
use crate::kubernetes;
use crate::machine::{Configured, Machine};
use crate::services::Cgroup;
use crate::status;

/// The directory of logs.
const LOGS: &str = "/var/log";

impl Keep {
    /// Decides for the boot of a generation. `is_handed_over`: its config is the one of the hand-over. For the same version that starts again,
    /// that is the settled one, which a staged one does not replace before the next start.
    pub(in crate::sequences) fn at_start(start: StartReason, is_handed_over: bool) -> Self {
        match start {
            StartReason::Restart | StartReason::Fresh if is_handed_over => Self::IfThereIsNone,
            _ => Self::InPlaceOfAny,
        }
    }
}

/// Mounts STATE and /var as the config says, and keeps the config there; does nothing without a config.
pub(in crate::sequences) async fn mount(machine: &Machine, keep: Keep) -> anyhow::Result<()> {
    let Some(configured) = machine.config() else {
        return Ok(());
    };
    // An earlier machined of this generation may have mounted them, or have died before.
    let is_mounted = machine.disk.status().borrow().var_mounted;
    if is_mounted {
        machine.os_extensions.layers.open();
        // The config is kept as well, perhaps one that waits for the next reboot.
        return Ok(());
    }
    let is_used = machine.disk.status().borrow().disk.is_some();
    if !is_used {
        refuse_without_uefi(&configured.config)?;
    }
    // A config need not name the disk that the machine was started from.
    if boot_assets::came_from_a_disk(machine).await? {
        find_state(machine).await?;
        replaced::at_start(machine).await?;
    }
    mount_as(machine, intent::disk_to_own(&configured.config)?).await?;
    machine.os_extensions.layers.open();
    match machine.disk.state().map(Path::to_owned) {
        Some(state) => keep_config(machine, state, keep).await,
        None => Ok(()),
    }
}

async fn mount_as(machine: &Machine, spec: DiskSpec) -> anyhow::Result<()> {
    // Disk drivers cost a second and two MiB, which a machine without a disk saves.
    if spec.disk.is_some() {
        load_disk_drivers(machine).await?;
    }
    let mut mounted = late_disk::mount(machine, &spec).await;
    // Containers that live on keep a damaged file system from being repaired. Keeping them may not cost the machine its disk; without the disk they
    // could not start again.
    if let Err(error) = &mounted
        && error.may_be_due_to_users()
        && intent::end_living_containers(
            machine,
            &format!("the disk cannot be mounted beside it: {error}"),
        )
        .await
    {
        mounted = machine.disk.mount(&spec).await;
    }
    mounted.context("mount the machine's disk")
}

/// Returns the plan for the disk that this config gives to the machine; None if it gives none. Nothing is written.
pub(in crate::sequences) async fn dry_run(
    machine: &Machine,
    config: &MachineConfig,
) -> anyhow::Result<Option<DiskPlan>> {
    let spec = intent::disk_to_own(config)?;
    if spec.disk.is_none() {
        return Ok(None);
    }
    load_disk_drivers(machine).await?;
    Ok(machine.disk.dry_run(&spec).await?)
}

/// Mounts STATE from the disk with Instar's partitions, if there is one: for a machine without a config, or one that has not loaded it yet.
pub(in crate::sequences) async fn find_state(machine: &Machine) -> anyhow::Result<()> {
    if machine.disk.state().is_some() {
        return Ok(());
    }
    let started_from = late_disk::own_disk(machine).await?;
    let found = machine.disk.find_state(started_from).await;
    found.context("look for Instar's partitions on the disks")
}

/// Keeps the config on STATE over a reboot: never one on trial, which a reboot ends.
async fn keep_config(machine: &Machine, state: PathBuf, keep: Keep) -> anyhow::Result<()> {
    let Some(settled) = machine.settled_config() else {
        return Ok(());
    };
    let text = settled.text.clone();
    let written = machine.kept_config.write(state, text, keep, ANSWER).await;
    written.context("write the machine config to STATE")
}

/// Unmounts EPHEMERAL and STATE.
pub(in crate::sequences) async fn unmount(
    machine: &Machine,
    users: Users,
) -> Result<(), OwnedDiskError> {
    machine.log_disk.close().await;
    // They hold the file system of /var.
    let layers = machine.os_extensions.layers.clone();
    let closed = blocking_io::within(ANSWER, move || layers.close()).await;
    if let Err(error) = closed.map_err(anyhow::Error::from).flatten() {
        tracing::warn!("extensions stay over /usr until the generation ends: {error:#}");
    }
    machine.disk.unmount(users).await
}

/// Prepares /var: the logs and the user volumes.
pub(in crate::sequences) async fn prepare_volumes(machine: &Machine) {
    keep_logs(machine).await;
    make_user_volumes(machine);
    prepare_kubernetes(machine).await;
}

/// Starts keeping logs on the disk, if there is one; they are in memory already.
async fn keep_logs(machine: &Machine) {
    let (mounted, on_disk) = {
        let status = machine.disk.status();
        let status = status.borrow();
        (status.var_mounted, status.var.is_some())
    };
    if on_disk {
        if let Err(error) = machine.log_disk.open(Path::new(LOGS)).await {
            tracing::warn!("logs are kept in memory alone: cannot make {LOGS}: {error}");
        }
    } else if mounted {
        tracing::info!("logs are kept in memory alone, as /var is: they end with this generation");
    }
    machine.log_disk.settle();
}

/// Makes the directories and files that the container of Kubernetes starts with, if the machine runs it. The plan of a container that does not
/// run is removed: machined gives it again once its extensions are checked.
async fn prepare_kubernetes(machine: &Machine) {
    let runs_it = |configured: Arc<Configured>| configured.config.kubernetes.is_some();
    if !machine.config().is_some_and(runs_it) {
        return;
    }
    let prepare = async {
        let is_running = Cgroup::where_it_runs(Kubernetes::CONTAINER)?.is_some();
        if !is_running {
            let forgotten = machine.node_plan.forget().await;
            forgotten.context("remove the plan of before")?;
        }
        anyhow::Ok(kubernetes::prepare(is_running)?)
    };
    if let Err(error) = prepare.await {
        let reason = format!("its directories and files cannot be made: {error:#}");
        tracing::warn!("Kubernetes: {reason}");
        status::note_problem(machine, "Kubernetes", &reason);
    }
}

/// Makes the user volumes. A volume that cannot be made is a problem for the containers that wait for it, and does not stop the boot.
fn make_user_volumes(machine: &Machine) {
    let Some(configured) = machine.config() else {
        return;
    };
    let volumes = configured.config.user_volumes.iter();
    for volume in volumes.filter(|volume| volume.kind == UserVolumeKind::Directory) {
        if let Err(error) = make_user_volume(&volume.name.path()) {
            let reason = format!("{:#}", anyhow::Error::from(error));
            tracing::warn!("user volume {}: {reason}", volume.name);
            status::note_problem(machine, &format!("user volume {}", volume.name), &reason);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config_source::persisted;
    use crate::sequences::image_pins::machine_for_tests::{configured, unbooted};

    #[test]
    fn only_a_version_that_starts_again_with_its_own_config_leaves_the_one_on_state() {
        use Keep::{IfThereIsNone, InPlaceOfAny};
        use StartReason::{Boot, Fresh, Next, Restart, Rollback};
        // The start → the decision for a config of a source or a caller, and for one of the hand-over.
        for (start, found, handed_over) in [
            (Boot, InPlaceOfAny, InPlaceOfAny),
            (Next, InPlaceOfAny, InPlaceOfAny),
            (Rollback, InPlaceOfAny, InPlaceOfAny),
            (Restart, InPlaceOfAny, IfThereIsNone),
            (Fresh, InPlaceOfAny, IfThereIsNone),
        ] {
            assert_eq!(Keep::at_start(start, false), found, "{start:?}");
            assert_eq!(Keep::at_start(start, true), handed_over, "{start:?}");
        }
    }

    #[tokio::test]
    async fn a_mount_keeps_no_config_on_trial_and_no_older_one_than_a_staged_one() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        let settled = configured(&[]);
        machine.set_config(settled.clone());
        machine.begin_trial(|_| crate::base::task::spawn(async {}).abort_handle());
        let document = "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: tried";
        machine.set_config(configured(&[document]));

        let staged = "the staged one";
        // The config on STATE, and the decision → the config there afterwards.
        for (there, keep, expected) in [
            (None, Keep::IfThereIsNone, settled.text.as_str()),
            (None, Keep::InPlaceOfAny, &settled.text),
            (Some(staged), Keep::IfThereIsNone, staged),
            (Some(staged), Keep::InPlaceOfAny, &settled.text),
        ] {
            let state = tempfile::tempdir().unwrap();
            if let Some(text) = there {
                persisted::write(state.path(), text).unwrap();
            }
            let path = state.path().to_owned();
            keep_config(&machine, path, keep).await.unwrap();
            let kept = std::fs::read_to_string(persisted::path(state.path())).unwrap();
            assert_eq!(kept, expected, "{there:?} {keep:?}");
        }
    }
}
