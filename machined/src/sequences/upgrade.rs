//! The upgrade: everything that can be refused is refused first; then services stop, the installer runs, and the next
//! generation starts, or the machine reboots.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use super::ending::{ANSWER_FIRST, leave};
use super::ephemeral;
use super::{Phase, Sequence, run, stop};
use crate::containers::{ImageReference, Limits, PulledImage};
use crate::event_log::ActorId;
use crate::init_link::{End, Scope};
use crate::intent;
use crate::machine::{Machine, Turn};
use crate::resources::MachineStage;
use crate::upgrade::{
    Candidate, Delivery, Handover, Path, PendingUpgrade, Refusal, Resources, UpgradeError,
    UpgradeRequest, check, handover, installer,
};

/// How long a new generation has to become healthy when the machine config does not say.
const DEADLINE: Duration = Duration::from_secs(300);

/// An upgrade that has been checked: nothing has been disturbed, and nothing stands against it.
struct Checked {
    image: PulledImage,
    candidate: Candidate,
    path: Path,
    pending: PendingUpgrade,
}

/// Checks an upgrade and starts it. Errors mean that nothing has changed.
pub async fn upgrade(
    machine: Arc<Machine>,
    request: UpgradeRequest,
) -> Result<ActorId, UpgradeError> {
    let turn = machine.take_turn()?;
    let actor = ActorId::new();
    let checked = check_first(&machine, &request, &actor).await?;
    tokio::spawn(go_on(machine, turn, checked, actor.clone()));
    Ok(actor)
}

async fn check_first(
    machine: &Machine,
    request: &UpgradeRequest,
    actor: &ActorId,
) -> Result<Checked, UpgradeError> {
    let reference: ImageReference = request.image.parse().map_err(UpgradeError::Reference)?;
    let configured = machine.config();
    let puller = intent::puller(configured.as_deref().map(|configured| &configured.config))
        .map_err(UpgradeError::Machine)?;
    let resolved = puller.resolve(&reference).await?;
    let digest = resolved.digest().to_string();
    let candidate = Candidate::from_labels(resolved.labels())?;
    if !request.force
        && let Some(reason) = machine.failed_images().reason(&digest)
    {
        let version = candidate.version;
        return Err(Refusal::FailedBefore {
            version,
            reason: reason.to_owned(),
        }
        .into());
    }
    // The installer unpacks to little more than the files that its labels account for.
    let unpacked = candidate
        .rootfs_bytes
        .saturating_mul(2)
        .saturating_add(32 << 20);
    let resources = Resources::now().map_err(UpgradeError::Machine)?;
    let mut path = check(&candidate, &machine.running, resources, unpacked)?;
    if request.reboot {
        path = Path::Reboot("a reboot was asked for");
    }
    // What there is room for by the check above, and no more.
    let limits = Limits {
        unpacked_bytes: unpacked,
        ..Limits::default()
    };
    let image = puller.pull(&resolved, &machine.images, &limits).await?;
    // The installer runs in a container, perhaps the first of this machine.
    prepare_for_containers(machine)
        .await
        .map_err(UpgradeError::Machine)?;
    let pending = PendingUpgrade {
        actor: actor.clone(),
        image: request.image.clone(),
        digest,
        from: machine.running.version.clone(),
        to: candidate.version.clone(),
    };
    Ok(Checked {
        image,
        candidate,
        path,
        pending,
    })
}

async fn prepare_for_containers(machine: &Machine) -> anyhow::Result<()> {
    machine.drivers()?.load_named("overlay").await?;
    Ok(())
}

async fn go_on(machine: Arc<Machine>, turn: Turn, checked: Checked, actor: ActorId) {
    tokio::time::sleep(ANSWER_FIRST).await;
    match checked.path {
        Path::Soft => tracing::info!("upgrade to {}: without a reboot", checked.candidate.version),
        Path::Reboot(why) => tracing::info!(
            "upgrade to {}: with a reboot, {why}",
            checked.candidate.version
        ),
    }
    machine.enter(MachineStage::Upgrading);
    let image = checked.image.clone();
    let path = checked.path;
    let outcome = run(phases(&machine, checked), &actor, &machine.events).await;
    if outcome.is_ok() && path != Path::Soft {
        leave(&machine, End::Reboot).await;
    }
    // Still here: the upgrade failed before the point of no return. The running version goes on.
    tracing::warn!("{} goes on", machine.running.version);
    if let Err(error) = mount_again(&machine).await {
        tracing::error!("EPHEMERAL stays away: {error:#}");
    }
    if let Err(error) = machine.images.remove(image.digest()).await {
        tracing::warn!("the installer's image stays: {error:#}");
    }
    machine.services.start_workloads();
    machine.enter(MachineStage::Running);
    drop(turn);
}

/// Brings /var back where the upgrade got as far as unmounting it.
async fn mount_again(machine: &Machine) -> anyhow::Result<()> {
    let mounted = machine.ephemeral.status().borrow().mounted;
    if !mounted {
        ephemeral::mount(machine).await?;
        ephemeral::furnish(machine).await;
    }
    Ok(())
}

fn phases(machine: &Arc<Machine>, checked: Checked) -> Sequence {
    let Checked {
        image,
        candidate,
        path,
        pending,
    } = checked;
    let (delivered, delivery) = tokio::sync::oneshot::channel();
    let services_up = up(machine);
    let install = {
        let machine = machine.clone();
        let (image, candidate) = (image.clone(), candidate.clone());
        async move {
            let delivery = installer::run(&machine, &image, &candidate).await?;
            // The memfd is all that is needed from here on; the image may lie in memory as well.
            machine
                .images
                .remove(image.digest())
                .await
                .context("remove the installer's image")?;
            let _ = delivered.send(delivery);
            Ok(())
        }
    };
    let mut phases = vec![
        stop::stop_services(machine),
        Phase::of("upgrade", install),
        stop::unmount(machine),
    ];
    match path {
        Path::Soft => {
            let machine = machine.clone();
            phases.push(Phase::of("nextGeneration", async move {
                let delivery = delivery.await.context("the installer's delivery is lost")?;
                next_generation(&machine, delivery, candidate, pending, services_up).await
            }));
        }
        Path::Reboot(_) => phases.push(stop::stop_everything()),
    }
    Sequence {
        name: "upgrade",
        phases,
    }
}

/// The services that run and are healthy now; the new version is good when they are so again.
fn up(machine: &Machine) -> Vec<String> {
    let services = machine.services.list();
    let up = services
        .iter()
        .filter(|service| service.definition().controllable && service.status().is_up());
    up.map(|service| service.definition().id.clone()).collect()
}

/// Leaves everything to the next generation. Does not return when init takes it.
async fn next_generation(
    machine: &Machine,
    delivery: Delivery,
    candidate: Candidate,
    pending: PendingUpgrade,
    services_up: Vec<String>,
) -> anyhow::Result<()> {
    let configured = machine.config();
    let deadline = configured.as_ref().map_or(DEADLINE, |configured| {
        configured.config.upgrade_gate.timeout
    });
    let left = Handover {
        machine_config: configured.map(|configured| configured.text.clone()),
        leases: machine.network.leases(),
        upgrade: Some(pending),
        failed: machine.failed_images().clone(),
        services_up,
    };
    let memfd = left.to_memfd()?;
    machine
        .init
        .keep(handover::NAME, Scope::Machine, &memfd)
        .await
        .context("leave the hand-over with init")?;
    machine
        .init
        .next(
            &delivery.memfd,
            &delivery.blake3,
            &candidate.version,
            deadline,
        )
        .await
        .context("init did not take the next generation")?;
    std::future::pending().await
}
