//! The beginning of a rollout: whether there has to be one, what keeps it from beginning, and what it brings.

use instar_rollout::Release;
use instar_rollout_driver::now;
use kube::core::SelectorExt as _;

use super::checked::{Checked, selector};
use super::{Keeper, newest};
use crate::ahead::{self, Wait};
use crate::api::{Kind, Pool, Rollout};
use crate::failure::Error;
use crate::named::Named;
use crate::node::NodeView;
use crate::record_store::Kept;
use crate::shown::Invalid;
use crate::turns::{Next, NextRollout};
use crate::{left_behind, rollouts};

impl Keeper {
    /// Begins a new rollout, if there has to be one, or goes on with that of the other kind. Returns why there has to be one and cannot be yet.
    pub(super) async fn renew(
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
        let rollout = rollout(pool, checked, kept, (kind, next));
        let (target, nodes) = (&begun.target.version, begun.machines.len());
        eprintln!(
            "pool {}: rollout {} of {target} over {nodes} nodes",
            self.name, rollout.number
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
}

/// The next rollout of a kind, as the status of the pool tells of it.
fn rollout(pool: &Pool, checked: &Checked, kept: &Kept, (kind, next): (Kind, Next)) -> Rollout {
    let image = match kind {
        Kind::Version => checked.named.image(kept),
        Kind::Config => kept
            .last(Kind::Version)
            .map(|(rollout, _)| rollout.image.as_str()),
    };
    Rollout {
        number: kept.next_number(),
        image: image.unwrap_or_default().to_owned(),
        config_patches: match kind {
            Kind::Version => Vec::new(),
            Kind::Config => pool.spec.config_patches.clone(),
        },
        approved_before: kept.approved_before(kind, next, &pool.spec),
        ..Rollout::default()
    }
}
