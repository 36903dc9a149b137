//! The boot of a generation: config, API, network, EPHEMERAL, services; then the verdict.
//!
//! The API comes up as early as it can, and stays up whatever fails after it: a machine that cannot be asked what is
//! wrong with it cannot be mended from afar.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use super::{Phase, Sequence, Task, emit_failure, run};
use crate::config::{self, Sources};
use crate::event_log::ActorId;
use crate::init_link::Start;
use crate::intent;
use crate::machine::{Configured, Machine};
use crate::modules::{Class, Drivers};
use crate::resources::{EphemeralFact, MachineStage};
use crate::services::{Apid, Definition};
use crate::upgrade::{FailedImages, Gate, Handover};
use crate::{disk, status, time};

/// Where images that failed are remembered.
const FAILED_IMAGES: &str = "/var/lib/instar/failed-images.json";
/// The verdict is told this long before init's deadline, so that the reason is told too.
const BEFORE_DEADLINE: Duration = Duration::from_secs(5);

/// What a generation begins with.
pub struct Beginning {
    /// Why it was started.
    pub start: Start,
    /// Time that init leaves it to become healthy.
    pub deadline: Duration,
    /// What the previous generation left.
    pub handover: Option<Handover>,
    /// The API's listening socket.
    pub listener: OwnedFd,
}

/// Boots the generation and tells init how it went.
pub async fn boot(machine: Arc<Machine>, beginning: Beginning) {
    // Nobody else can have it yet: the API is not up.
    let turn = machine.take_turn();
    let Beginning { start, deadline, handover, listener } = beginning;
    let handover = handover.unwrap_or_default();
    // First in the history, so that a client that waits for the upgrade sees its failure before anything else.
    tell_rollback(&machine, &start, &handover);
    machine.enter(MachineStage::Booting);

    let outcome = run(sequence(&machine, &start, &handover, listener), &ActorId::default(), &machine.events).await;
    let gate = Gate { services: handover.services_up.clone() };
    let verdict = match (&start, outcome) {
        (Start::Next, Err(failed)) => Err(failed.chain()),
        (Start::Next, Ok(())) => wait_at_gate(&machine, &gate, deadline).await,
        // There is nothing to go back to: the API tells what is wrong.
        (_, Err(failed)) => {
            status::note_problem(&machine, "boot", &failed.chain());
            Ok(())
        }
        (_, Ok(())) => Ok(()),
    };
    match verdict {
        Ok(()) => commit(&machine, &start, &handover).await,
        Err(reason) => {
            tracing::error!("this generation gives itself up: {reason}");
            if let Err(error) = machine.init.give_up(&reason).await {
                tracing::error!("init did not take it back, the deadline will: {error:#}");
            }
            std::future::pending::<()>().await;
        }
    }
    drop(turn);
    status::follow(machine).await;
}

fn sequence(
    machine: &Arc<Machine>,
    start: &Start,
    handover: &Handover,
    listener: OwnedFd,
) -> Sequence {
    let m = || machine.clone();
    Sequence {
        name: "boot",
        phases: vec![
            Phase::of("loadConfig", load_config(m(), handover.machine_config.clone())),
            Phase::of("startApi", start_api(m(), listener)),
            Phase::new(
                "machine",
                vec![
                    Task::new("network", bring_up_network(m())),
                    Task::new("ephemeral", mount_ephemeral(m(), handover.failed.clone())),
                    Task::new("time", start_clock(m())),
                ],
            ),
            Phase::of("startServices", start_services(m(), matches!(start, Start::Restart { .. }))),
        ],
    }
}

/// Says why the previous upgrade is not there, to whoever asked for it, and remembers its image.
fn tell_rollback(machine: &Machine, start: &Start, handover: &Handover) {
    let Start::Rollback { cause, failed_version } = start else { return };
    tracing::error!("version {failed_version} was given up, {} runs again: {cause}", machine.running.version);
    let Some(upgrade) = &handover.upgrade else { return };
    let reason = format!("version {failed_version} was rolled back: {cause}");
    machine.failed_images().remember(upgrade.digest.clone(), cause.clone());
    emit_failure(&machine.events, &upgrade.actor, "upgrade", reason);
}

async fn load_config(machine: Arc<Machine>, handed_over: Option<String>) -> anyhow::Result<()> {
    let text = match handed_over {
        Some(text) => Some(text),
        None => Sources::of_this_machine()?.find(&machine).await?,
    };
    let Some(text) = text else {
        tracing::warn!("no machine config: maintenance mode, bring one with apply-config --insecure");
        return Ok(());
    };
    let parsed = config::parse(text.as_bytes()).context("the machine config is unusable")?;
    for warning in &parsed.warnings {
        tracing::warn!("machine config: {warning}");
    }
    machine.set_config(Arc::new(Configured { text, config: parsed.config }));
    Ok(())
}

async fn start_api(machine: Arc<Machine>, listener: OwnedFd) -> anyhow::Result<()> {
    let identity = intent::keep_identity(&machine);
    let apid = machine.services.add(Definition {
        id: "apid".to_owned(),
        workload: Arc::new(Apid::new(listener, identity, machine.cgroup("apid")?)),
        depends_on: Vec::new(),
        health: None,
        controllable: false,
        required: true,
    })?;
    apid.start();
    tokio::time::timeout(Duration::from_secs(60), apid.up()).await.context("apid does not come up")?;
    Ok(())
}

async fn bring_up_network(machine: Arc<Machine>) -> anyhow::Result<()> {
    let drivers = Drivers::of_running_kernel().context("read the tables of the kernel's modules")?;
    drivers.load_for(Class::Network).await.context("load the drivers of the network")?;
    if let Some(configured) = machine.config() {
        machine.network.set_wish(intent::network(&configured.config));
    }
    Ok(())
}

async fn mount_ephemeral(machine: Arc<Machine>, handed_over: FailedImages) -> anyhow::Result<()> {
    let drivers = Drivers::of_running_kernel().context("read the tables of the kernel's modules")?;
    drivers.load_for(Class::Block).await.context("load the drivers of disks")?;
    let configured = machine.config();
    let wish = configured.as_ref().and_then(|configured| intent::disk(&configured.config));
    let ephemeral = disk::mount_ephemeral(wish.as_ref()).await.context("mount EPHEMERAL")?;
    tracing::info!("/var: {ephemeral}");
    machine.store.put(
        "EPHEMERAL",
        EphemeralFact {
            device: ephemeral.device().map(|device| device.display().to_string()),
            description: ephemeral.to_string(),
        },
    );
    machine.images.open().await.context("open the image store")?;
    let mut failed = machine.failed_images();
    failed.merge(FailedImages::load(Path::new(FAILED_IMAGES))?);
    failed.merge(handed_over);
    Ok(())
}

async fn start_clock(machine: Arc<Machine>) -> anyhow::Result<()> {
    let configured = machine.config();
    let wish = intent::time(configured.as_ref().map(|configured| &configured.config));
    let clock = time::start(wish);
    status::follow_clock(&machine, clock);
    Ok(())
}

async fn start_services(machine: Arc<Machine>, restarted: bool) -> anyhow::Result<()> {
    let Some(configured) = machine.config() else { return Ok(()) };
    if !configured.config.containers.is_empty() {
        let drivers = Drivers::of_running_kernel().context("read the tables of the kernel's modules")?;
        drivers.load_named("overlay").await.context("load the module overlay")?;
    }
    for container in &configured.config.containers {
        let definition = intent::service(&machine, &configured.config, container, restarted)?;
        machine.services.add(definition)?.start();
    }
    Ok(())
}

async fn wait_at_gate(machine: &Arc<Machine>, gate: &Gate, deadline: Duration) -> Result<(), String> {
    let patience = deadline.saturating_sub(BEFORE_DEADLINE);
    match tokio::time::timeout(patience, gate.pass(machine)).await {
        Ok(()) => Ok(()),
        Err(_) => Err(format!(
            "not healthy after {} s: {}",
            patience.as_secs(),
            gate.missing(machine).join("; ")
        )),
    }
}

async fn commit(machine: &Arc<Machine>, start: &Start, handover: &Handover) {
    if let Err(error) = machine.init.healthy(&machine.generation.boot_id).await {
        tracing::error!("init did not take the report of health: {error:#}");
        return;
    }
    match (start, &handover.upgrade) {
        (Start::Next, Some(upgrade)) => {
            machine.failed_images().forget(&upgrade.digest);
            tracing::info!("upgraded from {} to {}", upgrade.from, upgrade.to);
        }
        (Start::Boot, _) => tracing::info!("booted {}", machine.running.version),
        _ => {}
    }
    let failed = machine.failed_images().clone();
    let saved = tokio::task::spawn_blocking(move || failed.save(Path::new(FAILED_IMAGES))).await;
    if let Err(error) = saved.map_err(anyhow::Error::from).and_then(|saved| saved) {
        tracing::warn!("the record of failed images is not kept over a reboot: {error:#}");
    }
}
