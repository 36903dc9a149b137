//! The control plane of a machine that is a cluster: its files in the version of the extension that runs, with a snapshot before another
//! version, and its objects once its API answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use instar_kubernetes_plan::PlannedExtension;

use crate::base::blocking_io;
use crate::config::{ControlPlane, Kubernetes};
use crate::kubernetes::control_plane::{self, Applied, Place, apply, etcd, has_begun, version_of};
use crate::kubernetes::trial::Readiness;
use crate::kubernetes::version_file::VersionFile;
use crate::machine::{Configured, Machine};
use crate::network::Network;

/// The pause between two tries to apply the objects.
const PAUSE: Duration = Duration::from_secs(10);
/// Certificates are looked at when a day is over.
const DAY: u64 = 24 * 3600;

/// All that the files of a control plane are made from, besides the config and the extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    place: Place,
    has_begun: bool,
    day: u64,
}

/// Returns the facts; `None` if the control plane is elsewhere.
pub(super) fn facts(machine: &Machine, kubernetes: &Kubernetes, node: &str) -> Option<Facts> {
    let plane = kubernetes.control_plane.as_ref()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Some(Facts {
        place: Place {
            node: node.to_owned(),
            domain: kubernetes.cluster.domain.clone(),
            addresses: addresses(&machine.network, plane),
        },
        has_begun: has_begun(),
        day: now.map_or(0, |now| now.as_secs() / DAY),
    })
}

/// Returns the machine's own addresses: those of links, and not those that networks of pods have added.
fn addresses(network: &Network, plane: &ControlPlane) -> Vec<IpAddr> {
    let status = network.status();
    let status = status.borrow();
    let of_cluster = |address: &IpAddr| {
        let mut subnets = plane.pod_subnets.iter().chain(&plane.service_subnets);
        subnets.any(|subnet| subnet.contains(*address))
    };
    status
        .ip_addresses()
        .filter(|address| !of_cluster(address))
        .collect()
}

/// Judges a node whose cluster is on the same machine: if the API does not answer, that is the node's own fault.
pub(super) fn judged(kubernetes: &Kubernetes, readiness: Readiness) -> Readiness {
    match readiness {
        Readiness::Unknown(why) if kubernetes.control_plane.is_some() => {
            Readiness::NotReady(format!("the control plane of this machine: {why}"))
        }
        readiness => readiness,
    }
}

/// Writes the control plane's files. Before those of another version, etcd's data are kept in a snapshot.
pub(super) async fn write(
    kubernetes: &Kubernetes,
    facts: &Facts,
    extensions: &[PlannedExtension],
) -> anyhow::Result<()> {
    let Some(plane) = &kubernetes.control_plane else {
        return Ok(());
    };
    ensure!(
        !facts.place.addresses.is_empty(),
        "the control plane waits for an address of the machine"
    );
    let version = version_of(extensions)?;
    let before = VersionFile::read().await;
    if let Some(before) = before.filter(|before| *before != version && facts.has_begun) {
        keep_data(plane, &before, &version).await;
    }
    let (kubernetes, facts) = (kubernetes.clone(), facts.clone());
    let of = version.clone();
    let write = move || match &kubernetes.control_plane {
        Some(plane) => control_plane::write(&kubernetes, plane, &facts.place, &of),
        None => Ok(()),
    };
    let written = blocking_io::within(blocking_io::ANSWER, write).await?;
    written.context("write the files of the control plane")?;
    VersionFile::write(&version).await
}

/// Keeps etcd's data before a change of versions. A cluster that is broken is changed without: that may be what mends it.
async fn keep_data(plane: &ControlPlane, before: &str, version: &str) {
    match etcd::keep_snapshot(plane, &format!("{before}-before-{version}")).await {
        Ok(path) => tracing::info!(
            "Kubernetes: {before} becomes {version}; etcd's data of before are in {}",
            path.display()
        ),
        Err(error) => tracing::warn!(
            "Kubernetes: {before} becomes {version} without a snapshot of etcd: {error:#}"
        ),
    }
}

/// The changes that were made to a running control plane.
#[derive(Default)]
pub(super) struct Plane {
    tried: Option<Tried>,
}

/// The last try to apply the objects of a config, in a version of Kubernetes and for a name of the node.
struct Tried {
    of: Arc<Configured>,
    version: String,
    node: String,
    at: Instant,
    applied: Applied,
}

impl Tried {
    /// Whether there is nothing to do for these now.
    fn holds_for(&self, configured: &Arc<Configured>, version: &str, node: &str) -> bool {
        let is_over = self.applied.is_whole() || self.at.elapsed() < PAUSE;
        let is_same = self.version == version && self.node == node;
        Arc::ptr_eq(&self.of, configured) && is_same && is_over
    }
}

impl Plane {
    /// Applies the objects of the cluster, once for each config and version, and says what is missing.
    pub(super) async fn tend(
        &mut self,
        configured: &Arc<Configured>,
        kubernetes: &Kubernetes,
        node: &str,
        readiness: &Readiness,
        problems: &mut Vec<String>,
    ) {
        let Some(plane) = &kubernetes.control_plane else {
            return;
        };
        if !has_begun() {
            problems.push(NOT_BEGUN.to_owned());
            return;
        }
        // The control plane has no files yet, and so no API.
        let Some(version) = VersionFile::read().await else {
            return;
        };
        let tried = self.tried.take();
        let tried = tried.filter(|tried| tried.holds_for(configured, &version, node));
        let tried = match tried {
            Some(tried) => tried,
            None => try_to_apply(configured, (kubernetes, plane), version, node).await,
        };
        let is_ready = *readiness == Readiness::Ready;
        problems.extend(tried.applied.problem(is_ready));
        self.tried = Some(tried);
    }
}

async fn try_to_apply(
    configured: &Arc<Configured>,
    (kubernetes, plane): (&Kubernetes, &ControlPlane),
    version: String,
    node: &str,
) -> Tried {
    let applied = apply(kubernetes, plane, &version, node).await;
    match applied.is_whole() {
        true => tracing::info!("Kubernetes: nodes can join this machine's cluster"),
        false => tracing::debug!("the cluster's own objects wait: {applied:?}"),
    }
    Tried {
        of: configured.clone(),
        version,
        node: node.to_owned(),
        at: Instant::now(),
        applied,
    }
}

/// The problem of a control plane without a cluster.
const NOT_BEGUN: &str = "the cluster has not begun: `instarctl bootstrap` begins a new one, once; \
     after the loss of its data, put a snapshot of etcd in place first";
