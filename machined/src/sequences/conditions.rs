//! Gathers the facts that conditions follow from: nothing is kept for them, each is read when the conditions are asked for. Blocks, as a disk may.

mod tell;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use tell::keep;

use super::kept_versions::UnbootableFact;
use crate::bundles::{BundleFact, Phase as BundlePhase};
use crate::conditions::{
    Approval, Certificate, Clock, Facts, FailedService, Failure, HeldRelease, Known, Look,
    NodeTrouble, Room, Signer, StateDisk, Unbootable, Unhealthy, judge,
};
use crate::containers::update::{Reason, Standing};
use crate::disk::{OwnedDisk, STATE};
use crate::follow::{self, FollowFact};
use crate::intent::certificate_standing;
use crate::kubernetes::KubernetesFact;
use crate::kubernetes::trial::Readiness;
use crate::machine::Machine;
use crate::pins::{PreparationFact, Progress};
use crate::services::{Health, Service, ServiceStatus};
use crate::state_partition;
use crate::statistics;
use crate::store::{Problem, StaleConfig, Store};
use crate::time::TimeSync;
use crate::upgrade::{Outcome, UpgradeFact};
use crate::values::Version;

/// How long a service counts as killed for lack of memory.
const KILLED: Duration = Duration::from_secs(3600);

/// Returns one condition of each type as it is now, with its begin.
pub fn conditions(machine: &Machine) -> Vec<Known> {
    let facts = facts(machine);
    let seen = &machine.first_seen;
    seen.note(judge(&facts), seen.now())
}

fn facts(machine: &Machine) -> Facts {
    let services: Vec<(String, ServiceStatus)> =
        machine.services.list().iter().map(known).collect();
    let services = services.as_slice();
    Facts {
        running: machine.running.version.clone(),
        up_for: machine.first_seen.up_for(),
        failed_upgrade: failed_upgrade(&machine.store),
        held: held(machine),
        failed_look: failed_look(&machine.store),
        approvals: approvals(machine),
        prepared: prepared(machine),
        unbootable: unbootable(&machine.store),
        var: var(&machine.disk),
        memory: memory(),
        killed: services.iter().filter_map(killed).collect(),
        failing: services.iter().filter_map(failing).collect(),
        unhealthy: services.iter().filter_map(unhealthy).collect(),
        clock: clock(&machine.clock),
        certificate: certificate(machine),
        node: node(&machine.store),
        has_config: machine.config().is_some(),
        stale_config: machine
            .store
            .get::<StaleConfig>(StaleConfig::ID)
            .map(|it| it.reason),
        problems: problems(&machine.store),
        state: state(&machine.disk),
    }
}

/// The last upgrade, if it failed. The history's ids are in its order.
fn failed_upgrade(store: &Store) -> Option<Failure> {
    let (_, last) = store.list::<UpgradeFact>().pop()?;
    (last.outcome == Outcome::Failed).then(|| Failure {
        reason: last.reason,
        at: UNIX_EPOCH + Duration::from_secs(last.at),
    })
}

/// Releases that have failed here. An older one than the running version is history.
fn held(machine: &Machine) -> Vec<HeldRelease> {
    let follows = !machine.store.list::<FollowFact>().is_empty();
    let record = machine.follow.record().filter(|_| follows);
    let running = machine.running.version.parse::<Version>().ok();
    let holds = record.map(|record| record.holds).unwrap_or_default();
    let failed = holds
        .into_iter()
        .filter(|hold| hold.has_failed && !hold.is_over)
        .filter(|hold| running.as_ref().is_none_or(|it| hold.version > *it));
    let failed = failed.map(|hold| HeldRelease {
        version: hold.version.to_string(),
        why: hold.why,
    });
    failed.collect()
}

fn failed_look(store: &Store) -> Option<Look> {
    let follows = store.list::<FollowFact>();
    follows.into_iter().find_map(|(about, fact)| {
        let error = fact.heard?.error;
        (!error.is_empty()).then_some(Look {
            channel: about.id,
            error,
        })
    })
}

fn approvals(machine: &Machine) -> Vec<Approval> {
    let waits = follow::Standing::Waits(follow::Wait::Approval);
    let follows = machine.store.list::<FollowFact>().into_iter();
    let releases = follows
        .filter(|(_, fact)| fact.state == waits.word())
        .map(|(_, fact)| Approval::Release(fact.release));
    let bundles = machine.store.list::<BundleFact>().into_iter();
    let bundles = bundles
        .filter(|(_, fact)| matches!(fact.phase, BundlePhase::Asking { .. }))
        .map(|(_, fact)| Approval::Bundle(fact.origin));
    releases.chain(images(machine)).chain(bundles).collect()
}

/// The containers whose next image waits for an approval.
fn images(machine: &Machine) -> Vec<Approval> {
    let Some(configured) = machine.config() else {
        return Vec::new();
    };
    let containers = configured.config.containers.iter();
    let waiting = containers.filter(|container| {
        let standing = machine
            .image_updates
            .standing(container.name.as_str(), &container.image);
        let waits = matches!(
            standing,
            Standing::Waiting {
                reason: Reason::Approval(_),
                ..
            }
        );
        container.updates.is_some() && waits
    });
    waiting
        .map(|container| Approval::Image(container.name.to_string()))
        .collect()
}

fn prepared(machine: &Machine) -> Option<String> {
    machine.upgrades.prepared_version().or_else(|| {
        let next: PreparationFact = machine.store.get(PreparationFact::ID)?;
        matches!(next.progress, Progress::Prepared).then_some(next.preparation.version)
    })
}

/// The versions on the disk that would not start, the one that the next boot takes first.
fn unbootable(store: &Store) -> Vec<Unbootable> {
    let facts = store.list::<UnbootableFact>().into_iter();
    let mut found: Vec<Unbootable> = facts
        .map(|(_, fact)| Unbootable {
            version: fact.version,
            is_next: fact.is_next,
            is_revoked: fact.is_revoked,
            why: fact.why,
        })
        .collect();
    found.sort_by_key(|version| !version.is_next);
    found
}

fn var(disk: &OwnedDisk) -> Option<Room> {
    let is_mounted = disk.status().borrow().var_mounted;
    let room = statistics::room("/var").ok().filter(|_| is_mounted)?;
    Some(Room {
        available: room.available,
        size: room.size,
        files_free: room.inodes_free,
        files: room.inodes,
    })
}

fn memory() -> Option<(u64, u64)> {
    let memory = statistics::memory().ok()?;
    Some((memory.memavailable << 10, memory.memtotal << 10))
}

fn known(service: &Service) -> (String, ServiceStatus) {
    (service.definition().id.clone(), service.status())
}

fn killed((name, status): &(String, ServiceStatus)) -> Option<(String, SystemTime)> {
    let at = status.out_of_memory?;
    // A clock that was set back since then counts as no time.
    let ago = SystemTime::now().duration_since(at).unwrap_or_default();
    (ago < KILLED).then(|| (name.clone(), at))
}

fn failing((name, status): &(String, ServiceStatus)) -> Option<FailedService> {
    Some(FailedService {
        name: name.clone(),
        failures: status.failures,
        since: status.crash_loop_since()?,
        last: status.last_failure().unwrap_or_default().to_owned(),
    })
}

fn unhealthy((name, status): &(String, ServiceStatus)) -> Option<Unhealthy> {
    let Health::Unhealthy(why) = &status.health else {
        return None;
    };
    Some(Unhealthy {
        name: name.clone(),
        why: why.clone(),
        since: status.health_changed,
    })
}

fn clock(clock: &TimeSync) -> Option<Clock> {
    let status = clock.status().borrow().clone();
    let silent_for = status.last.and_then(|last| {
        let last = UNIX_EPOCH + Duration::from_secs(last);
        SystemTime::now().duration_since(last).ok()
    });
    (!status.disabled).then_some(Clock {
        synced: status.synced,
        silent_for,
        problem: status.problem,
    })
}

/// Without a config nobody knows who signs.
fn certificate(machine: &Machine) -> Option<Certificate> {
    machine.config()?;
    let standing = certificate_standing(machine);
    let left = standing.ends.map(|ends| {
        let left = ends.duration_since(SystemTime::now());
        left.unwrap_or_default()
    });
    Some(Certificate {
        signer: match standing.issued_by {
            "person" => Signer::Person,
            "nobody" => Signer::Nobody,
            _ => Signer::Automatic,
        },
        left,
        warning: standing.warning,
    })
}

fn node(store: &Store) -> Option<NodeTrouble> {
    let (_, node) = store.list::<KubernetesFact>().into_iter().next()?;
    let wrong = node.wrong().join("; ");
    match node.readiness {
        _ if !node.has_begun => Some(NodeTrouble::ClusterNotBegun),
        Readiness::NotReady(_) => Some(NodeTrouble::NotReady(wrong)),
        Readiness::Unknown(_) => Some(NodeTrouble::ClusterUnreachable(wrong)),
        Readiness::Ready => (!wrong.is_empty()).then_some(NodeTrouble::Incomplete(wrong)),
    }
}

fn problems(store: &Store) -> Vec<(String, String, SystemTime)> {
    let problems = store.list::<Problem>().into_iter();
    let problems = problems.map(|(about, problem)| (about.id, problem.reason, about.updated));
    problems.collect()
}

fn state(disk: &OwnedDisk) -> StateDisk {
    if disk.state().is_none() {
        return StateDisk::Absent;
    }
    let mounted = statistics::mounted().unwrap_or_default();
    let of_state = mounted.iter().rfind(|mount| mount.target == STATE);
    if of_state.is_some_and(|mount| mount.read_only) {
        return StateDisk::ReadOnly;
    }
    match state_partition::last_failure() {
        Some(error) => StateDisk::Failed(error),
        None => StateDisk::Writable,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::conditions::Type;
    use crate::sequences::image_pins::machine_for_tests::{configured, unbooted};
    use crate::status::assess;

    #[tokio::test]
    async fn a_node_that_is_not_ready_makes_the_machine_unready() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        machine.set_config(configured(&[]));
        let unready = || {
            let unmet = assess(&machine).unmet.into_iter();
            unmet.filter(|(name, _)| name == "kubernetes").count()
        };
        let problem = |problems: &[&str], readiness: Readiness| {
            let fact = KubernetesFact {
                problems: problems.iter().map(|it| (*it).to_owned()).collect(),
                services: Vec::new(),
                readiness,
                has_begun: true,
            };
            machine.store.put("one", fact);
        };
        assert_eq!((unready(), node(&machine.store).is_none()), (0, true));
        problem(&["a label"], Readiness::Ready);
        let known = conditions(&machine);
        let kind = known.iter().find(|it| it.kind == Type::KubernetesNotReady);
        assert!(kind.unwrap().trouble.is_some());
        assert_eq!(unready(), 0);
        problem(&[], Readiness::NotReady("no CNI".to_owned()));
        assert_eq!(unready(), 1);
        problem(&[], Readiness::Ready);
        assert_eq!((unready(), node(&machine.store).is_none()), (0, true));
    }
}
