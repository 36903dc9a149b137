//! The end of a boot: decides whether the generation is kept, and carries the decision out.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Boot, before, records};
use crate::base::blocking_io::{self, ANSWER};
use crate::disk::Users;
use crate::init_link::{End, StartReason};
use crate::intent::{self, next_config};
use crate::kubernetes::KUBELET_UP;
use crate::machine::Machine;
use crate::sequences::steps::attend::attend;
use crate::sequences::steps::leave::leave;
use crate::sequences::steps::{boot_assets, disk, up};
use crate::sequences::system_services;
use crate::sequences::upgrade::{bless_retry, committed, trial_record};
use crate::services::{KeptByConfig, Services};
use crate::status;
use crate::store::{MachineStage, Problem};
use crate::upgrade::trial::{Commit, Next, Standing, is_from_the_loader};
use crate::upgrade::{Gate, UpgradeRecord, trial};

/// Time before init's deadline at which the decision is made, so that its reason can still be reported.
const BEFORE_DEADLINE: Duration = Duration::from_secs(5);

/// Time before init's deadline at which services that still end are left to the teardown: the logs of the others are put away in it.
const BEFORE_TEARDOWN: Duration = Duration::from_secs(3);

/// Time before the teardown at which a disk has to have said which containers live on: enough for the others to end.
const FOR_THE_END: Duration = Duration::from_secs(15);

/// Decides how a generation goes on whose API answers and that has no machine config.
pub(super) async fn without_config(boot: &Boot) -> Next {
    let record = match is_from_the_loader(boot.start) {
        true => trial_record::of_counted_start_without_config(&boot.machine, boot.start).await,
        false => None,
    };
    let standing = Standing::of(boot.early, &boot.handover, record);
    trial::without_config(standing, no_config(&boot.machine))
}

/// Returns why there is no machine config, as far as an error is the reason.
fn no_config(machine: &Machine) -> String {
    let problem: Option<Problem> = machine.store.get("config");
    problem.map_or_else(
        || "it finds no machine config".to_owned(),
        |problem| problem.reason,
    )
}

/// Waits until the services that were up before an upgrade are up again, kubelet says steadily that it is healthy if it was one of them, and
/// the config's probes get an answer.
pub(super) async fn wait_at_gate(
    machine: &Arc<Machine>,
    mut services: Vec<String>,
    deadline: Instant,
) -> Result<(), String> {
    let until = before(deadline, BEFORE_DEADLINE);
    if let Some(member) = up::member_at_gate(machine, &services).await {
        // After a reboot kubelet does not run before the machine is a node, which otherwise begins with the end of the boot.
        machine.begin_node();
        up::node_has_plan(machine, until).await;
        tokio::select! {
            passed = pass(&machine.services, gate(machine, &services, until), until) => return passed,
            () = up::membership_ends(&member) => {
                tracing::info!("the node joins anew: this version is kept without kubelet's answer");
            }
        }
    }
    services.retain(|name| name != KUBELET_UP);
    pass(&machine.services, gate(machine, &services, until), until).await
}

/// Returns the gate of a generation before which these services were up.
fn gate(machine: &Machine, services: &[String], until: Instant) -> Gate {
    let left = until.saturating_duration_since(Instant::now());
    let probes = match machine.config() {
        Some(configured) => intent::gate_probes(&configured.config, services, left),
        None => Vec::new(),
    };
    Gate::new(services.to_vec(), probes)
}

/// Waits until the gate is passed.
async fn pass(services: &Services, gate: Gate, until: Instant) -> Result<(), String> {
    let passed = tokio::time::timeout_at(until, gate.pass(services)).await;
    passed.map_err(|_| format!("not healthy in time: {}", gate.missing(services).join("; ")))
}

/// Carries out the decision. Returns whether init has accepted the report of health.
pub(super) async fn carry_out(boot: &Boot, next: Next, is_healthy: bool) -> bool {
    let machine = &boot.machine;
    let commit = match next {
        Next::Commit(commit) => commit,
        Next::StayUp { problem } => {
            stay_up_with(machine, &problem);
            Commit::NOT_ON_TRIAL
        }
        Next::GiveUp { reason } => {
            give_up(boot, &reason).await;
            return is_healthy;
        }
        Next::TryAgain { record, reason } => {
            try_again(machine, record, &reason).await;
            return is_healthy;
        }
    };
    let is_healthy = is_healthy || tell_healthy(machine).await;
    if is_healthy {
        keep(boot, commit).await;
    }
    is_healthy
}

/// Shows the problem of a boot that has failed halfway, and goes on without the rest. Containers that live on are looked after as well as
/// that goes: those that have ended are not shown as running, and once the disk is there their output is read.
fn stay_up_with(machine: &Arc<Machine>, problem: &str) {
    status::note_problem(machine, "boot", problem);
    machine.log_disk.settle();
    attend(machine);
}

/// Tells init that the generation works; from then on init has no deadline for it. Returns whether init has accepted the report.
pub(super) async fn tell_healthy(machine: &Machine) -> bool {
    let told = machine.init.healthy(&machine.generation.boot_id).await;
    told.inspect_err(|error| tracing::error!("init did not take the report of health: {error:#}"))
        .is_ok()
}

/// Keeps a generation that works.
async fn keep(boot: &Boot, commit: Commit) {
    let (machine, start) = (&boot.machine, boot.start);
    if start == StartReason::Boot {
        tracing::info!("booted {}", machine.running.version);
    }
    if let Some(upgrade) = &commit.upgrade {
        // An image that failed before and was tried again by force has proved itself.
        machine.upgrades.failed_images().forget(&upgrade.digest);
        if !upgrade.from.is_empty() {
            tracing::info!("upgraded from {} to {}", upgrade.from, upgrade.to);
        }
    }
    if start == StartReason::Boot
        && let Err(error) = boot_assets::settle_next_loader(machine).await
    {
        tracing::error!("a new boot loader is not put in place: {error:#}");
    }
    boot.current_handover.prove();
    machine.left_sockets.prove();
    let finished = trial_record::finish(machine, commit.bless, commit.upgrade.as_ref()).await;
    if let Err(error) = finished {
        bless_retry::start(machine, commit.bless, &error);
    }
    // Not earlier: services start without it.
    if let Err(error) = committed::find_origin(machine).await {
        tracing::warn!("nobody knows which image this version came from: {error:#}");
    }
    let (failed, records) = (machine.upgrades.failed_images().clone(), records(machine));
    let saved = blocking_io::within(ANSWER, move || failed.save(&records)).await;
    if let Err(error) = saved.map_err(anyhow::Error::from).and_then(|saved| saved) {
        tracing::warn!("the record of failed images is not kept over a reboot: {error:#}");
    }
}

async fn give_up(boot: &Boot, reason: &str) {
    let machine = &boot.machine;
    tracing::error!("this generation gives itself up: {reason}");
    // What lives on takes its log and its past into the version before, as it does at an upgrade.
    let until = before(boot.deadline, BEFORE_TEARDOWN);
    let kept = async { intent::kept_by(machine, next_config::planned(machine).await).await };
    let kept = kept_until(kept, before(until, FOR_THE_END)).await;
    machine.services.leave_workloads(Some(until), &*kept).await;
    machine.log_disk.close().await;
    // As before an upgrade: callers of the API notice nothing of a rollback either.
    system_services::drain(&machine.services).await;
    boot.current_handover.give_up(machine, &boot.handover).await;
    if let Err(error) = machine.init.give_up(reason).await {
        tracing::error!("init did not take it back, its deadline will: {error:#}");
    }
    std::future::pending().await
}

/// Waits for the answer which containers the next generation keeps. A silent disk may not take the time in which others end: then all end.
async fn kept_until(
    kept: impl Future<Output = Box<KeptByConfig<'static>>>,
    until: Instant,
) -> Box<KeptByConfig<'static>> {
    let unknown = |_| -> Box<KeptByConfig<'static>> {
        Box::new(|_| anyhow::bail!("the disk does not say whether it may live on"))
    };
    let kept = tokio::time::timeout_at(until, kept).await;
    kept.unwrap_or_else(unknown)
}

/// Gives up a version that was booted for the first time and is not healthy: the loader has counted this try, and starts the version before
/// when no try is left.
async fn try_again(machine: &Arc<Machine>, record: UpgradeRecord, reason: &str) {
    let version = record.upgrade.to.clone();
    tracing::error!("{version} is not healthy, the machine reboots: {reason}");
    if let Err(error) = trial_record::note_failure(machine, record, reason).await {
        tracing::error!("the reason is lost: {error:#}");
    }
    machine.enter(MachineStage::Rebooting);
    machine.services.stop_workloads().await;
    if let Err(error) = disk::unmount(machine, Users::MustBeGone).await {
        tracing::warn!("the disk is left to init's teardown: {error:#}");
    }
    leave(machine, End::Reboot).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sequences::image_pins::machine_for_tests::unbooted;
    use crate::services::workload_for_tests::definition;
    use crate::services::{Adopted, Definition, LogRing, Phase, Running, Service, Step, Workload};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A container that lived through the upgrade; after its end it can neither be compared nor started without the disk.
    #[derive(Default)]
    struct Container {
        has_ended: AtomicBool,
    }

    impl Workload for Container {
        fn prepare(&self) -> Step<'_, anyhow::Result<()>> {
            Box::pin(async { anyhow::bail!("there is no disk") })
        }
        fn start(&self, _log: LogRing) -> Step<'_, anyhow::Result<Box<dyn Running>>> {
            Box::pin(async { anyhow::bail!("there is no disk") })
        }
        fn lives_on(&self) -> Option<u32> {
            (!self.has_ended.load(Ordering::Relaxed)).then_some(1)
        }
        fn adopt(&self, _log: LogRing) -> Step<'_, Adopted> {
            Box::pin(async {
                match self.lives_on() {
                    Some(_) => Adopted::Ended("its image is not here whole".to_owned()),
                    None => Adopted::Nothing,
                }
            })
        }
        fn exec<'a>(&'a self, _command: &'a [String]) -> Step<'a, anyhow::Result<()>> {
            Box::pin(async { Ok(()) })
        }
    }

    #[tokio::test]
    async fn a_boot_without_a_disk_ends_no_container_and_does_not_show_the_dead_as_running() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        tokio::time::pause();
        let [dead, lives] = ["dead", "lives"].map(|name| {
            let container = Arc::new(Container::default());
            let service = machine.services.add_living(Definition {
                workload: container.clone(),
                ..definition(name, None)
            });
            (service.unwrap(), container)
        });
        machine
            .services
            .tell("dead", "is ended: the disk is broken");
        dead.1.has_ended.store(true, Ordering::Relaxed);
        assert_eq!(dead.0.status().phase, Phase::Running);
        stay_up_with(&machine, "the disk is broken");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_ne!(dead.0.status().phase, Phase::Running);
        let told = |service: &Service| -> Vec<String> {
            let history = service.status().history.into_iter();
            history.map(|it| it.message).collect()
        };
        assert_eq!(told(&dead.0)[1], "is ended: the disk is broken");
        assert_eq!(told(&lives.0), ["lives on as process 1"]);
        // Its end is seen later as well.
        lives.1.has_ended.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_ne!(lives.0.status().phase, Phase::Running);
        let of_lives = told(&lives.0);
        assert!(
            of_lives[1].starts_with("it ended while nobody looked"),
            "{of_lives:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_disk_takes_no_time_from_the_end_of_a_version() {
        let until = Instant::now() + Duration::from_secs(60);
        let kept = kept_until(std::future::pending(), until).await;
        let why = kept("web").unwrap_err().to_string();
        assert!(why.starts_with("the disk does not say"), "{why}");
        let all: Box<KeptByConfig<'static>> = Box::new(|_| Ok(()));
        let kept = kept_until(std::future::ready(all), until).await;
        assert!(kept("web").is_ok());
    }
}
