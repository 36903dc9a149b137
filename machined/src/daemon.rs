//! The machine daemon's process from start to end: greets init, serves the API, boots the generation.

mod system_services;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_init_protocol::{SOCKET_FD, Welcome};
use rustix::process::{Resource, Rlimit, setrlimit};
use tokio::time::Instant;

use crate::containers::host_files;
use crate::disk::{OwnedDisk, Paths};
use crate::init_link::{Domain, Handshake, InitLink, Scope, StartReason};
use crate::intent;
use crate::machine::{Generation, Machine, Parts};
use crate::mounts::special_mounts;
use crate::network::{CleanupPolicy, Lease, Network, Options, Ours};
use crate::oci::{ImageStore, Keeps};
use crate::sequences::{
    BootArguments, Rollback, boot, conditions, follow, image_pins, image_updates, keep_sockets,
    kept_versions, kubernetes, note_time, os_extensions, watch_sticks,
};
use crate::services::LogRing;
use crate::time::{Beforehand, ClockSpec, TimeSync, raise_to_floor};
use crate::upgrade::trial::{self, Next};
use crate::upgrade::{Handover, HistoryKeeper, ReleaseOrigin, RunningSystem, handover};
use crate::{api, hang_guard, image_collection, log_forwarding, logging, status, sys};

/// The name under which init keeps the API's listening socket.
const LISTENER: &str = "api";
/// Limit on descriptors: four times as many as callers that apid lets in.
const DESCRIPTORS: u64 = 16 * 1024;
/// Time that an idle thread for blocking work lives. Work goes to the threads in turn, so with a longer time one call every few seconds
/// would keep all threads that the boot has started, each with a stack.
const IDLE_THREAD: Duration = Duration::from_secs(1);
/// The directory of images.
const IMAGES: &str = "/var/lib/instar";
/// Earliest possible time, 2026-11-01: no Instar was built before, so no right clock shows an earlier time.
const CLOCK_FLOOR: u64 = 1_793_491_200;

/// Runs machined. Returns only after a failure that a new machined may repair; init starts one.
pub fn run() -> anyhow::Result<()> {
    let own_log = LogRing::default();
    logging::start(own_log.clone());
    allow_descriptors().context("set the limit of descriptors")?;
    sys::oom_score::set_own(sys::oom_score::KEPT).context("set its own oom_score_adj")?;
    let heartbeat = hang_guard::start().context("start the guard against hanging")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(IDLE_THREAD)
        .build()?;
    runtime.spawn(heartbeat.answer());
    runtime
        .block_on(live(own_log))
        .inspect_err(|error| tracing::error!("{error:#}"))
}

/// Raises the limit on descriptors from the kernel's 1,024: each caller of the API may need one here, and each of their calls a file.
fn allow_descriptors() -> std::io::Result<()> {
    let limit = Rlimit {
        current: Some(DESCRIPTORS),
        maximum: Some(DESCRIPTORS),
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}

async fn live(own_log: LogRing) -> anyhow::Result<()> {
    let socket = sys::inherited::take(SOCKET_FD).context("take the socket to init")?;
    let (init, handshake) = InitLink::connect(socket).await.context("greet init")?;
    let Handshake { welcome, mut kept } = handshake;
    // The time left counts from now, not from the end of the start.
    let deadline = Instant::now() + Duration::from_secs(welcome.deadline.into());
    special_mounts::mount()?;
    let clock = start_clock()?;
    show_generation(&welcome)?;
    let running = RunningSystem::read()?;
    tracing::info!(
        "{} as generation {} ({})",
        running.version,
        welcome.generation,
        welcome.start.as_str()
    );

    clear_domain(&welcome)?;
    let left = hand_over(&init, welcome.start, &mut kept).await;
    let listener = listener(&init, &mut kept).await?;
    // No hand-over is the same as an empty one.
    let empty = Handover::default();
    let handed_over = left.as_ref().unwrap_or(&empty);
    let origin = handed_over.origin_of(welcome.start, &running.version);
    let Handover {
        leases,
        network: ours,
        failed,
        floor,
        images_in_force,
        image_updates,
        pins,
        images_checked,
        own_certificates,
        pinned_key,
        granted_certificate,
        ..
    } = handed_over.clone();
    let keeps_workloads = welcome.workloads == Some(Domain::Kept);
    let network = start_network(welcome.start, keeps_workloads, ours, leases)?;
    let generation = generation(&welcome, keeps_workloads);
    let images = ImageStore::new(IMAGES.into(), Keeps::BlobsOnDisk);
    images.note_checked(images_checked);
    let machine = Arc::new(Machine::new(Parts {
        running,
        generation,
        init,
        images,
        own_log,
        network,
        disk: OwnedDisk::new(Paths::default()).in_generation(welcome.generation),
        clock,
        failed,
        floor,
        images_in_force,
        image_updates,
        pins,
        own_certificates,
        pinned_key,
        granted_certificate,
        kept,
    }));
    if let Some(origin) = origin {
        machine.store.put(ReleaseOrigin::RUNNING, origin);
    }
    machine.services.add_machined(machine.own_log.clone());
    start_followers(&machine);
    let api = crate::base::task::spawn(api::serve(api::bind()?, machine.clone()));
    let arguments = BootArguments {
        start: welcome.start,
        rollback: rollback(&welcome),
        deadline,
        handover: left,
        system_services: system_services::list(listener),
    };
    crate::base::task::spawn(boot(machine, arguments));
    api.await.context("the API's task")?
}

fn generation(welcome: &Welcome, keeps_workloads: bool) -> Generation {
    Generation {
        number: welcome.generation,
        boot_id: welcome.boot_id.clone(),
        kernel_boot_id: welcome.kernel_boot_id.clone(),
        keeps_workloads,
    }
}

/// Raises the clock to the build date; no time server is asked until the config names one.
fn start_clock() -> anyhow::Result<TimeSync> {
    // A clock that is before the build date has no time: an empty battery, or a board without a clock.
    let before = match raise_to_floor(CLOCK_FLOOR)? {
        true => Beforehand::Nothing,
        false => Beforehand::Roughly,
    };
    let no_servers = ClockSpec {
        enabled: false,
        servers: Vec::new(),
    };
    Ok(TimeSync::start(no_servers, CLOCK_FLOOR, before))
}

/// Starts the network with the leases, addresses and routes of the generation before.
fn start_network(
    start: StartReason,
    keeps_workloads: bool,
    ours: Option<Ours>,
    leases: Vec<Lease>,
) -> anyhow::Result<Network> {
    let cleanup = match (start, keeps_workloads, &ours) {
        // If machined alone restarted, links and addresses stay as they are.
        (StartReason::Restart, ..) => CleanupPolicy::Keep,
        // Kept containers may have made links, addresses and routes of their own.
        (_, true, Some(_)) => CleanupPolicy::Keep,
        _ => CleanupPolicy::Remove,
    };
    let options = Options {
        cleanup,
        ours: ours.unwrap_or_default(),
        ..Options::default()
    };
    Network::start(options, None, leases).context("start the network")
}

/// Starts the tasks that follow the machine's state for as long as it runs.
fn start_followers(machine: &Arc<Machine>) {
    status::follow_network(machine);
    status::follow_clock(machine);
    crate::base::task::spawn(history(machine).keep());
    crate::base::task::spawn(image_collection::keep(machine.clone()));
    crate::base::task::spawn(image_updates::keep(machine.clone()));
    crate::base::task::spawn(image_pins::keep(machine.clone()));
    crate::base::task::spawn(follow::keep(machine.clone()));
    crate::base::task::spawn(kubernetes::keep(machine.clone()));
    crate::base::task::spawn(os_extensions::keep(machine.clone()));
    crate::base::task::spawn(intent::remember_trust(machine.clone()));
    crate::base::task::spawn(log_forwarding::keep(machine.clone()));
    crate::base::task::spawn(conditions::keep(machine.clone()));
    crate::base::task::spawn(kept_versions::keep(machine.clone()));
    crate::base::task::spawn(keep_sockets(machine.clone()));
    crate::base::task::spawn(note_time(machine.clone()));
    crate::base::task::spawn(watch_sticks(machine.clone(), api::collect_support));
}

/// Clears the workload domain if no workload lives on. A machined that starts again finds that done, unless the one before was ended halfway.
fn clear_domain(welcome: &Welcome) -> anyhow::Result<()> {
    if welcome.workloads == Some(Domain::New) {
        host_files::clear_domain().context("clear what the last generation's workloads left")?;
    }
    Ok(())
}

/// Returns the version that init gave up for this generation.
fn rollback(welcome: &Welcome) -> Option<Rollback> {
    let (cause, version) = (welcome.cause.as_ref()?, welcome.failed_version.as_ref()?);
    Some(Rollback {
        cause: cause.to_string(),
        failed_version: version.to_string(),
    })
}

/// Returns the keeper of the history of upgrades.
fn history(machine: &Machine) -> HistoryKeeper {
    HistoryKeeper {
        version: machine.running.version.clone(),
        events: machine.events.clone(),
        store: machine.store.clone(),
        init: machine.init.clone(),
        disk: machine.disk.status(),
        left: machine.take_kept(HistoryKeeper::NAME),
    }
}

/// Shows clients of the API which generation this is, and that the kernel is still the same one.
fn show_generation(welcome: &Welcome) -> anyhow::Result<()> {
    for (path, fact) in [
        ("/run/generation", welcome.generation.to_string()),
        ("/run/kernel-boot-id", welcome.kernel_boot_id.to_string()),
    ] {
        std::fs::write(path, format!("{fact}\n")).with_context(|| format!("write {path}"))?;
    }
    Ok(())
}

/// Reads the hand-over of the previous generation. One that cannot be read ends a new version here, before it changes anything.
async fn hand_over(
    init: &InitLink,
    start: StartReason,
    kept: &mut BTreeMap<String, OwnedFd>,
) -> Option<Handover> {
    let memfd = kept.remove(handover::NAME)?;
    let unreadable = match Handover::from_memfd(&memfd) {
        Ok(handover) => return Some(handover),
        Err(error) => format!("{error:#}"),
    };
    let Some(Next::GiveUp { reason }) = trial::with_unreadable_handover(start, &unreadable) else {
        tracing::error!("what the previous generation left is lost: {unreadable}");
        return None;
    };
    tracing::error!("this generation gives itself up: {reason}");
    if let Err(error) = init.give_up(&reason).await {
        tracing::error!("init did not take it back, its deadline will: {error:#}");
    }
    std::future::pending().await
}

/// Returns the API's listening socket: init keeps it over restarts and swaps, so that callers wait instead of being refused.
async fn listener(
    init: &InitLink,
    kept: &mut BTreeMap<String, OwnedFd>,
) -> anyhow::Result<OwnedFd> {
    if let Some(listener) = kept.remove(LISTENER) {
        return Ok(listener);
    }
    let listener = sys::listen::on_all_addresses(instar_api::PORT)
        .with_context(|| format!("listen on TCP port {}", instar_api::PORT))?;
    init.keep(LISTENER, Scope::Machine, &listener)
        .await
        .context("have init keep the listening socket")?;
    Ok(listener)
}
