//! The process: the lease, the watches, and a keeper for each pool.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;

use futures_util::{Stream, StreamExt};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tokio::time::sleep;

use crate::api::{Channel, NodeUpgrade, Pool};
use crate::channels;
use crate::cluster::Cluster;
use crate::events::Recorder;
use crate::failure::Error;
use crate::lease::Leadership;
use crate::making_way::uncordon;
use crate::node::{NodeView, trim};
use crate::page;
use crate::pool::{Keeper, LATER};
use crate::serve;
use crate::way;

/// The name of the lease.
const LEASE: &str = "instar-operator";

/// How the operator runs.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The client configuration for the APIs of the nodes, as `talosctl config` and `instarctl` write it; its certificate needs the role
    /// os:upgrader.
    #[arg(long, env = "TALOSCONFIG")]
    talosconfig: Option<PathBuf>,
    /// A second one, whose certificate has the role os:admin: by it alone the operator reads and changes the configs of nodes, for pools with
    /// configPatches, and replaces machines, for pools with the strategy Replace. The file may come and go.
    #[arg(long, env = "INSTAR_CONFIG_TALOSCONFIG")]
    config_talosconfig: Option<PathBuf>,
    /// The namespace of the lease, and of the operator's own pods.
    #[arg(long, env = "POD_NAMESPACE", default_value = "instar-system")]
    namespace: String,
    /// This process's name in the lease; the host's name and the process id by default.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// The node on which this process runs: it is upgraded last.
    #[arg(long, env = "NODE_NAME")]
    node: Option<String>,
    /// Where to serve /healthz and /metrics.
    #[arg(long, env = "INSTAR_LISTEN")]
    listen: Option<SocketAddr>,
    /// Where to serve the page of the pools for a browser. It has no TLS; visitors bring a token of the cluster.
    #[arg(long, env = "INSTAR_PAGE")]
    page: Option<SocketAddr>,
    /// A folder for traces: the rounds of each pool's rollouts, as lines of JSON in POOL.jsonl, which the engine can replay. For tests and reports
    /// of faults: nothing limits these files.
    #[arg(long, env = "INSTAR_TRACES")]
    traces: Option<PathBuf>,
}

/// Runs until the process is asked to end, or has lost its lease.
///
/// # Errors
/// The cluster cannot be reached, or the lease is lost.
pub fn run(options: Options) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Other(format!("the runtime cannot begin: {error}")))?;
    // One cryptography library in all of our programs.
    let _ = rustls::crypto::ring::default_provider().install_default();
    LocalSet::new().block_on(&runtime, operate(options))
}

async fn operate(options: Options) -> Result<(), Error> {
    let client = way::client(Some(way::CALL)).await?;
    if let Some(listen) = options.page {
        page::begin(listen, way::way().await?).await?;
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), &options.namespace);
    let identity = options.identity.clone().unwrap_or_else(own_name);
    let lease = Rc::new(Leadership::new(leases, LEASE, &identity));
    let recorder = Recorder::new(client.clone(), &identity);
    let pools = serve::Shown::default();
    if let Some(listen) = options.listen {
        serve::begin(listen, lease.clone(), pools.clone()).await?;
    }
    let lead = async {
        eprintln!(
            "{identity}: waits for the lease {}/{LEASE}",
            options.namespace
        );
        lease.acquire().await;
        eprintln!("{identity}: has the lease");
        tokio::select! {
            () = lease.keep() => Err(Error::Other("the lease is lost: another process drives".to_owned())),
            ended = watch(client, lease.clone(), recorder, &options, pools) => ended,
        }
    };
    tokio::select! {
        ended = lead => ended,
        () = asked_to_end() => {
            lease.give_back().await;
            eprintln!("{identity}: has given the lease back");
            Ok(())
        }
    }
}

fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), std::process::id())
}

async fn asked_to_end() {
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Watches, and has each pool kept.
async fn watch(
    client: Client,
    lease: Rc<Leadership>,
    recorder: Recorder,
    options: &Options,
    shown: serve::Shown,
) -> Result<(), Error> {
    let watches = way::client(None).await?;
    let evictions = way::client_without_retries().await?;
    let (nodes, node_writer) = reflector::store();
    let (pools, pool_writer) = reflector::store();
    let (upgrades, upgrade_writer) = reflector::store();
    let (channels, channel_writer) = reflector::store();
    let config = watcher::Config::default();
    let node_events = watcher(Api::<Node>::all(watches.clone()), config.clone())
        .modify(trim)
        .default_backoff()
        .reflect(node_writer);
    let pool_events = watcher(Api::<Pool>::all(watches.clone()), config.clone())
        .default_backoff()
        .reflect(pool_writer);
    let channel_events = watcher(Api::<Channel>::all(watches.clone()), config.clone())
        .default_backoff()
        .reflect(channel_writer);
    let upgrade_events = watcher(Api::<NodeUpgrade>::all(watches), config)
        .default_backoff()
        .reflect(upgrade_writer);
    let keepers = Keepers {
        cluster: Cluster {
            client,
            evictions,
            nodes,
            pools,
            upgrades,
            channels,
            lease,
            recorder,
            talosconfig: options.talosconfig.clone(),
            config_talosconfig: options.config_talosconfig.clone(),
            namespace: options.namespace.clone(),
            own_node: options.node.clone(),
            traces: options.traces.clone(),
        },
        wakers: Rc::default(),
        readers: RefCell::default(),
        gone: Notify::new(),
        seen: RefCell::default(),
    };
    let on_nodes = each(node_events, |event| keepers.node_changed(event));
    let on_pools = each(pool_events, |event| {
        keepers.pool_changed(event);
        shown.set(&keepers.cluster.pools);
    });
    let on_channels = each(channel_events, |_| keepers.channels_changed());
    let on_upgrades = each(upgrade_events, |_| {});
    let keep = keepers.begin();
    let free = keepers.free_orphans();
    tokio::join!(on_nodes, on_pools, on_channels, on_upgrades, keep, free);
    Err(Error::Other("a watch has ended".to_owned()))
}

async fn each<K>(
    events: impl Stream<Item = Result<watcher::Event<K>, watcher::Error>>,
    mut act: impl FnMut(&watcher::Event<K>),
) {
    let mut events = pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => act(&event),
            Err(error) => eprintln!("a watch goes on after an error: {error}"),
        }
    }
}

/// The wakers of keepers, by the names of their pools.
type Wakers = BTreeMap<String, Rc<Notify>>;
/// The wakers of readers, by the names and uids of their channels: one that was deleted and made again is another one.
type Readers = BTreeMap<(String, Option<String>), Rc<Notify>>;

/// A keeper for each pool.
struct Keepers {
    cluster: Cluster,
    /// The waker of each keeper; none before all watches have seen the cluster once.
    wakers: Rc<RefCell<Option<Wakers>>>,
    /// The waker of each channel's reader.
    readers: RefCell<Readers>,
    /// A pool may be gone, with nodes that it has cordoned.
    gone: Notify,
    /// The nodes as they were seen last: most changes of their objects do not matter here.
    seen: RefCell<BTreeMap<String, NodeView>>,
}

impl Keepers {
    /// Begins when the stores are complete: with half of the nodes a rollout would be one over half of them.
    async fn begin(&self) {
        let Cluster {
            nodes,
            pools,
            upgrades,
            channels,
            ..
        } = &self.cluster;
        let are_seen = wait(nodes).await && wait(pools).await && wait(upgrades).await;
        if are_seen && wait(channels).await {
            *self.wakers.borrow_mut() = Some(Wakers::new());
            self.channels_changed();
            self.wake_all();
            self.look_for_orphans();
        }
        std::future::pending().await
    }

    fn node_changed(&self, event: &watcher::Event<Node>) {
        let changed = match event {
            watcher::Event::Apply(node) => {
                let view = NodeView::of(node);
                let pool = view.cordoned_by.as_ref();
                // The cordon was on its way when the pool went.
                if pool.is_some_and(|pool| self.cluster.pool(pool).is_none()) {
                    self.look_for_orphans();
                }
                let before = self
                    .seen
                    .borrow_mut()
                    .insert(view.name.clone(), view.clone());
                before.as_ref() != Some(&view)
            }
            watcher::Event::Delete(node) => {
                self.seen.borrow_mut().remove(&node.name_any());
                true
            }
            watcher::Event::InitDone => {
                self.look_for_orphans();
                true
            }
            watcher::Event::Init | watcher::Event::InitApply(_) => false,
        };
        if changed {
            self.wake_all();
        }
    }

    fn pool_changed(&self, event: &watcher::Event<Pool>) {
        if may_be_gone(event) {
            self.look_for_orphans();
        }
        match event {
            watcher::Event::Init | watcher::Event::InitApply(_) => {}
            // Another pool may wait for this one, or share a node with it.
            watcher::Event::Apply(_) | watcher::Event::Delete(_) | watcher::Event::InitDone => {
                self.wake_all();
            }
        }
    }

    /// Wakes the readers of all channels, and the pools, which may follow one. Channels without a reader get it.
    fn channels_changed(&self) {
        if self.wakers.borrow().is_none() {
            return;
        }
        let mut readers = self.readers.borrow_mut();
        readers.retain(|(name, uid), wake| {
            let channel = self.cluster.channel(name);
            let is_there = channel.is_some_and(|channel| channel.uid() == *uid);
            if !is_there {
                // It notices, and ends.
                wake.notify_one();
            }
            is_there
        });
        for channel in self.cluster.channels.state() {
            let channel = (channel.name_any(), channel.uid());
            let wake = readers.entry(channel.clone()).or_insert_with(|| {
                let wake = Rc::new(Notify::new());
                let reader = channels::keep(self.cluster.clone(), channel, wake.clone());
                tokio::task::spawn_local(reader);
                wake
            });
            wake.notify_one();
        }
        drop(readers);
        self.wake_all();
    }

    /// Wakes the keepers of all pools; those without one get it.
    fn wake_all(&self) {
        let mut wakers = self.wakers.borrow_mut();
        let Some(wakers) = &mut *wakers else {
            return;
        };
        for pool in self.cluster.pools.state() {
            let name = pool.name_any();
            wakers.entry(name.clone()).or_insert_with(|| {
                let wake = Rc::new(Notify::new());
                self.keep(name, wake.clone());
                wake
            });
        }
        // Those of deleted pools too: they notice, and end.
        for wake in wakers.values() {
            wake.notify_one();
        }
    }

    /// Keeps the pools of a name, one after the other, until there is none.
    fn keep(&self, name: String, wake: Rc<Notify>) {
        let (wakers, cluster) = (self.wakers.clone(), self.cluster.clone());
        tokio::task::spawn_local(async move {
            while let Some(pool) = cluster.pool(&name) {
                Keeper::new(cluster.clone(), &pool, wake.clone())
                    .run()
                    .await;
            }
            if let Some(wakers) = &mut *wakers.borrow_mut() {
                wakers.remove(&name);
            }
        });
    }

    /// Has nodes freed whose pool is gone, once all watches have seen the cluster: before that each pool seems to be gone.
    fn look_for_orphans(&self) {
        if self.wakers.borrow().is_some() {
            self.gone.notify_one();
        }
    }

    /// Frees nodes whose pool is gone, whenever one may be, and again after a pause while one could not be freed. The pause keeps nothing else
    /// waiting.
    async fn free_orphans(&self) {
        loop {
            self.gone.notified().await;
            while !self.free_all().await {
                sleep(LATER).await;
            }
        }
    }

    /// Uncordons nodes whose pool is gone. Returns whether none is left.
    async fn free_all(&self) -> bool {
        let is_there = |pool: &str| self.cluster.pool(pool).is_some();
        let mut are_freed = true;
        for (node, pool) in orphans(self.cluster.all_nodes(), is_there) {
            // A pool of its name may have been made while others were freed.
            if is_there(&pool) {
                continue;
            }
            if let Err(error) = uncordon(&self.cluster, &node, &pool).await {
                eprintln!("pool {pool}, which is gone: {error}");
                are_freed = false;
            }
        }
        are_freed
    }
}

/// Whether a pool may be gone. No event of its own tells of one that was deleted while the watch had to list all pools anew.
fn may_be_gone(event: &watcher::Event<Pool>) -> bool {
    matches!(event, watcher::Event::Delete(_) | watcher::Event::InitDone)
}

/// The nodes that a pool has cordoned which is gone, each with the name of that pool.
fn orphans(nodes: Vec<NodeView>, is_there: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let cordoned = nodes
        .into_iter()
        .filter_map(|node| Some((node.name, node.cordoned_by?)));
    cordoned.filter(|(_, pool)| !is_there(pool)).collect()
}

async fn wait<K>(store: &Store<K>) -> bool
where
    K: reflector::Lookup + Clone + 'static,
    K::DynamicType: Eq + std::hash::Hash + Clone,
{
    store.wait_until_ready().await.is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn node(name: &str, cordoned_by: Option<&str>) -> NodeView {
        let annotations = cordoned_by.map(|pool| json!({crate::api::CORDONED_BY: pool}));
        let object = json!({"metadata": {"name": name, "annotations": annotations}});
        NodeView::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_node_is_freed_whose_pool_is_gone() {
        let nodes = vec![
            node("n1", Some("lab")),
            node("n2", Some("old")),
            node("n3", None),
        ];
        let orphans = orphans(nodes, |pool| pool == "lab");
        assert_eq!(orphans, [("n2".to_owned(), "old".to_owned())]);
    }

    #[test]
    fn a_pool_may_be_gone_after_the_watch_has_listed_all_anew() {
        let pool = || -> Pool {
            let spec = json!({"nodeSelector": {}, "image": "r/i:v2"});
            Pool::new("lab", serde_json::from_value(spec).unwrap())
        };
        for (event, may_be) in [
            (watcher::Event::Delete(pool()), true),
            (watcher::Event::InitDone, true),
            (watcher::Event::Apply(pool()), false),
            (watcher::Event::Init, false),
            (watcher::Event::InitApply(pool()), false),
        ] {
            assert_eq!(may_be_gone(&event), may_be, "{event:?}");
        }
    }
}
