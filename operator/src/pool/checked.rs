//! Whether a pool can be driven, and over which nodes.

use instar_rollout::Policy;
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt as _};

use super::Keeper;
use super::rights::LackedRight;
use crate::api::{Kind, Pool, Strategy};
use crate::manifest::CONFIG_SECRET;
use crate::named::Named;
use crate::node::NodeView;
use crate::record_store::Kept;
use crate::shown::Invalid;
use crate::turns::Sides;
use crate::{policy, replacement, rollouts};

/// A pool that can be driven.
pub(super) struct Checked {
    pub(super) named: Named,
    policy: Policy,
    /// All of its nodes.
    pub(super) nodes: Vec<NodeView>,
}

impl Checked {
    /// The kinds of rollouts that the pool names, each beside the last rollout of its kind.
    pub(super) fn sides<'a>(&self, kept: &'a Kept) -> Sides<'a> {
        self.named.sides(kept, &self.nodes)
    }

    /// The nodes of a rollout.
    pub(super) fn nodes_of(&self, kind: Kind) -> Vec<NodeView> {
        let nodes = self.nodes.iter();
        let nodes = nodes.filter(|node| self.named.is_for(kind, node));
        nodes.cloned().collect()
    }

    /// The policy of a rollout of a version over nodes of the pool.
    pub(super) fn policy_over(
        &self,
        version: Option<&str>,
        is_part: impl Fn(&NodeView) -> bool,
    ) -> Policy {
        let version = version.and_then(|text| text.parse().ok());
        match version {
            Some(version) => rollouts::fitting(&self.policy, &version, &self.nodes, is_part),
            None => self.policy.clone(),
        }
    }
}

impl Keeper {
    /// Whether the pool can be driven, and over which nodes.
    pub(super) fn check(&mut self, pool: &Pool, kept: &Kept) -> Result<Checked, Invalid> {
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
}

pub(super) fn selector(pool: &Pool) -> Result<Selector, Invalid> {
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
