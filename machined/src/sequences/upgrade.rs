//! The upgrade: all checks that can refuse it come first; then the installer runs, services stop, and the next generation starts, or the
//! machine reboots.

mod ahead;
pub(super) mod bless_retry;
pub(super) mod committed;
pub(super) mod current_handover;
mod dry_run;
pub(super) mod leave_sockets;
mod replace;
mod rules;
pub(super) mod trial_record;

pub use ahead::{Ahead, AheadPlan, prepare_ahead};
pub use dry_run::plan_upgrade;

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::oneshot;

use super::hang_up::{Caller, HungUp};
use super::steps::leave::{ANSWER_FIRST, leave};
use super::steps::offer::{Offer, offer};
use super::steps::overlay::load_overlay;
use super::steps::{admit, boot_assets, resume, stop, up};
use super::{Phase, Sequence, Urgency, kexec, run, system_services};

use crate::base::Exit;
use crate::containers::Runtime;
use crate::image_collection;
use crate::init_link::{End, Next, Scope, Workloads};
use crate::intent::{self, next_config};
use crate::machine::{Configured, Machine};
use crate::oci::{Limits, Puller, StoreError};
use crate::operation_lock::{Operation, OperationLock};
use crate::store::MachineStage;
use crate::store::event_log::ActorId;
use crate::sys::rcu;
use crate::upgrade::{
    Candidate, EspForInstaller, Handover, INSTALLER_FILES, InstallerOutput, PendingUpgrade, Plan,
    ProgressSink, Refusal, Resources, Room, Route, Starts, TrustedRootfs, Unpacked, UpgradeError,
    UpgradeMode, UpgradeRecord, UpgradeRequest, check, created, handover, installer, is_full,
};
use crate::values::ImageReference;

/// Deadline for a new generation to become healthy, if the machine config names none.
const DEADLINE: Duration = Duration::from_secs(300);

/// Time limit for the last answers of the API, once init has taken the next generation: a little longer than the limits of the services that
/// have callers.
const FINISH: Duration = Duration::from_secs(4);

/// An upgrade that has passed its checks: nothing on the machine has changed yet.
pub(super) struct Checked {
    pub(super) image: Arc<Unpacked>,
    pub(super) candidate: Candidate,
    pub(super) path: Route,
    mode: UpgradeMode,
    pub(super) pending: PendingUpgrade,
}

/// An upgrade that has begun.
pub(super) struct Begun {
    /// The call that asked for it.
    pub(super) actor: ActorId,
    /// Why it failed, if it does.
    pub(super) failure: WhyFailed,
}

/// Tells why an upgrade failed, once the running version goes on. One that does not fail ends the generation, and tells nothing.
pub(super) type WhyFailed = oneshot::Receiver<String>;

/// Checks an upgrade and starts it. After an error nothing has changed. To be run in a task of its own: once it has begun, it goes on to its end
/// without its caller.
pub async fn upgrade(
    machine: Arc<Machine>,
    request: UpgradeRequest,
    caller: Caller,
) -> Result<ActorId, UpgradeError> {
    Ok(begin(machine, request, caller).await?.actor)
}

/// The same for a caller who wants to know whether it fails.
pub(super) async fn begin(
    machine: Arc<Machine>,
    request: UpgradeRequest,
    caller: Caller,
) -> Result<Begun, UpgradeError> {
    let lock = machine.lock_operation(Operation::Upgrade)?;
    let actor = ActorId::new();
    let silent = ProgressSink::silent();
    let checking = check_first(&machine, &request, &actor, &silent);
    let checked = before_any_change(&lock, caller, checking).await?;
    machine.pins.forget_preparation().await;
    let (failed, failure) = oneshot::channel();
    let of_call = actor.clone();
    crate::base::task::spawn(async move {
        let why = go_on(machine, lock, checked, of_call).await;
        // Most callers do not wait for it.
        let _ = failed.send(why);
    });
    Ok(Begun { actor, failure })
}

/// Runs the checks and the pull, which change nothing. They end when the caller hangs up, who would take the upgrade for one that was given up,
/// and when a more urgent operation begins.
pub(super) async fn before_any_change<T>(
    lock: &OperationLock,
    caller: Caller,
    checking: impl Future<Output = Result<T, UpgradeError>>,
) -> Result<T, UpgradeError> {
    match caller.while_there(lock.interruptible(checking)).await {
        Ok(checked) => checked?,
        Err(HungUp) => {
            tracing::info!(
                "the caller of the upgrade left before the image was here; nothing has changed"
            );
            Err(UpgradeError::CallerLeft)
        }
    }
}

/// Runs all checks that can refuse the upgrade, and pulls the image.
pub(super) async fn check_first(
    machine: &Machine,
    request: &UpgradeRequest,
    actor: &ActorId,
    progress: &ProgressSink,
) -> Result<Checked, UpgradeError> {
    replace::check(machine, request).await?;
    progress.say(format!("looking up {}", request.image));
    let Found {
        puller,
        offer,
        candidate,
        starts,
        overridden,
    } = look_up(machine, request).await?;
    for objection in overridden {
        tracing::warn!("forced, although {objection}");
        progress.say(format!("forced, although {objection}"));
    }
    let digests = offer.digests();
    let Plan { path, room } = plan_with_room(machine, &candidate).await?;
    let path = route(request.mode, starts.route(path));
    // The installer runs in a container, perhaps the first one of this machine. Without the overlay filesystem the pull would be in vain.
    load_overlay(machine).await.map_err(UpgradeError::Machine)?;
    progress.say(format!(
        "{} to {}: pulling {}",
        machine.running.version, candidate.version, digests.digest
    ));
    let limits = installer_limits(&candidate);
    let created = created(offer.config().created.as_deref());
    let evidence = offer.evidence(&puller).await;
    let image = match offer {
        Offer::Here(image) => Unpacked::of_store(image, &machine.images),
        Offer::AtRegistry(resolved) => {
            let pull = |room| Unpacked::pull(&puller, &resolved, &limits, &machine.images, room);
            match pull(room).await {
                // Another writer filled the disk during the pull.
                Err(UpgradeError::Pull(error)) if room == Room::Var && is_full(&error) => {
                    plan(machine, &candidate, Var::Full)?;
                    pull(Room::Memory).await?
                }
                pulled => pulled?,
            }
        }
    };
    let pending = PendingUpgrade {
        actor: actor.clone(),
        image: request.image.clone(),
        digest: digests.digest.to_string(),
        from: machine.running.version.clone(),
        to: candidate.version.to_string(),
        boot_entry: None,
        created,
        floor: candidate.floor.clone(),
        evidence,
    };
    Ok(Checked {
        image: Arc::new(image),
        candidate,
        path,
        mode: request.mode,
        pending,
    })
}

/// An image that an upgrade was asked to, and what is known of it.
struct Found {
    puller: Arc<Puller>,
    offer: Offer,
    candidate: Candidate,
    /// How it may start.
    starts: Starts,
    /// Objections that force overrides.
    overridden: Vec<Refusal>,
}

/// Finds the image, verifies it as the config's rules for images say, and reads its labels.
async fn look_up(machine: &Machine, request: &UpgradeRequest) -> Result<Found, UpgradeError> {
    let reference: ImageReference = request.image.parse().map_err(UpgradeError::Reference)?;
    let puller = intent::puller(machine.config().as_deref());
    let offer = offer(machine, &puller, &reference).await?;
    let candidate = Candidate::from_labels(&offer.config().labels)?;
    let digest = offer.digest().to_string();
    let overridden = rules::judge(machine, request, &reference, &candidate, &digest)?;
    let starts = admit::check_offer(machine, &candidate, offer.config()).await?;
    Ok(Found {
        puller,
        offer,
        candidate,
        starts,
        overridden,
    })
}

/// Returns the route that the mode asks for; `shortest` is the shortest possible one.
fn route(mode: UpgradeMode, shortest: Route) -> Route {
    match mode {
        UpgradeMode::Quickest => shortest,
        UpgradeMode::Reboot => Route::Reboot("a reboot was asked for"),
        UpgradeMode::Kexec => Route::Reboot("a reboot by kexec was asked for"),
        UpgradeMode::Replace => Route::Reboot("EPHEMERAL is erased"),
    }
}

/// The free room on /var.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Var {
    AsItSays,
    /// A pull has found it full.
    Full,
}

/// Plans the upgrade with the room that is free now.
// The error is an upgrade's error, and as large.
#[allow(clippy::result_large_err)]
fn plan(machine: &Machine, candidate: &Candidate, var: Var) -> Result<Plan, UpgradeError> {
    let mut resources = Resources::now().map_err(UpgradeError::Machine)?;
    // The version that waits in memory is dropped before another one comes.
    resources.memory += machine.upgrades.prepared_bytes();
    if var == Var::Full {
        resources.disk = 0;
    }
    let unpacked_bytes = installer_limits(candidate).unpacked_bytes;
    let plan = check(candidate, &machine.running, resources, unpacked_bytes);
    plan.map_err(UpgradeError::Refused)
}

/// The same; removes unused images if they are in the way.
async fn plan_with_room(machine: &Machine, candidate: &Candidate) -> Result<Plan, UpgradeError> {
    match plan(machine, candidate, Var::AsItSays) {
        Ok(Plan {
            room: Room::Memory, ..
        })
        | Err(UpgradeError::Refused(Refusal::NotEnoughRoom { .. })) => {}
        planned => return planned,
    }
    if let Err(error) = image_collection::collect(machine).await {
        tracing::warn!("images that nothing names stay: {error:#}");
    }
    plan(machine, candidate, Var::AsItSays)
}

/// Returns the limits for the installer image: it unpacks to little more than the files that its labels account for, and the check of the
/// candidate makes sure that there is room for that.
pub(super) fn installer_limits(candidate: &Candidate) -> Limits {
    let unpacked_bytes = candidate
        .rootfs_bytes
        .saturating_mul(2)
        .saturating_add(32 << 20);
    Limits {
        unpacked_bytes,
        entries: INSTALLER_FILES,
        ..Limits::default()
    }
}

/// Removes the installer's image, unless a bundle has brought it, or it is pinned now.
pub(super) async fn remove_unless_needed(
    machine: &Machine,
    image: &Unpacked,
) -> Result<(), StoreError> {
    let is_needed = |digest| image_collection::is_needed(machine, digest);
    image.remove(is_needed).await
}

/// Carries an upgrade out; returns why it failed, if it does.
async fn go_on(
    machine: Arc<Machine>,
    lock: OperationLock,
    checked: Checked,
    actor: ActorId,
) -> String {
    tokio::time::sleep(ANSWER_FIRST).await;
    // Read once: no other config can be staged while an upgrade goes on.
    let next = next_config::of(&machine);
    match checked.path {
        Route::Soft => {
            tracing::info!("upgrade to {}: without a reboot", checked.candidate.version);
            let kept = intent::kept_by(&machine, next.clone()).await;
            machine.services.tell_ends(&*kept);
        }
        Route::Reboot(why) => tracing::info!(
            "upgrade to {}: with a reboot, {why}",
            checked.candidate.version
        ),
    }
    machine.enter(MachineStage::Upgrading);
    let image = checked.image.clone();
    let (path, mode) = (checked.path, checked.mode);
    let pending = checked.pending.clone();
    let services_up = up::after(mode, up::up(&machine).await);
    let phases = phases(&machine, checked, services_up, next);
    let outcome = run(phases, &actor, &machine.events).await;
    if outcome.is_ok() && path != Route::Soft {
        let end = match mode {
            UpgradeMode::Kexec => kexec::or_reboot(&machine).await,
            UpgradeMode::Quickest | UpgradeMode::Reboot | UpgradeMode::Replace => End::Reboot,
        };
        leave(&machine, end).await;
    }
    // The upgrade failed before the point of no return: the running version goes on.
    let why = match outcome {
        Err(error) => format!("{error:#}"),
        Ok(()) => "init did not end this generation; try again, or reboot the machine".to_owned(),
    };
    machine.services.tell_run_on();
    // The disk comes first, because it holds the changes that have to be taken back.
    resume::go_on(&machine).await;
    if let Err(error) = replace::unmark(&machine).await {
        tracing::error!("the next boot may erase EPHEMERAL: {error:#}");
    }
    if let Err(error) = trial_record::withdraw(&machine, &pending).await {
        tracing::error!("the next boot may try {}: {error:#}", pending.to);
    }
    if let Err(error) = remove_unless_needed(&machine, &image).await {
        tracing::warn!("the installer's image stays: {error:#}");
    }
    drop(lock);
    why
}

fn phases(
    machine: &Arc<Machine>,
    checked: Checked,
    services_up: Vec<String>,
    configured: Option<Arc<Configured>>,
) -> Sequence {
    let (path, mode, pending) = (checked.path, checked.mode, checked.pending.clone());
    let (delivered, delivery) = oneshot::channel();
    let record = UpgradeRecord {
        upgrade: pending.clone(),
        services_up: services_up.clone(),
        failures: Vec::new(),
    };
    let next = configured.clone();
    let install = install(machine.clone(), checked, record, next, delivered);
    let install = Phase::of("upgrade", install);
    let stop = match path {
        Route::Soft => stop::stop_for_next_generation(machine, configured.clone()),
        Route::Reboot(_) => stop::stop_services(machine, Urgency::Waits),
    };
    // Services keep running while the installer does, and nothing has ended if it fails.
    let mut phases = vec![install, stop];
    match mode {
        UpgradeMode::Replace => phases.extend(replace::phases(machine)),
        UpgradeMode::Quickest | UpgradeMode::Reboot | UpgradeMode::Kexec => {
            phases.push(stop::unmount(machine));
        }
    }
    match path {
        Route::Soft => {
            phases.push(stop::undo_settings(machine));
            let machine = machine.clone();
            phases.push(Phase::of("nextGeneration", async move {
                let rootfs = delivery.await.context("the installer's delivery is lost")?;
                let pending = PendingUpgrade {
                    boot_entry: rootfs.output().boot_entry,
                    ..pending
                };
                next_generation(&machine, rootfs, configured, pending, services_up).await
            }));
        }
        Route::Reboot(_) => phases.push(stop::stop_everything()),
    }
    Sequence {
        name: "upgrade",
        phases,
    }
}

/// The phase of the installer: it runs, and what it delivers is admitted and handed on.
async fn install(
    machine: Arc<Machine>,
    checked: Checked,
    mut record: UpgradeRecord,
    next: Option<Arc<Configured>>,
    delivered: oneshot::Sender<TrustedRootfs>,
) -> anyhow::Result<()> {
    let Checked {
        image,
        candidate,
        path,
        mode,
        ..
    } = checked;
    trial_record::unstage(&machine).await?;
    match mode {
        UpgradeMode::Replace => replace::mark(&machine, &record.upgrade.to).await?,
        // One of an upgrade that failed may have reached a slow disk after it was taken back.
        UpgradeMode::Quickest | UpgradeMode::Reboot | UpgradeMode::Kexec => {
            replace::unmark(&machine).await?;
        }
    }
    let silent = ProgressSink::silent();
    let delivery = run_installer(&machine, &image, &candidate, &mut record, &silent).await?;
    // The next boot judges by the config that it finds.
    let configs = [machine.config(), next];
    let rootfs = admit::admit_as(configs, delivery, &record.upgrade, path).await?;
    // A new loader is first used at a reboot.
    if path != Route::Soft {
        boot_assets::try_next_loader(&machine).await?;
    }
    // From here on only the memfd is needed; the image may lie in memory as well.
    let removed = remove_unless_needed(&machine, &image).await;
    removed.context("remove the installer's image")?;
    // Without a receiver the upgrade has been given up.
    let _ = delivered.send(rootfs);
    Ok(())
}

/// Runs the installer, with the EFI system partition if the machine boots from its disk, and notes on STATE which entry it wrote. A failed
/// installer leaves no version that a boot would try.
pub(super) async fn run_installer(
    machine: &Machine,
    image: &Unpacked,
    candidate: &Candidate,
    record: &mut UpgradeRecord,
    progress: &ProgressSink,
) -> anyhow::Result<InstallerOutput> {
    let Some(installed) = boot_assets::installed(machine).await? else {
        return installer::run(&machine.init, image, candidate, None, progress).await;
    };
    let partition = boot_assets::ForInstaller::mount(&installed).await?;
    let esp = EspForInstaller {
        folder: partition.path().to_owned(),
        running: installed.booted,
    };
    let delivery = async {
        let delivery =
            installer::run(&machine.init, image, candidate, Some(&esp), progress).await?;
        record.upgrade.boot_entry = delivery.boot_entry;
        // Written for every upgrade: the power may fail before a soft upgrade is committed, too.
        if delivery.boot_entry.is_some() {
            trial_record::save(machine, record).await?;
        }
        Ok(delivery)
    };
    let delivery = delivery.await;
    // The installer may have done its work before another step failed.
    if delivery.is_err()
        && let Err(error) = partition.take_back().await
    {
        tracing::error!("the next boot may try {}: {error:#}", candidate.version);
    }
    delivery
}

/// Leaves the machine and this config to the next generation. Does not return if init starts it.
pub(super) async fn next_generation(
    machine: &Machine,
    rootfs: TrustedRootfs,
    configured: Option<Arc<Configured>>,
    pending: PendingUpgrade,
    services_up: Vec<String>,
) -> anyhow::Result<()> {
    let deadline = configured.as_ref().map_or(DEADLINE, |configured| {
        configured.config.upgrade_gate.timeout
    });
    // Links and parameters of Kubernetes stay with it, also where its container is made anew: nothing but a reboot of the kernel removes them.
    let has_kubernetes = configured
        .as_ref()
        .is_some_and(|configured| configured.config.kubernetes.is_some());
    let version = pending.to.clone();
    let text = configured
        .as_ref()
        .map(|configured| configured.text.clone());
    let left = Handover {
        upgrade: Some(pending),
        services_up,
        left_running: machine.services.left(),
        ended: machine.services.ended(),
        exits: exits_of_left(machine),
        ..current_handover::of(machine, text)
    };
    let memfd = left.to_memfd()?;
    let workloads = match machine.services.left().is_empty() && !has_kubernetes {
        true => Workloads::End,
        false => Workloads::Keep,
    };
    machine
        .init
        .keep(handover::NAME, Scope::Machine, &memfd)
        .await
        .context("leave the hand-over with init")?;
    let next = Next {
        memfd: rootfs.output().memfd.as_fd(),
        blake3: &rootfs.output().blake3,
        version: &version,
        deadline,
        workloads,
        finish: FINISH,
    };
    // From the last answers on no call is answered until the next generation runs, or this one again if init refuses the other.
    let last_answers = async {
        tracing::info!("the API gives its last answers to this generation");
        system_services::drain(&machine.services).await;
    };
    leave_sockets::leave(machine, rootfs.output(), configured.as_deref()).await;
    rcu::hurry();
    if let Err(error) = machine.init.next(next, last_answers).await {
        rcu::take_time();
        machine.left_sockets.take_back(&machine.init).await;
        return Err(error.context("init did not take the next generation"));
    }
    // init waits for this end.
    std::process::exit(0)
}

/// Returns how containers ended that were left running and have ended since: init has told this machined alone.
fn exits_of_left(machine: &Machine) -> BTreeMap<u32, Exit> {
    let runtime = Runtime::default();
    let names = machine.services.left().into_iter();
    let pids = names.filter_map(|name| runtime.noted_pid(&name.parse().ok()?));
    let exits = pids.filter_map(|pid| Some((pid, machine.init.unclaimed_exit(pid)?)));
    exits.collect()
}
