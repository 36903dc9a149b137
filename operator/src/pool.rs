//! One pool: its checks, commands of people, rounds of the driver, and what is shown.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use instar_client::Failure;
use instar_rollout::{MachineName, Phase, Policy, Record, Release};
use instar_rollout_driver::{ConfigChange, Driver, Round, TraceFile, now};
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{ObjectMeta, Selector, SelectorExt as _};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::ahead::{self, Heard, Refusal, Wait};
use crate::api::{
    COMMAND, Kind, MACHINE, NodeUpgrade, NodeUpgradeSpec, NodeUpgradeStatus, POOL_LABEL, Pool,
    Rollout, Strategy, UNDONE_PATCHES,
};
use crate::cluster::Cluster;
use crate::config_secrets::ConfigSecrets;
use crate::events;
use crate::failure::{Error, code};
use crate::left_behind;
use crate::machines::{Brings, PoolNodes};
use crate::making_way::uncordon;
use crate::manifest::CONFIG_SECRET;
use crate::named::Named;
use crate::node::NodeView;
use crate::policy;
use crate::record_store::{Kept, RecordStore};
use crate::removed_patches;
use crate::replacement;
use crate::rollouts::{self, Fault, Wishes};
use crate::shown::{self, Invalid, Known};
use crate::turns::{Next, NextRollout, Sides};

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

/// A pool that can be driven.
struct Checked {
    named: Named,
    policy: Policy,
    /// All of its nodes.
    nodes: Vec<NodeView>,
}

impl Checked {
    /// The kinds of rollouts that the pool names, each beside the last rollout of its kind.
    fn sides<'a>(&self, kept: &'a Kept) -> Sides<'a> {
        self.named.sides(kept, &self.nodes)
    }

    /// The nodes of a rollout.
    fn nodes_of(&self, kind: Kind) -> Vec<NodeView> {
        let nodes = self.nodes.iter();
        let nodes = nodes.filter(|node| self.named.is_for(kind, node));
        nodes.cloned().collect()
    }

    /// The policy of a rollout of a version over nodes of the pool.
    fn policy_over(&self, version: Option<&str>, is_part: impl Fn(&NodeView) -> bool) -> Policy {
        let version = version.and_then(|text| text.parse().ok());
        match version {
            Some(version) => rollouts::fitting(&self.policy, &version, &self.nodes, is_part),
            None => self.policy.clone(),
        }
    }
}

/// The kind of the newest rollout, and its record.
fn newest(kept: &Kept) -> Option<(Kind, &Record)> {
    let (rollout, record) = kept.newest()?;
    Some((rollout.kind(), record))
}

/// Notes the patches that were taken out of the pool and stay in force, while the last rollout of configs still tells of them. Cluster API takes
/// patches out when their Machine has them: it means them to stay.
fn note_removed_patches(kept: &mut Kept, pool: &Pool) {
    if pool.annotations().contains_key(MACHINE) {
        return;
    }
    let mut known = std::mem::take(&mut kept.status.removed_patches);
    let last = kept.last(Kind::Config);
    let last = last.map(|(rollout, record)| removed_patches::Last {
        patches: &rollout.config_patches,
        record,
    });
    let undone = pool.annotations().get(UNDONE_PATCHES);
    let (wanted, undone) = (&pool.spec.config_patches, undone.map_or("", String::as_str));
    removed_patches::note(&mut known, last.as_ref(), wanted, undone);
    kept.status.removed_patches = known;
}

/// A right of the administrator that a pool needs.
struct LackedRight {
    /// The field of the pool that needs it.
    field: &'static str,
    /// What it permits, after "may".
    purpose: &'static str,
    /// The reason of the condition while the pool waits for the administrator's consent.
    reason: &'static str,
}

const TO_CHANGE_CONFIGS: LackedRight = LackedRight {
    field: "configPatches",
    purpose: "change configs",
    reason: "NoConfigRights",
};
const TO_REPLACE: LackedRight = LackedRight {
    field: "strategy",
    purpose: "replace machines",
    reason: "NoReplaceRights",
};

fn lacks_right(invalid: &Invalid) -> bool {
    [TO_CHANGE_CONFIGS, TO_REPLACE]
        .iter()
        .any(|right| right.reason == invalid.reason)
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

    /// Whether the pool can be driven, and over which nodes.
    fn check(&mut self, pool: &Pool, kept: &Kept) -> Result<Checked, Invalid> {
        let bad = |reason: &'static str| move |why: String| Invalid::new(reason, why);
        let policy = policy::policy(&pool.spec);
        let selector = selector(pool);
        // A way back goes on whatever is wrong with the rest of the pool: it has to know its nodes, and how to ask them.
        let machines = self.driver.machines();
        if let Ok(selector) = &selector {
            machines.selector = selector.clone();
        }
        machines.drain = policy::drain(&pool.spec, policy.as_ref().ok(), machines.drain);
        machines.strategy = pool.spec.strategy;
        let policy = policy.map_err(bad("BadPolicy"))?;
        let selector = selector?;
        let mut nodes = self.cluster.all_nodes();
        nodes.retain(|node| selector.matches(&node.labels));
        let named = Named::of(&self.cluster, pool, &nodes, kept)?;
        if let Some(lacked) = self.lacked_right(pool, &named) {
            let LackedRight { field, purpose, .. } = lacked;
            let why = format!(
                "{field}: this operator may not {purpose}. Make a client configuration with the role os:admin, and put it under the key config into \
                 the Secret {CONFIG_SECRET} of the namespace {}",
                self.cluster.namespace
            );
            return Err(Invalid::new(lacked.reason, why));
        }
        if pool.spec.strategy == Strategy::Replace {
            replacement::check(&nodes).map_err(bad("BadStrategy"))?;
        }
        for other in self.cluster.pools.state() {
            let Ok(selects) = selector_of_another(&other, &self.name) else {
                continue;
            };
            let both = nodes.iter().find(|node| selects.matches(&node.labels));
            if let Some(node) = both {
                let why = format!(
                    "node {} belongs to pool {} as well",
                    node.name,
                    other.name_any()
                );
                return Err(Invalid::new("NodeConflict", why));
            }
        }
        Ok(Checked {
            named,
            policy,
            nodes,
        })
    }

    /// The administrator's right that the pool needs, and this operator does not have.
    fn lacked_right(&self, pool: &Pool, named: &Named) -> Option<LackedRight> {
        if self.cluster.has_administrators_rights() {
            return None;
        }
        match (named.config.is_some(), pool.spec.strategy) {
            (true, _) => Some(TO_CHANGE_CONFIGS),
            (false, Strategy::Replace) => Some(TO_REPLACE),
            (false, Strategy::InPlace) => None,
        }
    }

    /// Begins a new rollout, if there has to be one, or goes on with that of the other kind. Returns why there has to be one and cannot be yet.
    async fn renew(
        &mut self,
        pool: &Pool,
        checked: &Checked,
        kept: &Kept,
    ) -> Result<Option<Wait>, Error> {
        let driven = newest(kept);
        let turn = checked.sides(kept).turn(driven);
        let stays = match turn {
            NextRollout::GoOn => return Ok(None),
            NextRollout::Begin(kind, _) => driven.is_none_or(|(driven, _)| driven == kind),
            NextRollout::TakeUp => false,
        };
        // What is asked for one kind would be noted in the record of the other.
        if !stays && !self.driver.is_idle() {
            return Ok(None);
        }
        match turn {
            NextRollout::Begin(kind, next) => self.begin(pool, checked, kept, (kind, next)).await,
            NextRollout::TakeUp | NextRollout::GoOn => {
                let take_up = |kept: &mut Kept| kept.take_up(&pool.spec, now());
                self.store.update(take_up).await?;
                Ok(None)
            }
        }
    }

    /// Begins a rollout. Returns why it cannot begin yet.
    async fn begin(
        &mut self,
        pool: &Pool,
        checked: &Checked,
        kept: &Kept,
        (kind, next): (Kind, Next),
    ) -> Result<Option<Wait>, Error> {
        let nodes = checked.nodes_of(kind);
        let before = kept.last(kind);
        if nodes.is_empty() {
            return Ok(Some(Wait::For("no node fits the selector".to_owned())));
        }
        if let Some(first) = pool.spec.after.iter().find(|name| !self.is_updated(name)) {
            return Ok(Some(Wait::For(format!(
                "pool {first} does not run its version yet"
            ))));
        }
        let version = match (next, before) {
            (Next::Again, Some((_, record))) => Some(record.target.version.clone()),
            _ => checked.named.release().map(ToString::to_string),
        };
        let is_part = |node: &NodeView| nodes.iter().any(|part| part.name == node.name);
        let policy = checked.policy_over(version.as_deref(), is_part);
        if let Err(bad) = rollouts::check(&policy, &nodes) {
            let bad = Invalid::new("BadPolicy", format!("policy.waves: {bad}"));
            return Ok(Some(Wait::Refused(bad)));
        }
        let release = match (next, before) {
            (Next::Again, Some((_, record))) => record.target.clone(),
            _ => match self.release(pool, checked, kept, (kind, &nodes)).await {
                Ok(release) => release,
                Err(wait) => {
                    self.give_up(&wait, checked, (kind, &nodes)).await?;
                    return Ok(Some(wait));
                }
            },
        };
        let own = self.cluster.own_node.as_deref();
        let record = before.map(|(_, record)| record);
        let left = &kept.status.left_behind;
        let begun = rollouts::begin(release, &policy, &nodes, own, record, left);
        let begun = begun.map_err(|error| Error::Other(error.to_string()))?;
        if kind == Kind::Config && next == Next::Another {
            // A node keeps the change that it has: from now on its previous config is the one with that change.
            let forgot = self.driver.machines().configs.forget().await;
            if let Err(error) = forgot {
                return Ok(Some(Wait::For(error.to_string())));
            }
        }
        let image = match kind {
            Kind::Version => checked.named.image(kept),
            Kind::Config => kept
                .last(Kind::Version)
                .map(|(rollout, _)| rollout.image.as_str()),
        };
        let number = kept.next_number();
        let rollout = Rollout {
            number,
            image: image.unwrap_or_default().to_owned(),
            config_patches: match kind {
                Kind::Version => Vec::new(),
                Kind::Config => pool.spec.config_patches.clone(),
            },
            approved_before: kept.approved_before(kind, next, &pool.spec),
            ..Rollout::default()
        };
        let (target, nodes) = (&begun.target.version, begun.machines.len());
        eprintln!(
            "pool {}: rollout {number} of {target} over {nodes} nodes",
            self.name
        );
        let begin = |kept: &mut Kept| kept.begin(rollout.clone(), begun.clone());
        let (_, kept) = self.store.update(begin).await?;
        self.prune(&kept).await?;
        Ok(None)
    }

    /// Nodes that try again as a person asked for, and refuse the image, are left behind as before: they keep nobody from the releases after it.
    /// So are those that refuse it as they failed at it, though nothing tells of that any more.
    async fn give_up(
        &self,
        wait: &Wait,
        checked: &Checked,
        (kind, nodes): (Kind, &[NodeView]),
    ) -> Result<(), Error> {
        let Wait::Refused(why) = wait else {
            return Ok(());
        };
        if kind != Kind::Version || why.reason != "ImageRefused" {
            return Ok(());
        }
        let refusal = checked.named.release().map(|version| left_behind::Refusal {
            version,
            by: &self.heard.refused,
            why: &why.message,
            at: now(),
        });
        let give_up = |kept: &mut Kept| {
            let known = &mut kept.status.left_behind;
            left_behind::give_up(known, nodes);
            if let Some(refusal) = &refusal {
                left_behind::refuse(known, refusal, &checked.nodes);
            }
        };
        self.store.update(give_up).await.map(drop)
    }

    /// The release that a new rollout brings, as nodes say it.
    async fn release(
        &mut self,
        pool: &Pool,
        checked: &Checked,
        kept: &Kept,
        (kind, nodes): (Kind, &[NodeView]),
    ) -> Result<Release, Wait> {
        let named = &checked.named;
        match (kind, named.image(kept), &named.config) {
            (Kind::Version, Some(image), _) => {
                let nodes = named.may_tell(kept, nodes);
                if nodes.is_empty() {
                    let why = "all nodes that the next release is for have failed at it, and are left behind: `retry` has them try again";
                    return Err(Wait::For(why.to_owned()));
                }
                ahead::version(&self.cluster, image, &nodes, &mut self.heard).await
            }
            (Kind::Config, _, Some(change)) => {
                let nodes = nodes.iter();
                let nodes = nodes.filter(|node| named.runs_the_version(kept, node));
                let nodes: Vec<NodeView> = nodes.cloned().collect();
                let asked = (change, pool.metadata.generation);
                ahead::config(&self.cluster, asked, &nodes, &mut self.refusal).await
            }
            (Kind::Version, None, _) | (Kind::Config, _, None) => {
                Err(Wait::For("the pool names nothing of this kind".to_owned()))
            }
        }
    }

    /// Whether a pool has what it names now. Its status may be of an older release of its channel.
    fn is_updated(&self, pool: &str) -> bool {
        let Some(pool) = self.cluster.pool(pool) else {
            return false;
        };
        let status = pool.status.clone();
        let status = status.filter(|it| it.observed_generation == pool.metadata.generation);
        let kept = status.map(Kept::of);
        let (Some(Ok(kept)), Ok(selector)) = (kept, selector(&pool)) else {
            return false;
        };
        let mut nodes = self.cluster.all_nodes();
        nodes.retain(|node| selector.matches(&node.labels));
        let Ok(named) = Named::of(&self.cluster, &pool, &nodes, &kept) else {
            return false;
        };
        let sides = named.sides(&kept, &nodes);
        let is_meant = newest(&kept).is_some_and(|(kind, _)| sides.mean(kind));
        let mut conditions = kept.status.conditions.iter();
        is_meant && conditions.any(|it| it.type_ == "Updated" && it.status == "True")
    }

    /// Takes the wishes of the pool into the record. Without a valid pool nothing new begins, but for the way back.
    async fn take_in(&self, pool: &Pool, checked: &Result<Checked, Invalid>) -> Result<(), Error> {
        let selector = selector(pool).unwrap_or_default();
        let is_held = |name: &MachineName| {
            let node = self.cluster.node(name.as_str());
            node.is_none_or(|node| node.hold.is_some() || !selector.matches(&node.labels))
        };
        let take_in = |kept: &mut Kept| {
            note_removed_patches(kept, pool);
            let kind = kept.newest().map(|(rollout, _)| rollout.kind());
            let kind = kind.unwrap_or_default();
            let is_meant = checked.as_ref().is_ok_and(|it| it.sides(kept).mean(kind));
            if let Ok(checked) = checked {
                left_behind::forget(&mut kept.status.left_behind, &checked.nodes);
            }
            let (Some(record), Some(rollout)) = (&mut kept.record, &mut kept.status.rollout) else {
                return;
            };
            match checked {
                Ok(checked) => {
                    let is_part = |node: &NodeView| {
                        let name = MachineName::from(node.name.as_str());
                        record.machines.contains_key(&name)
                    };
                    let policy = checked.policy_over(Some(&record.target.version), is_part);
                    let wishes = Wishes {
                        policy: &policy,
                        is_paused: pool.spec.paused,
                        kind,
                        is_meant,
                        approved: rollouts::approvals(&pool.spec, rollout),
                    };
                    rollouts::take_in(record, &wishes, is_held);
                }
                Err(invalid) => {
                    let fault = Fault {
                        why: &invalid.message,
                        is_paused: pool.spec.paused,
                        stops_the_way_back: kind == Kind::Config && lacks_right(invalid),
                    };
                    rollouts::take_in_fault(record, &fault);
                }
            }
        };
        self.store.update(take_in).await.map(|_| ())
    }

    /// Carries out a person's command, once, and then removes it. Returns whether one was carried out.
    async fn obey(&self, pool: &Pool) -> Result<bool, Error> {
        let text = pool.annotations().get(COMMAND);
        let obey = |kept: &mut Kept| {
            let (Some(rollout), Some(record)) = (&mut kept.status.rollout, &mut kept.record) else {
                return None;
            };
            if rollout.command.as_ref() == text {
                return None;
            }
            rollout.command = text.cloned();
            let text = text?;
            Some(match rollouts::command(text) {
                Some(command) => rollouts::obey(record, &mut kept.status.left_behind, command)
                    .map_err(|refused| refused.to_string()),
                None => Err("it is none of resume, retry, abort and rollback".to_owned()),
            })
        };
        let (told, _) = self.store.update(obey).await?;
        let Some(text) = text else {
            return Ok(false);
        };
        let has_obeyed = matches!(told, Some(Ok(())));
        match told {
            Some(Ok(())) => eprintln!("pool {}: a person's command: {text}", self.name),
            Some(Err(why)) => {
                eprintln!("pool {}: {text} is refused: {why}", self.name);
                let refused = events::of_refused_command(text, &why);
                let recorder = &self.cluster.recorder;
                recorder.tell(pool.object_ref(&()), refused).await;
            }
            None => {}
        }
        let api: Api<Pool> = Api::all(self.cluster.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {COMMAND: null}}}));
        let patched = api.patch(&self.name, &PatchParams::default(), &patch).await;
        let failed = Error::calling("the command of the pool cannot be removed");
        patched.map_err(failed).map(|_| has_obeyed)
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

    /// Writes the NodeUpgrades that have changed.
    async fn show_nodes(&mut self, pool: &Pool, round: &Round) -> Result<(), Error> {
        let kept = self.store.kept().await?;
        let rollout = kept.status.rollout.unwrap_or_default();
        let (number, kind) = (rollout.number, rollout.kind());
        let now = Timestamp::now();
        for (machine, entry) in &round.record.machines {
            let reason = round.decision.reasons.get(machine);
            let name = format!("{}.{machine}.{number}", self.name);
            let shown = self.written.get(&name);
            let before = shown.map_or(&[][..], |shown| &shown.conditions);
            let wanted = shown::node_upgrade(entry, reason, before, now);
            if shown.is_some_and(|shown| !shown::differs(shown, &wanted)) {
                continue;
            }
            let spec = NodeUpgradeSpec {
                pool: self.name.clone(),
                node: machine.as_str().to_owned(),
                rollout: number,
                kind,
                to: round.record.target.version.clone(),
            };
            if shown.is_none() {
                self.create(pool, &name, &spec).await?;
            }
            if !self.write(&name, &wanted).await? {
                // One of a pool of this name that was deleted: it went just now.
                self.create(pool, &name, &spec).await?;
                self.write(&name, &wanted).await?;
            }
            if shown.is_none_or(|shown| shown.phase != wanted.phase) {
                let to = &round.record.target.version;
                let told = events::of_node(kind, &wanted.phase, to, &wanted.message);
                let node = self.cluster.node_reference(machine.as_str());
                if let (Some(told), Some(node)) = (told, node) {
                    self.cluster.recorder.tell(node, told).await;
                }
            }
            self.written.insert(name, wanted);
        }
        Ok(())
    }

    /// Writes the status of a NodeUpgrade. Returns whether it is there.
    async fn write(&self, name: &str, wanted: &NodeUpgradeStatus) -> Result<bool, Error> {
        let api: Api<NodeUpgrade> = Api::all(self.cluster.client.clone());
        // A field that is gone has to be named.
        let status = json!({"status": {
            "phase": wanted.phase, "reason": wanted.reason, "message": wanted.message,
            "from": wanted.from, "began": wanted.began, "ended": wanted.ended, "conditions": wanted.conditions,
        }});
        let patch = Patch::Merge(status);
        let patched = api
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        match patched {
            Ok(_) => Ok(true),
            Err(error) if code(&error) == Some(404) => Ok(false),
            Err(error) => {
                let doing = format!("nodeupgrade {name} cannot be written");
                Err(Error::calling(doing)(error))
            }
        }
    }

    async fn create(&self, pool: &Pool, name: &str, spec: &NodeUpgradeSpec) -> Result<(), Error> {
        let api: Api<NodeUpgrade> = Api::all(self.cluster.client.clone());
        let mut object = NodeUpgrade::new(name, spec.clone());
        object.metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(POOL_LABEL.to_owned(), self.name.clone())].into()),
            owner_references: pool.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(409) => Ok(()),
            Err(error) => Err(Error::calling(format!("nodeupgrade {name} cannot be made"))(error)),
        }
    }

    /// Deletes the NodeUpgrades of all rollouts but the newest one, that before it, and the one that is set aside.
    async fn prune(&mut self, kept: &Kept) -> Result<(), Error> {
        let api: Api<NodeUpgrade> = Api::all(self.cluster.client.clone());
        let newest = kept.status.rollout.as_ref().map_or(0, |it| it.number);
        let aside = kept.status.set_aside.as_ref().map(|it| it.number);
        for object in self.cluster.upgrades.state() {
            let number = object.spec.rollout;
            if object.spec.pool != self.name || number + 1 >= newest || aside == Some(number) {
                continue;
            }
            let name = object.name_any();
            match api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(error) if code(&error) == Some(404) => {}
                Err(error) => {
                    return Err(Error::calling(format!(
                        "nodeupgrade {name} cannot be deleted"
                    ))(error));
                }
            }
            self.written.remove(&name);
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

fn selector(pool: &Pool) -> Result<Selector, Invalid> {
    let selector = Selector::try_from(pool.spec.node_selector.clone());
    selector.map_err(|error| Invalid::new("BadSelector", format!("nodeSelector: {error}")))
}

/// The selector of a pool that is another one.
fn selector_of_another(pool: &Pool, name: &str) -> Result<Selector, Invalid> {
    if pool.name_any() == name || pool.metadata.deletion_timestamp.is_some() {
        return Err(Invalid::new("Self", ""));
    }
    selector(pool)
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
