//! One pool: its checks, commands of people, rounds of the driver, and what is shown.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use instar_client::Failure;
use instar_rollout::{MachineName, Phase, Policy, Record, Release, Step};
use instar_rollout_driver::{Driver, Round, plan, target};
use instar_values::Version;
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::{ObjectMeta, Selector, SelectorExt as _};
use kube::{Api, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::api::{
    COMMAND, NodeUpgrade, NodeUpgradeSpec, NodeUpgradeStatus, POOL_LABEL, Pool, Rollout,
};
use crate::cluster::{ASK, Cluster};
use crate::drain::Drain;
use crate::events;
use crate::failure::{Error, code};
use crate::machines::PoolNodes;
use crate::node::NodeView;
use crate::policy::{self, Wanted};
use crate::record_store::{Kept, RecordStore, record};
use crate::rollouts::{self, Next, Wishes};
use crate::shown::{self, Invalid};
use crate::step;
use crate::upgrade::uncordon;

/// The pause between two rounds of a rollout that is under way, for what comes with time alone: windows, soaks, patience.
const TICK: Duration = Duration::from_secs(5);
/// The pause before a step: changes that come together are one step, however many nodes join at once.
const GATHER: Duration = Duration::from_millis(200);
/// The pause after a round that failed, and before nodes are asked again what an image is.
const LATER: Duration = Duration::from_secs(20);
/// Nodes that are asked what an image is, before it is said that none can tell.
const ASKED: usize = 3;

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
}

/// A pool that can be driven.
struct Checked {
    image: String,
    /// The version of the image, if it is a channel's.
    version: Option<Version>,
    policy: Policy,
    nodes: Vec<NodeView>,
}

impl Checked {
    fn wanted<'a>(&'a self, known: Option<(&'a str, &Record)>) -> &'a str {
        wanted(&self.image, self.version.as_ref(), known)
    }
}

impl Keeper {
    /// Returns the keeper of this very object; another one of its name gets another keeper.
    pub(crate) fn new(cluster: Cluster, pool: &Pool, wake: Rc<Notify>) -> Self {
        let name = &pool.name_any();
        let api = Api::all(cluster.client.clone());
        let store = RecordStore::new(api, name, cluster.lease.clone());
        let machines = PoolNodes::new(cluster.clone(), name);
        let upgrades = cluster.upgrades.state();
        let is_own = |it: &&Arc<NodeUpgrade>| {
            it.owner_references()
                .iter()
                .any(|owner| Some(&owner.uid) == pool.uid().as_ref())
        };
        let own = upgrades.iter().filter(is_own);
        let written = own.map(|it| (it.name_any(), it.status.clone().unwrap_or_default()));
        Self {
            written: written.collect(),
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
        let checked = self.check(pool, kept.record.as_ref());
        let mut waits = None;
        if let Ok(checked) = &checked {
            match self.renew(pool, checked, &kept).await? {
                Some(wait) => waits = Some(wait),
                None => kept = self.store.kept().await?,
            }
        }
        let mut invalid = checked.as_ref().err().cloned();
        if kept.record.is_none() {
            if let Some(Wait::Refused(why)) = &waits {
                invalid = Some(why.clone());
            }
            let wait = waits.as_ref().map(Wait::text);
            self.show(pool, invalid.as_ref(), wait.as_deref()).await?;
            return Ok(waits.map(|_| LATER));
        }
        self.take_in(pool, &checked).await?;
        self.obey(pool).await?;
        let round = self.driver.round().await;
        let round = round.map_err(|failure| Error::Other(failure.chain()))?;
        self.uncordon_ended(&round.record).await;
        if let Some(Wait::Refused(why)) = &waits {
            invalid = Some(why.clone());
        }
        let wait = waits.as_ref().map(Wait::text);
        let wait = wait.or_else(|| shown::waits(round.decision.reasons.iter()));
        self.show(pool, invalid.as_ref(), wait.as_deref()).await?;
        self.show_nodes(pool, &round).await?;
        let is_over = round.record.has_ended() && self.driver.is_idle();
        Ok(match (is_over, waits) {
            (false, _) => Some(TICK),
            (true, Some(_)) => Some(LATER),
            (true, None) => None,
        })
    }

    /// Whether the pool can be driven, and over which nodes.
    fn check(&mut self, pool: &Pool, record: Option<&Record>) -> Result<Checked, Invalid> {
        let bad = |reason: &'static str| move |why: String| Invalid::new(reason, why);
        let policy = policy::policy(&pool.spec).map_err(bad("BadPolicy"))?;
        let timeout = policy::drain_timeout(&pool.spec, policy.patience);
        let timeout = timeout.map_err(bad("BadPolicy"))?;
        let selector = selector(pool)?;
        let force = policy::is_forced(&pool.spec);
        let machines = self.driver.machines();
        machines.selector = selector.clone();
        machines.drain = Drain { timeout, force };
        let mut nodes = self.cluster.all_nodes();
        nodes.retain(|node| selector.matches(&node.labels));
        let named = self.named(pool, &nodes, record)?;
        nodes.retain(|node| named.is_for(node));
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
        let (image, version) = match named {
            Named::Image(image) => (image, None),
            Named::Release(release) => (release.image, Some(release.version)),
        };
        Ok(Checked {
            image,
            version,
            policy,
            nodes,
        })
    }

    /// What a pool with these nodes and this record names.
    fn named(
        &self,
        pool: &Pool,
        nodes: &[NodeView],
        record: Option<&Record>,
    ) -> Result<Named, Invalid> {
        let bad = |why| Invalid::new("BadImage", why);
        match policy::wanted(&pool.spec).map_err(bad)? {
            Wanted::Image(image) => Ok(Named::Image(image)),
            Wanted::Channel(name) => self.of_channel(&name, nodes, record),
        }
    }

    /// The release of a channel that comes next for these nodes.
    fn of_channel(
        &self,
        name: &str,
        nodes: &[NodeView],
        record: Option<&Record>,
    ) -> Result<Named, Invalid> {
        let none = |why: &str| Invalid::new("NoRelease", format!("channel {name}: {why}"));
        let channel = self.cluster.channel(name);
        let channel = channel.ok_or_else(|| none("there is none of this name"))?;
        let status = channel.status.clone().unwrap_or_default();
        let steps = step::steps(&status);
        let has_failed = |node: &NodeView, version: &Version| {
            record.is_some_and(|record| is_left_behind(record, node, version))
        };
        match step::next(&steps, nodes, has_failed) {
            Ok(Some(next)) => Ok(Named::Release(next.clone())),
            Ok(None) if status.message.is_empty() => Err(none("its list was not read yet")),
            Ok(None) => Err(none(&status.message)),
            Err(why) => Err(none(&why)),
        }
    }

    /// Begins a new rollout, if there has to be one. Returns why there has to be one and cannot be yet.
    async fn renew(
        &mut self,
        pool: &Pool,
        checked: &Checked,
        kept: &Kept,
    ) -> Result<Option<Wait>, Error> {
        let rollout = kept.status.rollout.as_ref();
        let before = rollout.zip(kept.record.as_ref());
        let known = before.map(|(rollout, record)| (rollout.image.as_str(), record));
        let image = checked.wanted(known);
        let next = rollouts::next(image, known, &checked.nodes);
        if next == Next::GoOn {
            return Ok(None);
        }
        if checked.nodes.is_empty() {
            // All of them run a release that was withdrawn: it sends nobody back.
            let runs_newer = checked.version.is_some() && known.is_some();
            let wait = || Wait::For("no node fits the selector".to_owned());
            return Ok((!runs_newer).then(wait));
        }
        if let Some(first) = pool.spec.after.iter().find(|name| !self.is_updated(name)) {
            return Ok(Some(Wait::For(format!(
                "pool {first} does not run its version yet"
            ))));
        }
        if let Err(bad) = rollouts::check(&checked.policy, &checked.nodes) {
            let bad = Invalid::new("BadPolicy", format!("policy.waves: {bad}"));
            return Ok(Some(Wait::Refused(bad)));
        }
        let release = match (next, before) {
            (Next::Again, Some((_, record))) => record.target.clone(),
            _ => match self.resolve(checked).await {
                Ok(release) => release,
                Err(wait) => return Ok(Some(wait)),
            },
        };
        let record = before.map(|(_, record)| record);
        let own = self.cluster.own_node.as_deref();
        let begun = rollouts::begin(release, &checked.policy, &checked.nodes, own, record);
        let begun = begun.map_err(|error| Error::Other(error.to_string()))?;
        let number = rollout.map_or(1, |rollout| rollout.number + 1);
        let rollout = Rollout {
            number,
            image: image.to_owned(),
            approved_before: rollouts::approved_before(next, &pool.spec, rollout),
            ..Rollout::default()
        };
        let (target, nodes) = (&begun.target.version, begun.machines.len());
        eprintln!(
            "pool {}: rollout {number} of {target} over {nodes} nodes",
            self.name
        );
        let begin = |kept: &mut Kept| {
            kept.status.rollout = Some(rollout.clone());
            kept.record = Some(begun.clone());
        };
        self.store.update(begin).await?;
        self.prune(number).await?;
        Ok(None)
    }

    /// Whether a pool runs what it names now. Its status may be of an older release of its channel.
    fn is_updated(&self, pool: &str) -> bool {
        let Some(pool) = self.cluster.pool(pool) else {
            return false;
        };
        let status = pool.status.as_ref();
        let status = status.filter(|it| it.observed_generation == pool.metadata.generation);
        let Some((status, rollout)) = status.and_then(|it| Some((it, it.rollout.as_ref()?))) else {
            return false;
        };
        let (Ok(Some(record)), Ok(selector)) = (record(status), selector(&pool)) else {
            return false;
        };
        let mut nodes = self.cluster.all_nodes();
        nodes.retain(|node| selector.matches(&node.labels));
        let Ok(named) = self.named(&pool, &nodes, Some(&record)) else {
            return false;
        };
        let known = Some((rollout.image.as_str(), &record));
        let is_meant = named.wanted(known) == rollout.image;
        let mut conditions = status.conditions.iter();
        is_meant && conditions.any(|it| it.type_ == "Updated" && it.status == "True")
    }

    /// Asks nodes what the image is.
    async fn resolve(&self, checked: &Checked) -> Result<Release, Wait> {
        let mut answers = Vec::new();
        if checked.nodes.iter().all(|node| node.unready.is_some()) {
            return Err(Wait::For(
                "no node is ready, and could tell what the image is".to_owned(),
            ));
        }
        let ready = checked.nodes.iter().filter(|node| node.unready.is_none());
        for view in ready.take(ASKED) {
            let ask = async {
                let node = self.cluster.connect(view).await?;
                plan(&node, &checked.image).await
            };
            let late = || Failure::new(instar_client::FailureKind::Unreachable, "no answer");
            let answer = timeout(2 * ASK, ask).await.unwrap_or_else(|_| Err(late()));
            let tells = matches!(answer, Ok(Some(_)));
            answers.push(answer);
            if tells {
                break;
            }
        }
        target(&checked.image, answers.iter()).map_err(|failure| {
            let why = failure.chain();
            match failure.kind() {
                instar_client::FailureKind::Refused => {
                    Wait::Refused(Invalid::new("ImageRefused", why))
                }
                _ => Wait::For(format!(
                    "no node could tell which version the image has: {why}"
                )),
            }
        })
    }

    /// Takes the wishes of the pool into the record. Without a valid pool nothing new begins.
    async fn take_in(&self, pool: &Pool, checked: &Result<Checked, Invalid>) -> Result<(), Error> {
        let selector = selector(pool).unwrap_or_default();
        let is_held = |name: &MachineName| {
            let node = self.cluster.node(name.as_str());
            node.is_none_or(|node| node.hold.is_some() || !selector.matches(&node.labels))
        };
        let take_in = |kept: &mut Kept| {
            let (Some(record), Some(rollout)) = (&mut kept.record, &mut kept.status.rollout) else {
                return;
            };
            match checked {
                Ok(checked) => {
                    let wanted = checked.wanted(Some((&rollout.image, &*record)));
                    let wishes = Wishes {
                        policy: &checked.policy,
                        is_paused: pool.spec.paused,
                        is_meant: wanted == rollout.image,
                        approved: rollouts::approvals(&pool.spec, rollout),
                    };
                    rollouts::take_in(record, &wishes, is_held);
                }
                Err(invalid) if !record.has_ended() => {
                    let why = format!("the pool is not valid: {}", invalid.message);
                    if record.paused.as_ref() != Some(&why) {
                        record.paused = Some(why);
                        record.revision += 1;
                    }
                }
                Err(_) => {}
            }
        };
        self.store.update(take_in).await.map(|_| ())
    }

    /// Carries out a person's command, once, and then removes it.
    async fn obey(&self, pool: &Pool) -> Result<(), Error> {
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
                Some(command) => record.command(command).map_err(|error| error.to_string()),
                None => Err("it is none of resume, retry, abort and rollback".to_owned()),
            })
        };
        let (told, _) = self.store.update(obey).await?;
        let Some(text) = text else {
            return Ok(());
        };
        match told {
            Some(Ok(())) => eprintln!("pool {}: a person's command: {text}", self.name),
            Some(Err(why)) => eprintln!("pool {}: {text} is refused: {why}", self.name),
            None => {}
        }
        let api: Api<Pool> = Api::all(self.cluster.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {COMMAND: null}}}));
        let patched = api.patch(&self.name, &PatchParams::default(), &patch).await;
        let failed = Error::calling("the command of the pool cannot be removed");
        patched.map_err(failed).map(|_| ())
    }

    /// Takes back this pool's cordons of nodes that have come to an end.
    async fn uncordon_ended(&self, record: &Record) {
        for node in self.cluster.all_nodes() {
            let entry = record.machines.get(&MachineName::from(node.name.as_str()));
            let is_under_way = entry.is_some_and(|entry| entry.step.is_under_way());
            if node.cordoned_by.as_deref() == Some(&self.name)
                && !is_under_way
                && let Err(error) = uncordon(&self.cluster, &node.name, &self.name).await
            {
                eprintln!("pool {}: {error}", self.name);
            }
        }
    }

    async fn show(
        &self,
        pool: &Pool,
        invalid: Option<&Invalid>,
        waits: Option<&str>,
    ) -> Result<(), Error> {
        let generation = pool.metadata.generation;
        let show = |kept: &mut Kept| {
            let record = kept.record.as_ref();
            let is_over = record.is_some_and(|record| {
                !matches!(record.phase, Phase::Rolling | Phase::GoingBack { .. })
            });
            let waits = waits.filter(|_| !is_over);
            let now = Timestamp::now();
            let before = kept.status.phase.clone();
            shown::show(&mut kept.status, generation, invalid, record, waits, now);
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
        let number = kept.status.rollout.map_or(0, |rollout| rollout.number);
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
                let told = events::of_node(&wanted.phase, to, &wanted.message);
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

    /// Deletes the NodeUpgrades of all rollouts but this one and the one before.
    async fn prune(&mut self, number: u32) -> Result<(), Error> {
        let api: Api<NodeUpgrade> = Api::all(self.cluster.client.clone());
        for object in self.cluster.upgrades.state() {
            if object.spec.pool != self.name || object.spec.rollout + 1 >= number {
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

/// Why a rollout cannot begin yet.
enum Wait {
    /// Something has to come first.
    For(String),
    /// The nodes refuse the image, or the pool's policy makes no sense for its nodes.
    Refused(Invalid),
}

impl Wait {
    fn text(&self) -> String {
        match self {
            Self::For(why) => why.clone(),
            Self::Refused(why) => why.message.clone(),
        }
    }
}

/// What a pool names.
enum Named {
    /// An image.
    Image(String),
    /// The release of its channel that comes next.
    Release(step::Step),
}

impl Named {
    /// Whether a node may be part of its rollout.
    fn is_for(&self, node: &NodeView) -> bool {
        match self {
            Self::Image(_) => true,
            Self::Release(release) => release.is_for(node),
        }
    }

    fn wanted<'a>(&'a self, known: Option<(&'a str, &Record)>) -> &'a str {
        match self {
            Self::Image(image) => wanted(image, None, known),
            Self::Release(release) => wanted(&release.image, Some(&release.version), known),
        }
    }
}

/// Whether a node has failed at this version, and the rollout was done without it.
fn is_left_behind(record: &Record, node: &NodeView, version: &Version) -> bool {
    let entry = record.machines.get(&MachineName::from(node.name.as_str()));
    let has_failed = entry.is_some_and(|entry| matches!(entry.step, Step::Failed { .. }));
    has_failed && record.phase == Phase::Done && is_of(&record.target, version)
}

/// The image that nodes are to run. While a rollout brings this version of the channel, it is the image that it was begun with.
fn wanted<'a>(
    image: &'a str,
    version: Option<&Version>,
    known: Option<(&'a str, &Record)>,
) -> &'a str {
    match (version, known) {
        (Some(version), Some((begun_with, record))) if is_of(&record.target, version) => begun_with,
        _ => image,
    }
}

/// Whether a release has this version of a channel.
fn is_of(release: &Release, version: &Version) -> bool {
    release.version.parse().as_ref() == Ok(version)
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
