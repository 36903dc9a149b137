//! The second half of a boot: all that the config asks for, after the disk is there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Boot, before, records};
use crate::config::Kubernetes;
use crate::config_source::persisted::Keep;
use crate::init_link::StartReason;
use crate::intent;
use crate::machine::Machine;
use crate::modules::Class;
use crate::sequences::image_updates;
use crate::sequences::install::install_if_missing;
use crate::sequences::os_extensions;
use crate::sequences::settings::{self, When};
use crate::sequences::steps::disk;
use crate::sequences::steps::overlay::load_overlay;
use crate::sequences::steps::{count_start, last_known_time, release_memory};
use crate::sequences::upgrade::{committed, trial_record};
use crate::sequences::{Phase, Sequence, Task};
use crate::services::Cgroup;
use crate::status;
use crate::upgrade::trial::RecordStep;
use crate::upgrade::{FailedImages, Handover, ReleaseOrigin, UpgradeRecord};

/// Time before init's deadline at which the wait for a disk ends: a version on trial then has time to note the reason and to reboot.
const BEFORE_TRY_AGAIN: Duration = Duration::from_secs(20);

/// Why a container that was to live through the upgrade does not.
const ENDED_BY_INIT: &str = "was ended by init with the generation before: beside it the machine did not look freshly booted; the console says by what";

/// The begin of what is told of a container that the generation before has ended.
const ENDED_BEFORE: &str = "was ended with the generation before";

/// Returns the sequence. The record of an upgrade that this boot has to finish, if there is one, is sent to `tried`.
pub(super) fn sequence(boot: &Boot, tried: oneshot::Sender<UpgradeRecord>) -> Sequence {
    let machine = &boot.machine;
    let until = boot.early.has_deadline();
    let until = until.then(|| before(boot.deadline, BEFORE_TRY_AGAIN));
    let handed_over = boot.handover.machine_config.as_ref();
    let is_handed_over = machine
        .config()
        .is_some_and(|configured| handed_over == Some(&configured.text));
    let keep = Keep::at_start(boot.start, is_handed_over);
    let step = boot.early.record_step(boot.start);
    let keeps_workloads = machine.generation.keeps_workloads;
    let ended = why_ended(boot.start, keeps_workloads, &boot.handover);
    // A machined that starts again may find an older hand-over, whose processes are of no interest any more.
    if matches!(boot.start, StartReason::Next | StartReason::Rollback) {
        machine.init.note_earlier_exits(&boot.handover.exits);
    }
    let phases = vec![
        Phase::new(
            "machine",
            vec![
                Task::new("disk", mount_disk(machine.clone(), keep, until)),
                Task::new("settings", apply_settings(machine.clone())),
                Task::new("watchdog", bring_watchdog(machine.clone())),
            ],
        ),
        Phase::of(
            "upgradeRecord",
            take_up_record(machine.clone(), step, tried),
        ),
        Phase::of("install", install_if_missing(machine.clone())),
        Phase::of(
            "releaseMemory",
            release_memory::before_services(machine.clone()),
        ),
        Phase::of(
            "startServices",
            start_services(machine.clone(), boot.start, ended),
        ),
    ];
    Sequence {
        name: "boot",
        phases,
    }
}

async fn mount_disk(
    machine: Arc<Machine>,
    keep: Keep,
    until: Option<Instant>,
) -> anyhow::Result<()> {
    let mounted = disk::mount(&machine, keep);
    match until {
        Some(until) => tokio::time::timeout_at(until, mounted).await.context(
            "the disk took longer than a version on trial has, to answer or to be repaired; the version before has no such limit",
        )??,
        None => mounted.await?,
    }
    last_known_time::go_on_from(&machine);
    settings::apply_at(&machine, When::WithDisk).await;
    match FailedImages::load(&records(&machine)) {
        Ok(on_disk) => machine.upgrades.failed_images().merge(on_disk),
        // Not worth staying down for: an image that failed before fails again, and is rolled back again.
        Err(error) => tracing::error!("the record of failed images is lost: {error:#}"),
    }
    committed::take_up_floor(&machine);
    if let Err(error) = machine.images_in_force.open(&records(&machine)) {
        tracing::error!("images are looked up anew, which were in force is lost: {error:#}");
    }
    if let Err(error) = machine.image_updates.open(&records(&machine)) {
        tracing::error!("which updates of images wait is found out anew: {error:#}");
    }
    image_updates::count_boot(&machine).await;
    if let Err(error) = machine.pins.open(&records(&machine)) {
        tracing::error!("pins by callers are lost, and pinned names are resolved anew: {error:#}");
    }
    if let Err(error) = machine.follow.open(&records(&machine)) {
        tracing::error!("what is known of the channel begins anew: {error:#}");
    }
    if let Err(error) = machine.os_extensions.record.open() {
        tracing::warn!(
            "extensions of the machine: the record of those in force begins anew: {error:#}"
        );
    }
    // Before the first image is removed: it names those that a node may go back to.
    if let Err(error) = machine.node_record.open(Path::new(Kubernetes::HOME)) {
        tracing::warn!("Kubernetes: the record of extensions begins anew: {error:#}");
    }
    Ok(())
}

/// Acts on the record of the last upgrade: the upgrade has failed, or this boot tries its version.
async fn take_up_record(
    machine: Arc<Machine>,
    step: RecordStep,
    tried: oneshot::Sender<UpgradeRecord>,
) -> anyhow::Result<()> {
    let taken_up = act_on_record(&machine, step, tried).await;
    // Now it is known whether another version was given up for this one.
    count_start::count(&machine, records(&machine));
    taken_up
}

async fn act_on_record(
    machine: &Arc<Machine>,
    step: RecordStep,
    tried: oneshot::Sender<UpgradeRecord>,
) -> anyhow::Result<()> {
    let settled = match step {
        RecordStep::Load => trial_record::load_record(machine).await,
        RecordStep::GiveUp => trial_record::give_up_last(machine).await.map(|()| None),
        RecordStep::Leave => return Ok(()),
    };
    match settled {
        // The boot waits for the record.
        Ok(Some(record)) => {
            if let Some(origin) = record.upgrade.origin() {
                machine.store.put(ReleaseOrigin::RUNNING, origin);
            }
            drop(tried.send(record));
        }
        Ok(None) => {}
        // A problem with the last upgrade does not keep the machine from working.
        Err(error) => {
            tracing::error!("the last upgrade cannot be settled: {error:#}");
            status::note_problem(machine, "upgrade", &format!("{error:#}"));
        }
    }
    Ok(())
}

/// Loads the driver of a watchdog, if the machine has one: init opens the watchdog within seconds, and from then on a machine that hangs is
/// reset. A machine without one boots all the same.
async fn bring_watchdog(machine: Arc<Machine>) -> anyhow::Result<()> {
    if let Err(error) = machine.drivers()?.load_for(Class::Watchdog).await {
        tracing::warn!(
            "no driver for the watchdog: {:#}",
            anyhow::Error::from(error)
        );
    }
    Ok(())
}

async fn apply_settings(machine: Arc<Machine>) -> anyhow::Result<()> {
    settings::apply_at(&machine, When::BesideDisk).await;
    Ok(())
}

/// Returns the containers that ran before this generation and do not live on, each with the reason to tell: those that were ended for the
/// upgrade, and those that were left running and that init has ended all the same, at the upgrade or when it went back to this version.
fn why_ended(
    start: StartReason,
    keeps_workloads: bool,
    handover: &Handover,
) -> BTreeMap<String, String> {
    if !matches!(start, StartReason::Next | StartReason::Rollback) {
        return BTreeMap::new();
    }
    let ended = handover.ended.iter();
    let ended = ended.map(|(name, why)| (name.clone(), format!("{ENDED_BEFORE}: {why}")));
    let left = handover.left_running.iter().filter(|_| !keeps_workloads);
    let by_init = left.map(|name| (name.clone(), ENDED_BY_INIT.to_owned()));
    ended.chain(by_init).collect()
}

async fn start_services(
    machine: Arc<Machine>,
    start: StartReason,
    ended: BTreeMap<String, String>,
) -> anyhow::Result<()> {
    let Some(configured) = machine.config() else {
        return Ok(());
    };
    if !configured.config.containers.is_empty() {
        load_overlay(&machine).await?;
    }
    // Containers may mount their files.
    os_extensions::settle(&machine).await;
    if !configured.config.os_extensions.is_empty() {
        // The gate of an upgrade may wait for such a container, whose extension is not here yet.
        machine.os_extensions.begin();
    }
    // Those of a config on trial are left when machined dies: the trial has ended with it.
    if machine.generation.keeps_workloads || start == StartReason::Restart {
        intent::end_unnamed_containers(&machine, &configured).await;
    }
    machine.services.attend();
    // Some may have ended while no machined ran to write the share of the others.
    Cgroup::weigh_workloads();
    for container in &configured.config.containers {
        // A container that lives on is listed already.
        if machine.services.get(container.name.as_str()).is_none() {
            let definition = intent::service(&machine, &configured, container)?;
            let service = machine.services.add(definition)?;
            let name = container.name.as_str();
            if let Some(why) = ended.get(name) {
                machine.services.tell(name, why);
            }
            service.start();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_after_an_upgrade_and_after_a_rollback() {
        let handover = Handover {
            left_running: vec!["web".to_owned()],
            ended: [("db".to_owned(), "it mounts \"/etc\"".to_owned())].into(),
            ..Handover::default()
        };
        let in_order = "was ended with the generation before: it mounts \"/etc\"";
        for (start, keeps_workloads, is_told, by_init) in [
            (StartReason::Next, false, true, true),
            (StartReason::Rollback, false, true, true),
            (StartReason::Next, true, true, false),
            (StartReason::Rollback, true, true, false),
            (StartReason::Boot, false, false, false),
            (StartReason::Restart, false, false, false),
        ] {
            let told = why_ended(start, keeps_workloads, &handover);
            let told = |name: &str| told.get(name).map(String::as_str);
            let case = format!("{start:?} {keeps_workloads}");
            assert_eq!(told("db"), is_told.then_some(in_order), "{case}");
            assert_eq!(told("web"), by_init.then_some(ENDED_BY_INIT), "{case}");
        }
    }
}
