//! One pool: its checks, commands of people, rounds of the driver, and what is shown.
//!
//! ```text
//! step:  check ─► wishes and commands of people ─► does another rollout begin? ─► a round of the driver ─► status, NodeUpgrades
//!       `checked`          `wishes`                       `renewal`                                       `node_upgrades`
//! ```

mod checked;
mod node_upgrades;
mod renewal;
mod rights;
mod wishes;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use instar_client::Failure;
use instar_rollout::{MachineName, Phase, Record};
use instar_rollout_driver::{ConfigChange, Driver, TraceFile};
use jiff::Timestamp;
use kube::{Api, Resource, ResourceExt};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::ahead::{Heard, Refusal, Wait};
use crate::api::{Kind, NodeUpgrade, NodeUpgradeStatus, Pool, Rollout};
use crate::cluster::Cluster;
use crate::config_secrets::ConfigSecrets;
use crate::events;
use crate::failure::Error;
use crate::machines::{Brings, PoolNodes};
use crate::making_way::uncordon;
use crate::record_store::{Kept, RecordStore};
use crate::shown::{self, Known};
use crate::turns::NextRollout;
use checked::Checked;
use rights::lacks_right;

/// The pause between two rounds of a rollout that is under way, for what comes with time alone: windows, soaks, patience.
const TICK: Duration = Duration::from_secs(5);
/// The pause before a step: changes that come together are one step, however many nodes join at once.
const GATHER: Duration = Duration::from_millis(200);
/// The pause after a round that failed, before nodes are asked again what an image is, and before a cordon that was left is taken back.
pub(crate) const LATER: Duration = Duration::from_secs(20);

/// Keeps one pool at its version.
pub(crate) struct Keeper {
    cluster: Cluster,
    name: String,
    uid: Option<String>,
    store: RecordStore,
    driver: Driver<RecordStore, PoolNodes>,
    wake: Rc<Notify>,
    /// NodeUpgrades as they were written last.
    written: BTreeMap<String, NodeUpgradeStatus>,
    /// Which node has refused the pool's patches last.
    refusal: Option<Refusal>,
    /// The answers of nodes that were asked what the pool's image is.
    heard: Heard,
    trace: Option<TraceFile>,
}

/// The kind of the newest rollout, and its record.
fn newest(kept: &Kept) -> Option<(Kind, &Record)> {
    let (rollout, record) = kept.newest()?;
    Some((rollout.kind(), record))
}

/// The result, or none and a line of the log.
fn told<T>(pool: &str, result: Result<T, Failure>) -> Option<T> {
    result
        .inspect_err(|failure| eprintln!("pool {pool}: {}", failure.chain()))
        .ok()
}

impl Keeper {
    /// Returns the keeper of this very object; another one of its name gets another keeper.
    pub(crate) fn new(cluster: Cluster, pool: &Pool, wake: Rc<Notify>) -> Self {
        let name = &pool.name_any();
        let api = Api::all(cluster.client.clone());
        let store = RecordStore::new(api, name, cluster.lease.clone());
        let owner = pool.controller_owner_ref(&());
        let client = cluster.client.clone();
        let configs = ConfigSecrets::new(client, &cluster.namespace, name, owner);
        let machines = PoolNodes::new(cluster.clone(), name, configs);
        let upgrades = cluster.upgrades.state();
        let is_own = |it: &&Arc<NodeUpgrade>| {
            it.owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == pool.uid().as_ref())
        };
        let own = upgrades.iter().filter(is_own);
        let written = own.map(|it| (it.name_any(), it.status.clone().unwrap_or_default()));
        let trace = cluster.traces.as_ref().and_then(|folder| {
            let opened = TraceFile::open(&folder.join(format!("{name}.jsonl")));
            told(name, opened)
        });
        Self {
            written: written.collect(),
            refusal: None,
            heard: Heard::default(),
            trace,
            name: name.clone(),
            uid: pool.uid(),
            driver: Driver::new(store.clone(), machines),
            cluster,
            store,
            wake,
        }
    }

    /// Keeps the pool until it is deleted.
    pub(crate) async fn run(mut self) {
        while let Some(pool) = self.cluster.pool(&self.name)
            && pool.uid() == self.uid
        {
            let pause = match self.step(&pool).await {
                Ok(pause) => pause,
                Err(error) => {
                    eprintln!("pool {}: {error}", self.name);
                    Some(LATER)
                }
            };
            let ended = tokio::select! {
                ended = self.driver.ended() => Some(ended),
                () = self.wake.notified() => {
                    sleep(GATHER).await;
                    None
                }
                () = sleep(pause.unwrap_or_default()), if pause.is_some() => None,
            };
            if let Some(ended) = ended
                && let Err(failure) = self.driver.note(ended).await
            {
                eprintln!("pool {}: {}", self.name, failure.chain());
            }
        }
    }

    /// One step; returns the pause after which time alone may change something.
    async fn step(&mut self, pool: &Pool) -> Result<Option<Duration>, Error> {
        let mut kept = self.store.kept().await?;
        let mut checked = self.check(pool, &kept);
        let was_driven = kept.newest().is_some();
        if was_driven {
            // Nodes may be asked for minutes before another rollout begins: a person's command is for the one that is there.
            self.take_in(pool, &checked).await?;
            let has_obeyed = self.obey(pool).await?;
            kept = self.store.kept().await?;
            if has_obeyed {
                checked = self.check(pool, &kept);
            }
        }
        let mut waits = None;
        if let Ok(checked) = &checked {
            waits = self.renew(pool, checked, &kept).await?;
            kept = self.store.kept().await?;
        }
        let mut invalid = checked.as_ref().err().cloned();
        if let Some(Wait::Refused(why)) = &waits {
            invalid = Some(why.clone());
        }
        let wait = waits.as_ref().map(Wait::text);
        // Nobody tells when the Secret is there.
        let lacks_right = invalid.as_ref().is_some_and(lacks_right);
        let later = (waits.is_some() || lacks_right).then_some(LATER);
        let Some((rollout, _)) = kept.newest() else {
            let known = Known {
                invalid: invalid.as_ref(),
                waits: wait.as_deref(),
                ..Known::default()
            };
            self.show(pool, known).await?;
            let are_freed = self.uncordon_ended(None).await;
            return Ok(pause(true, are_freed, later));
        };
        self.driver.machines().take_up(brings(rollout));
        self.take_in(pool, &checked).await?;
        if !was_driven {
            self.obey(pool).await?;
        }
        let round = self.driver.round().await;
        let round = round.map_err(|failure| Error::Other(failure.chain()))?;
        // A rollout does not stop for its trace.
        if let Some(trace) = &mut self.trace {
            told(&self.name, trace.note(&round));
        }
        let are_freed = self.uncordon_ended(Some(&round.record)).await;
        let kept = self.store.kept().await?;
        let next = |checked: &Checked| checked.sides(&kept).next(newest(&kept));
        let wait = wait.or_else(|| shown::waits(round.decision.reasons.iter()));
        let known = Known {
            invalid: invalid.as_ref(),
            waits: wait.as_deref(),
            is_followed: checked
                .as_ref()
                .is_ok_and(|it| next(it) != NextRollout::GoOn),
            ..Known::default()
        };
        self.show(pool, known).await?;
        self.show_nodes(pool, &round).await?;
        let is_over = round.record.has_ended() && self.driver.is_idle();
        Ok(pause(is_over, are_freed, later))
    }

    /// Takes back this pool's cordons of nodes that have come to an end. Returns whether none is left.
    async fn uncordon_ended(&self, record: Option<&Record>) -> bool {
        let mut are_freed = true;
        for node in self.cluster.all_nodes() {
            let name = MachineName::from(node.name.as_str());
            let entry = record.and_then(|record| record.machines.get(&name));
            let is_under_way = entry.is_some_and(|entry| entry.step.is_under_way());
            if node.cordoned_by.as_deref() == Some(&self.name)
                && !is_under_way
                && let Err(error) = uncordon(&self.cluster, &node.name, &self.name).await
            {
                eprintln!("pool {}: {error}", self.name);
                are_freed = false;
            }
        }
        are_freed
    }

    /// Shows the pool. The newest rollout and the generation are added to what is known.
    async fn show(&self, pool: &Pool, known: Known<'_>) -> Result<(), Error> {
        let show = |kept: &mut Kept| {
            let newest = newest(kept).map(|(kind, record)| (kind, record.clone()));
            let is_over = newest.as_ref().is_some_and(|(_, record)| {
                !matches!(record.phase, Phase::Rolling | Phase::GoingBack { .. })
            });
            let known = Known {
                generation: pool.metadata.generation,
                newest: newest.as_ref().map(|(kind, record)| (*kind, record)),
                waits: known.waits.filter(|_| !is_over || known.is_followed),
                ..known
            };
            let before = kept.status.phase.clone();
            shown::show(&mut kept.status, known, Timestamp::now());
            if pool.spec.config_patches.is_empty() {
                kept.status.config = None;
            }
            let (phase, message) = (kept.status.phase.clone(), kept.status.message.clone());
            (before != phase).then(|| (phase.unwrap_or_default(), message.unwrap_or_default()))
        };
        let (changed, _) = self.store.update(show).await?;
        let told = changed.and_then(|(phase, message)| events::of_pool(&phase, &message));
        if let Some(told) = told {
            self.cluster.recorder.tell(pool.object_ref(&()), told).await;
        }
        Ok(())
    }
}

/// The pause after a step. A rollout that is over has none, but for `later`, and as long as a node has to be freed of its cordon: nothing else would
/// wake the pool for it.
fn pause(is_over: bool, are_freed: bool, later: Option<Duration>) -> Option<Duration> {
    match (is_over, are_freed) {
        (false, _) => Some(TICK),
        (true, false) => Some(LATER),
        (true, true) => later,
    }
}

fn brings(rollout: &Rollout) -> Brings {
    match rollout.kind() {
        Kind::Version => Brings::Version,
        Kind::Config => Brings::Config(ConfigChange::Patches(rollout.config_patches.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_that_could_not_be_taken_back_is_tried_again_after_the_end() {
        assert_eq!(pause(false, true, None), Some(TICK));
        assert_eq!(pause(true, true, None), None);
        assert_eq!(pause(true, true, Some(LATER)), Some(LATER));
        assert_eq!(pause(true, false, None), Some(LATER));
    }
}
