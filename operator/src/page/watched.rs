//! The pools as one visitor's watches see them. The watches end with the visit.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{self, Stream, StreamExt as _};
use instar_rollout_page::{View, Views};
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep, timeout};

use super::view::view;
use crate::api::{NodeUpgrade, Pool};
use crate::node::{NodeView, trim};

/// The time in which changes come together: a round of the operator changes several objects.
const GATHER: Duration = Duration::from_millis(200);
/// That time is at least this many times the time that the view before took: it is made on the thread that renews the lease.
const SHARE: u32 = 20;
/// The pause after an error.
const LATER: Duration = Duration::from_secs(2);

/// The objects that a visitor's watches have seen.
pub(super) struct Watched {
    /// Something has changed, or a watch has failed.
    changes: Pin<Box<dyn Stream<Item = Result<(), watcher::Error>>>>,
    pools: Store<Pool>,
    nodes: Store<Node>,
    upgrades: Store<NodeUpgrade>,
    /// Whether something has changed since the visitor was told.
    is_new: bool,
    /// The time that the last view took to make.
    took: Duration,
    /// The visitor's seat, which is free again when the visit ends.
    _seat: OwnedSemaphorePermit,
}

impl Watched {
    /// Begins to watch with the rights of this client.
    pub(super) fn begin(client: &Client, seat: OwnedSemaphorePermit) -> Self {
        let (pools, pool_writer) = reflector::store();
        let (nodes, node_writer) = reflector::store();
        let (upgrades, upgrade_writer) = reflector::store();
        let config = watcher::Config::default;
        let of_pools = watcher(Api::<Pool>::all(client.clone()), config())
            .default_backoff()
            .reflect(pool_writer)
            .map(|event| event.map(drop));
        let of_nodes = watcher(Api::<Node>::all(client.clone()), config())
            .modify(slim)
            .default_backoff()
            .reflect(node_writer)
            .map(|event| event.map(drop));
        let of_upgrades = watcher(Api::<NodeUpgrade>::all(client.clone()), config())
            .modify(slim_upgrade)
            .default_backoff()
            .reflect(upgrade_writer)
            .map(|event| event.map(drop));
        Self {
            changes: Box::pin(stream::select(
                of_pools,
                stream::select(of_nodes, of_upgrades),
            )),
            pools,
            nodes,
            upgrades,
            is_new: false,
            took: Duration::ZERO,
            _seat: seat,
        }
    }

    /// Whether each watch has seen the cluster once: half of the nodes would be shown as a smaller pool.
    fn is_complete(&self) -> bool {
        let pools = self.pools.wait_until_ready().now_or_never();
        let nodes = self.nodes.wait_until_ready().now_or_never();
        let upgrades = self.upgrades.wait_until_ready().now_or_never();
        pools.and(nodes).and(upgrades).is_some()
    }

    fn views(&self) -> Vec<View> {
        let nodes = self.nodes.state();
        let nodes: BTreeMap<String, NodeView> = nodes
            .iter()
            .map(|node| (node.name_any(), NodeView::of(node)))
            .collect();
        let upgrades = self.upgrades.state();
        let mut by_pool: BTreeMap<&str, Vec<&NodeUpgrade>> = BTreeMap::new();
        for upgrade in &upgrades {
            let of_pool = by_pool.entry(&upgrade.spec.pool).or_default();
            of_pool.push(upgrade);
        }
        let views = self.pools.state().into_iter().map(|pool| {
            let own = by_pool.get(pool.name_any().as_str());
            view(&pool, &nodes, own.map_or(&[], Vec::as_slice))
        });
        let mut views: Vec<View> = views.collect();
        views.sort_by(|one, other| one.name.cmp(&other.name));
        views
    }
}

impl Views for Watched {
    async fn next(&mut self) -> Result<Vec<View>, String> {
        while !(self.is_new && self.is_complete()) {
            match self.changes.next().await {
                Some(Ok(())) => self.is_new = true,
                Some(Err(error)) => return Err(format!("the cluster cannot be watched: {error}")),
                None => {
                    sleep(LATER).await;
                    return Err(
                        "the watches of the cluster have ended: load the page again".to_owned()
                    );
                }
            }
        }
        let gather = async { while let Some(Ok(())) = self.changes.next().await {} };
        // Changes that come together are shown together, until the time is over. An error here comes again.
        let _ = timeout(GATHER.max(SHARE * self.took), gather).await;
        self.is_new = false;
        let began = Instant::now();
        let views = self.views();
        self.took = began.elapsed();
        Ok(views)
    }
}

/// Drops the parts of a node's object that the page does not show: each visitor has all nodes.
fn slim(node: &mut Node) {
    trim(node);
    if let Some(status) = &mut node.status {
        status.addresses = None;
        status.node_info = None;
        if let Some(conditions) = &mut status.conditions {
            conditions.retain(|condition| condition.type_ == "Ready");
        }
    }
}

fn slim_upgrade(upgrade: &mut NodeUpgrade) {
    upgrade.metadata.managed_fields = None;
    upgrade.metadata.owner_references = None;
    upgrade.metadata.labels = None;
    if let Some(status) = &mut upgrade.status {
        status.conditions = Vec::new();
    }
}
