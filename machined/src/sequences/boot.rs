//! The boot of a generation: config, API and network first, then EPHEMERAL, the clock and services; then the verdict.
//!
//! The API comes up as early as it can, and stays up whatever fails after it: a machine that cannot be asked what is
//! wrong with it cannot be mended from afar.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context as _;
use instar_api::events::EventPayload;
use instar_api::machine::ConfigLoadErrorEvent;
use tokio::time::Instant;

use super::bless_later;
use super::boot_assets;
use super::current_handover;
use super::disk;
use super::ending::leave;
use super::find_config::{self, Found, find_config};
use super::install::{install_if_missing, install_without_config};
use super::overlay::load_overlay;
use super::trial::{self, is_the_boot};
use super::{
    Phase, Sequence, Task, emit_failure, last_known_time, maintenance, release_memory, run,
    settle_upgrade,
};
use crate::blocking_io::{self, ANSWER};
use crate::console;
use crate::event_log::ActorId;
use crate::init_link::{End, StartReason};
use crate::intent;
use crate::machine::Machine;
use crate::modules::Class;
use crate::operation_lock::Operation;
use crate::resources::{MachineStage, Problem};
use crate::services::{Apid, Cgroup, Definition, HealthCheck, Probe};
use crate::statistics;
use crate::status;
use crate::upgrade::{FailedImages, Gate, Handover, PendingUpgrade, UpgradeRecord};

/// The verdict is told this long before init's deadline, so that the reason is told too.
const BEFORE_DEADLINE: Duration = Duration::from_secs(5);
/// A disk that is not there this long before init's deadline leaves a version on trial the time to note why, and to reboot.
const BEFORE_TRY_AGAIN: Duration = Duration::from_secs(20);
/// apid that takes longer than this to start is broken.
const APID: Duration = Duration::from_secs(60);
/// The config's server has this long until the config on STATE is used, or the machine waits for it in maintenance mode; where
/// init's deadline is near, half of what is left of it.
const CONFIG_SERVER: Duration = Duration::from_secs(20);

/// What a generation begins with.
pub struct Beginning {
    /// Why it was started.
    pub start: StartReason,
    /// What was given up for it, on a rollback.
    pub rollback: Option<Rollback>,
    /// When init gives it up unless it has become healthy.
    pub deadline: Instant,
    /// What the previous generation left.
    pub handover: Option<Handover>,
    /// The API's listening socket.
    pub listener: OwnedFd,
}

/// The upgrade that did not work, in init's words.
pub struct Rollback {
    /// How it failed.
    pub cause: String,
    /// The version that was given up.
    pub failed_version: String,
}

/// Boots the generation and tells init how it went.
pub async fn boot(machine: Arc<Machine>, beginning: Beginning) {
    let Beginning {
        start,
        rollback,
        deadline,
        handover,
        listener,
    } = beginning;
    // None other than a healthy generation of this boot leaves one.
    let was_healthy = handover.is_some();
    let handover = handover.unwrap_or_default();
    let on_soft_trial = trial::came_without_reboot(&machine, start, &handover);
    let nobody = ActorId::default();
    // Nobody else can hold it yet: the API is not up.
    let mut lock = machine.operations.lock_when_free(Operation::Boot).await;
    // First in the history, so that a client that waits for the upgrade sees its failure before anything else.
    tell_rollback(&machine, &rollback, &handover);
    let interrupted = interrupted_upgrade(start, &handover, &machine.running.version);
    if let Some(upgrade) = interrupted {
        tell_interruption(&machine, upgrade);
    }
    let is_given_up = rollback.is_some() || interrupted.is_some();
    machine.enter(MachineStage::Booting);
    if start == StartReason::Restart {
        machine.disk.adopt();
    }

    let has_deadline = trial::has_deadline(&machine, start, &handover, was_healthy).await;
    let server = CONFIG_SERVER.min(deadline.saturating_duration_since(Instant::now()) / 2);
    let sequence = become_reachable(&machine, &start, &handover, server, listener);
    let mut outcome = run(sequence, &nobody, &machine.events).await;
    // What comes next takes as long as disks and the network do, and whoever waits can ask.
    let mut is_healthy = !has_deadline && tell_healthy(&machine).await;
    console::start_if_there_is_one(&machine);
    if outcome.is_ok() && machine.config().is_none() {
        if is_the_boot(start)
            && let Some(record) = settle_upgrade::counted_without_config(&machine, start).await
        {
            return try_again(&machine, record, &no_config(&machine)).await;
        }
        // A machine without a config has nothing else to prove.
        is_healthy = is_healthy || tell_healthy(&machine).await;
        if is_healthy {
            commit(&machine, &start, None, false, false).await;
        }
        // Where the config is to come from a server, so is what is to be installed.
        if start == StartReason::Boot && !find_config::has_server() {
            install_without_config(&machine).await;
        }
        drop(lock);
        let asking = find_config::keep_asking(&machine);
        status::maintenance(&machine).await;
        drop(asking);
        wish_network(&machine);
        lock = machine.operations.lock_when_free(Operation::Boot).await;
    }
    let tried = Arc::new(OnceLock::new());
    if outcome.is_ok() {
        let until = has_deadline.then(|| before(deadline, BEFORE_TRY_AGAIN));
        let sequence = become_useful(&machine, &start, until, is_given_up, &tried);
        let steps = run(sequence, &nobody, &machine.events);
        outcome = match has_deadline {
            true => steps.await,
            // A disk may not answer, or be repaired for hours: whoever has no use for that can end it. The next boot does all again.
            false => match lock.interruptible(steps).await {
                Ok(outcome) => outcome,
                Err(interrupted) => {
                    tracing::warn!("the boot is {interrupted}");
                    return status::follow(machine).await;
                }
            },
        };
    }
    let tried = match tried.get().cloned() {
        None if is_the_boot(start) => settle_upgrade::counted(&machine, start).await,
        tried => tried,
    };
    let services_up = match &tried {
        Some(record) => record.services_up.clone(),
        None => handover.services_up.clone(),
    };
    let on_trial = on_soft_trial || tried.is_some();
    let verdict = match outcome {
        Err(failed) if on_trial => Err(format!("{failed:#}")),
        Ok(()) if on_trial => wait_at_gate(&machine, services_up, deadline).await,
        // There is nothing to go back to: the API tells what is wrong.
        Err(failed) => {
            status::note_problem(&machine, "boot", &format!("{failed:#}"));
            Ok(())
        }
        Ok(()) => Ok(()),
    };
    match (verdict, tried) {
        (Ok(()), tried) => {
            let tried = tried.map(|record| record.upgrade);
            let upgrade = tried.or_else(|| handover.upgrade.clone().filter(|_| on_trial));
            if is_healthy || tell_healthy(&machine).await {
                commit(&machine, &start, upgrade.as_ref(), on_trial, on_soft_trial).await;
            }
        }
        (Err(reason), Some(record)) => try_again(&machine, record, &reason).await,
        (Err(reason), None) => give_up(&machine, &reason).await,
    }
    drop(lock);
    tokio::spawn(release_memory::after_boot(machine.clone()));
    status::follow(machine).await;
}

/// Config, API and network: what it takes to be asked.
fn become_reachable(
    machine: &Arc<Machine>,
    start: &StartReason,
    handover: &Handover,
    server: Duration,
    listener: OwnedFd,
) -> Sequence {
    let handed_over = handover.machine_config.clone();
    let phases = vec![
        Phase::of(
            "loadConfig",
            load_config(machine.clone(), handed_over, *start, server),
        ),
        Phase::new(
            "network",
            vec![
                Task::new("startApi", start_api(machine.clone(), listener)),
                Task::new("network", bring_up_network(machine.clone())),
            ],
        ),
    ];
    Sequence {
        name: "initialize",
        phases,
    }
}

/// Everything that the config asks for; with a disk that is there by then.
fn become_useful(
    machine: &Arc<Machine>,
    start: &StartReason,
    until: Option<Instant>,
    is_given_up: bool,
    tried: &Arc<OnceLock<UpgradeRecord>>,
) -> Sequence {
    let phases = vec![
        Phase::new(
            "machine",
            vec![
                Task::new("disk", mount_disk(machine.clone(), until)),
                Task::new("time", start_clock(machine.clone())),
                Task::new("watchdog", bring_watchdog(machine.clone())),
            ],
        ),
        Phase::of(
            "settleUpgrade",
            settle_upgrade(machine.clone(), *start, is_given_up, tried.clone()),
        ),
        Phase::of("install", install_if_missing(machine.clone())),
        Phase::of("releaseMemory", release_memory::before_services()),
        Phase::of("startServices", start_services(machine.clone())),
    ];
    Sequence {
        name: "boot",
        phases,
    }
}

/// The upgrade that machined died over, before it or after it was rolled back: the hand-over, which only a healthy machined replaces,
/// names a version that does not run.
fn interrupted_upgrade<'a>(
    start: StartReason,
    handover: &'a Handover,
    running: &str,
) -> Option<&'a PendingUpgrade> {
    let upgrade = handover.upgrade.as_ref()?;
    let has_died = matches!(start, StartReason::Restart | StartReason::Fresh);
    (has_died && upgrade.to != running).then_some(upgrade)
}

/// Says that an upgrade came to nothing, to whoever asked for it. Its image may be as good as any.
fn tell_interruption(machine: &Machine, upgrade: &PendingUpgrade) {
    let reason = format!(
        "the upgrade to {} was given up: machined died, and {} runs",
        upgrade.to, machine.running.version
    );
    tracing::error!("{reason}");
    emit_failure(&machine.events, &upgrade.actor, "upgrade", reason);
}

/// Says why the previous upgrade is not there, to whoever asked for it, and remembers its image.
fn tell_rollback(machine: &Machine, rollback: &Option<Rollback>, handover: &Handover) {
    let Some(Rollback {
        cause,
        failed_version,
    }) = rollback
    else {
        return;
    };
    tracing::error!(
        "version {failed_version} was given up, {} runs again: {cause}",
        machine.running.version
    );
    let Some(upgrade) = &handover.upgrade else {
        return;
    };
    machine
        .failed_images()
        .remember(upgrade.digest.clone(), cause.to_string());
    let reason = format!("version {failed_version} was rolled back: {cause}");
    emit_failure(&machine.events, &upgrade.actor, "upgrade", reason);
}

async fn load_config(
    machine: Arc<Machine>,
    handed_over: Option<String>,
    start: StartReason,
    server: Duration,
) -> anyhow::Result<()> {
    let found = match handed_over {
        Some(text) => {
            find_config::usable(text.into_bytes()).map(|usable| Found::Config(Box::new(usable)))
        }
        None => find_config(&machine, server).await,
    };
    let loaded = match found {
        Ok(Found::Config(configured)) => {
            machine.set_config(Arc::from(configured));
            Ok(())
        }
        Ok(Found::Nothing) => {
            tracing::warn!("no machine config: maintenance mode");
            maintenance::begin(&machine).await;
            Ok(())
        }
        // The version before understood it; that is what runs again then.
        Err(error) if matches!(start, StartReason::Next) => Err(error),
        Ok(Found::NotYet(error)) | Err(error) => {
            tell_no_config(&machine, format!("{error:#}"));
            maintenance::begin(&machine).await;
            Ok(())
        }
    };
    last_known_time::go_on_from(&machine);
    wish_network(&machine);
    loaded
}

fn tell_no_config(machine: &Machine, error: String) {
    tracing::error!("maintenance mode: {error}");
    status::note_problem(machine, "config", &error);
    let event = ConfigLoadErrorEvent { error };
    machine
        .events
        .emit(&ActorId::default(), EventPayload::ConfigLoadError(event));
}

async fn start_api(machine: Arc<Machine>, listener: OwnedFd) -> anyhow::Result<()> {
    let keys = intent::keep_identity(&machine);
    let apid = machine.services.add(Definition {
        id: "apid".to_owned(),
        workload: Arc::new(Apid::new(
            listener,
            keys,
            machine.watch_settled(),
            Cgroup::beside_machined("apid")?,
            statistics::memory()?.memtotal << 10,
        )),
        depends_on: Vec::new(),
        health: Some(HealthCheck {
            probe: Probe::Own,
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
            failures: 3,
        }),
        controllable: false,
        required: true,
        judged: true,
        // A process that runs and does not answer would lock everybody out.
        restart_unhealthy: true,
    })?;
    apid.start();
    tokio::time::timeout(APID, apid.up())
        .await
        .context("apid does not answer")?;
    tracing::info!("the API answers on port {}", instar_api::PORT);
    Ok(())
}

async fn bring_up_network(machine: Arc<Machine>) -> anyhow::Result<()> {
    let drivers = machine.drivers()?;
    drivers
        .load_for(Class::Network)
        .await
        .context("load the drivers of the network")?;
    Ok(())
}

/// Has the network be as the config says, or as it is without one.
fn wish_network(machine: &Machine) {
    match machine.config() {
        Some(configured) => machine
            .network
            .set_wish(intent::network(&configured.config)),
        None => machine.network.set_default_wish(),
    }
}

async fn mount_disk(machine: Arc<Machine>, until: Option<Instant>) -> anyhow::Result<()> {
    let mounted = disk::mount(&machine);
    match until {
        Some(until) => tokio::time::timeout_at(until, mounted).await.context(
            "the disk took longer than a version on trial has, to answer or to be repaired; the version before has no such limit",
        )??,
        None => mounted.await?,
    }
    last_known_time::go_on_from(&machine);
    disk::furnish(&machine).await;
    match FailedImages::load(&records(&machine)) {
        Ok(on_disk) => machine.failed_images().merge(on_disk),
        // Not worth staying down for: what failed once fails again, and is rolled back again.
        Err(error) => tracing::error!("the record of failed images is lost: {error:#}"),
    }
    if let Err(error) = machine.images_in_force.open(&records(&machine)) {
        tracing::error!("images are looked up anew, which were in force is lost: {error:#}");
    }
    Ok(())
}

/// Where the machine's records are: on STATE, or with everything else in memory.
fn records(machine: &Machine) -> PathBuf {
    let state = machine.disk.state().unwrap_or(Path::new("/var/lib/instar"));
    state.to_owned()
}

/// An upgrade that a reboot was to finish: has it failed, or is this the version that is tried?
async fn settle_upgrade(
    machine: Arc<Machine>,
    start: StartReason,
    is_given_up: bool,
    tried: Arc<OnceLock<UpgradeRecord>>,
) -> anyhow::Result<()> {
    let settled = match start {
        StartReason::Boot => settle_upgrade::look_back(&machine).await,
        // Why has been told already.
        _ if is_given_up => settle_upgrade::give_up_last(&machine).await.map(|()| None),
        _ => return Ok(()),
    };
    match settled {
        Ok(Some(record)) => drop(tried.set(record)),
        Ok(None) => {}
        // The machine is more than its upgrades.
        Err(error) => {
            tracing::error!("the last upgrade cannot be settled: {error:#}");
            status::note_problem(&machine, "upgrade", &format!("{error:#}"));
        }
    }
    Ok(())
}

/// The driver of a watchdog, where the machine has one: init opens it within seconds, and from then on a machine that hangs is
/// reset. Without one the machine is as good as others.
async fn bring_watchdog(machine: Arc<Machine>) -> anyhow::Result<()> {
    if let Err(error) = machine.drivers()?.load_for(Class::Watchdog).await {
        tracing::warn!(
            "no driver for the watchdog: {:#}",
            anyhow::Error::from(error)
        );
    }
    Ok(())
}

async fn start_clock(machine: Arc<Machine>) -> anyhow::Result<()> {
    if let Some(configured) = machine.config() {
        machine.clock.set_wish(intent::time(&configured.config));
    }
    Ok(())
}

async fn start_services(machine: Arc<Machine>) -> anyhow::Result<()> {
    let Some(configured) = machine.config() else {
        return Ok(());
    };
    if !configured.config.containers.is_empty() {
        load_overlay(&machine).await?;
    }
    for container in &configured.config.containers {
        let definition = intent::service(&machine, &configured, container)?;
        machine.services.add(definition)?.start();
    }
    Ok(())
}

async fn wait_at_gate(
    machine: &Arc<Machine>,
    services: Vec<String>,
    deadline: Instant,
) -> Result<(), String> {
    let probes = match machine.config() {
        Some(configured) => {
            intent::gate_probes(&configured.config).map_err(|error| format!("{error:#}"))?
        }
        None => Vec::new(),
    };
    let gate = Gate { services, probes };
    tokio::time::timeout_at(before(deadline, BEFORE_DEADLINE), gate.pass(machine))
        .await
        .map_err(|_| format!("not healthy in time: {}", gate.missing(machine).join("; ")))
}

fn before(deadline: Instant, time: Duration) -> Instant {
    deadline.checked_sub(time).unwrap_or(deadline)
}

async fn give_up(machine: &Machine, reason: &str) {
    tracing::error!("this generation gives itself up: {reason}");
    if let Err(error) = machine.init.give_up(reason).await {
        tracing::error!("init did not take it back, its deadline will: {error:#}");
    }
    std::future::pending().await
}

/// The version that was booted for the first time is not healthy: the loader has counted this try, and takes the version
/// before when it has none left.
async fn try_again(machine: &Arc<Machine>, record: UpgradeRecord, reason: &str) {
    let version = record.upgrade.to.clone();
    tracing::error!("{version} is not healthy, the machine reboots: {reason}");
    if let Err(error) = settle_upgrade::note_failure(machine, record, reason) {
        tracing::error!("the reason is lost: {error:#}");
    }
    machine.enter(MachineStage::Rebooting);
    machine.services.stop_workloads().await;
    if let Err(error) = disk::unmount(machine).await {
        tracing::warn!("the disk is left to init's teardown: {error:#}");
    }
    leave(machine, End::Reboot).await;
}

/// Why there is no machine config, as far as that is an error.
fn no_config(machine: &Machine) -> String {
    let problem: Option<Problem> = machine.store.get("config");
    problem.map_or_else(
        || "it finds no machine config".to_owned(),
        |problem| problem.reason,
    )
}

/// Tells init that the generation works; from then on init has no deadline for it. Gives whether init has taken that.
async fn tell_healthy(machine: &Machine) -> bool {
    let told = machine.init.healthy(&machine.generation.boot_id).await;
    told.inspect_err(|error| tracing::error!("init did not take the report of health: {error:#}"))
        .is_ok()
}

/// Keeps a generation that works. `passed_gate`: an upgrade was under way, this one, and has proved itself; `is_soft`: it came without
/// a reboot.
async fn commit(
    machine: &Arc<Machine>,
    start: &StartReason,
    upgrade: Option<&PendingUpgrade>,
    passed_gate: bool,
    is_soft: bool,
) {
    if *start == StartReason::Boot {
        tracing::info!("booted {}", machine.running.version);
    }
    if let Some(upgrade) = upgrade {
        // Tried again by force, it has proved itself.
        machine.failed_images().forget(&upgrade.digest);
        if !upgrade.from.is_empty() {
            tracing::info!("upgraded from {} to {}", upgrade.from, upgrade.to);
        }
    }
    if *start == StartReason::Boot
        && let Err(error) = boot_assets::settle_next_loader(machine).await
    {
        tracing::error!("a new boot loader is not put in place: {error:#}");
    }
    tokio::spawn(current_handover::keep(machine.clone()));
    let soft = upgrade.filter(|_| is_soft);
    if let Err(error) = settle_upgrade::keep(machine, soft, passed_gate).await {
        bless_later::start(machine, soft.cloned(), passed_gate, &error);
    }
    let (failed, records) = (machine.failed_images().clone(), records(machine));
    let saved = blocking_io::within(ANSWER, move || failed.save(&records)).await;
    if let Err(error) = saved.map_err(anyhow::Error::from).and_then(|saved| saved) {
        tracing::warn!("the record of failed images is not kept over a reboot: {error:#}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upgrade_that_machined_died_over_is_given_up() {
        let upgrade = PendingUpgrade {
            to: "v0.2.0".to_owned(),
            ..PendingUpgrade::default()
        };
        let handover = Handover {
            upgrade: Some(upgrade),
            ..Handover::default()
        };
        let is_interrupted =
            |start, running| interrupted_upgrade(start, &handover, running).is_some();
        assert!(is_interrupted(StartReason::Restart, "v0.1.0"));
        assert!(is_interrupted(StartReason::Fresh, "v0.1.0"));
        // It is what runs, and on trial.
        assert!(!is_interrupted(StartReason::Restart, "v0.2.0"));
        // init says why itself.
        assert!(!is_interrupted(StartReason::Rollback, "v0.1.0"));
        // A boot finds no hand-over.
        assert!(!is_interrupted(StartReason::Boot, "v0.1.0"));
        assert!(
            interrupted_upgrade(StartReason::Restart, &Handover::default(), "v0.1.0").is_none()
        );
    }
}
