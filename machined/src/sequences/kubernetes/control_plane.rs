//! The control plane of a machine that is a cluster: its files in the version of the extension that runs, with a snapshot before another
//! version, and its objects once its API answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use instar_kubernetes_plan::PlannedExtension;

use super::backup::{Backup, Situation};
use super::meeting::Meeting;
use crate::base::blocking_io;
use crate::config::{ControlPlane, Kubernetes};
use crate::kubernetes::control_plane::backup::{Change, forget_change};
use crate::kubernetes::control_plane::{
    self, Applied, Place, apply, data_directory, etcd_image, has_begun, version_of,
    written_etcd_image,
};
use crate::kubernetes::trial::Readiness;
use crate::kubernetes::version_file::VersionFile;
use crate::machine::{Configured, Machine};
use crate::network::Network;
use crate::values::ImageReference;

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

impl Facts {
    fn demand_address(&self) -> anyhow::Result<()> {
        ensure!(
            !self.place.addresses.is_empty(),
            "the control plane waits for an address of the machine"
        );
        Ok(())
    }
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

/// Returns the change of the programs that write etcd's data, from those that the files were written for last.
async fn change_to(plane: &ControlPlane, version: &str) -> anyhow::Result<Option<Change>> {
    let before = VersionFile::read().await;
    let image = blocking_io::within(blocking_io::ANSWER, written_etcd_image).await?;
    let after = etcd_image(plane);
    let before = (before.as_deref(), image.as_deref());
    Ok(Change::between(before, (version, &after)))
}

/// Returns these settings with the image of etcd that the manifests name, if there are any: the one that runs.
pub(super) async fn with_etcd_of_before(kubernetes: &Kubernetes) -> anyhow::Result<Kubernetes> {
    let image = blocking_io::within(blocking_io::ANSWER, written_etcd_image).await?;
    let image = image.map(|image| image.parse::<ImageReference>());
    let image = image.transpose();
    let image = image.context("read the image of etcd that the manifests name")?;
    let mut kubernetes = kubernetes.clone();
    if let (Some(plane), Some(image)) = (&mut kubernetes.control_plane, image) {
        plane.etcd.image = Some(image);
    }
    Ok(kubernetes)
}

/// The changes that were made to a control plane.
#[derive(Default)]
pub(super) struct Plane {
    backup: Backup,
    tried: Option<Tried>,
}

/// The cluster that has the objects. Another config or version has others, and another cluster, or another object of the node, lacks them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Subject {
    version: String,
    node: String,
    /// The directory of etcd's data, which is another one after a restore.
    data: Option<(u64, u64)>,
    meeting: Meeting,
}

/// The last try to apply the objects of a config.
struct Tried {
    of: Arc<Configured>,
    subject: Subject,
    at: Instant,
    applied: Applied,
}

impl Tried {
    /// Whether there is nothing to do for these now.
    fn holds_for(&self, configured: &Arc<Configured>, subject: &Subject) -> bool {
        let is_over = self.applied.is_whole() || self.at.elapsed() < PAUSE;
        Arc::ptr_eq(&self.of, configured) && self.subject == *subject && is_over
    }
}

impl Plane {
    /// Whether another version waits for its snapshot, so that the previous one runs on.
    pub(super) fn holds(&self) -> bool {
        self.backup.holds()
    }

    /// Forgets a version that waits, as it is not asked for any more.
    pub(super) fn let_go(&mut self) {
        self.backup.let_go();
    }

    /// Returns the change of the programs that write etcd's data; `None` if they stay the same, or there are no data.
    ///
    /// # Errors
    /// The version is not known, or the machine has no address.
    pub(super) async fn change(
        kubernetes: &Kubernetes,
        facts: Option<&Facts>,
        extensions: &[PlannedExtension],
    ) -> anyhow::Result<Option<Change>> {
        let (Some(plane), Some(facts)) = (&kubernetes.control_plane, facts) else {
            return Ok(None);
        };
        facts.demand_address()?;
        match facts.has_begun {
            true => change_to(plane, &version_of(extensions)?).await,
            false => Ok(None),
        }
    }

    /// Keeps etcd's data in a snapshot before a change.
    ///
    /// # Errors
    /// The change waits for its snapshot.
    pub(super) async fn before(
        &mut self,
        kubernetes: &Kubernetes,
        change: &Change,
        situation: Situation,
    ) -> anyhow::Result<()> {
        match &kubernetes.control_plane {
            Some(plane) => self.backup.before(plane, change, situation).await,
            None => Ok(()),
        }
    }

    /// Writes the control plane's files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub(super) async fn write(
        kubernetes: &Kubernetes,
        facts: &Facts,
        extensions: &[PlannedExtension],
    ) -> anyhow::Result<()> {
        if kubernetes.control_plane.is_none() {
            return Ok(());
        }
        facts.demand_address()?;
        let version = version_of(extensions)?;
        let (kubernetes, facts) = (kubernetes.clone(), facts.clone());
        let of = version.clone();
        let write = move || match &kubernetes.control_plane {
            Some(plane) => control_plane::write(&kubernetes, plane, &facts.place, &of),
            None => Ok(()),
        };
        let written = blocking_io::within(blocking_io::ANSWER, write).await?;
        written.context("write the files of the control plane")?;
        VersionFile::write(&version).await?;
        Ok(forget_change().await?)
    }

    /// Applies the objects of the cluster, once for each config and version, and again to a cluster that may lack them; says what is missing.
    pub(super) async fn tend(
        &mut self,
        configured: &Arc<Configured>,
        kubernetes: &Kubernetes,
        node: &str,
        (readiness, meeting): (&Readiness, &Meeting),
        problems: &mut Vec<String>,
    ) {
        let Some(plane) = &kubernetes.control_plane else {
            return;
        };
        problems.extend(self.backup.problem());
        if !has_begun() {
            self.tried = None;
            problems.push(NOT_BEGUN.to_owned());
            return;
        }
        // The control plane has no files yet, and so no API.
        let Some(version) = VersionFile::read().await else {
            return;
        };
        let subject = Subject {
            version,
            node: node.to_owned(),
            data: data_directory(),
            meeting: meeting.clone(),
        };
        let tried = self.tried.take();
        let tried = tried.filter(|tried| tried.holds_for(configured, &subject));
        let tried = match tried {
            Some(tried) => tried,
            None => try_to_apply(configured, (kubernetes, plane), subject).await,
        };
        let is_ready = *readiness == Readiness::Ready;
        problems.extend(tried.applied.problem(is_ready));
        self.tried = Some(tried);
    }
}

async fn try_to_apply(
    configured: &Arc<Configured>,
    (kubernetes, plane): (&Kubernetes, &ControlPlane),
    subject: Subject,
) -> Tried {
    let applied = apply(kubernetes, plane, &subject.version, &subject.node).await;
    match applied.is_whole() {
        true => tracing::info!("Kubernetes: nodes can join this machine's cluster"),
        false => tracing::debug!("the cluster's own objects wait: {applied:?}"),
    }
    Tried {
        of: configured.clone(),
        subject,
        at: Instant::now(),
        applied,
    }
}

/// The problem of a control plane without a cluster.
const NOT_BEGUN: &str = "the cluster has not begun: `instarctl bootstrap` begins a new one, once; \
     after the loss of its data, put a snapshot of etcd in place first";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config;

    #[test]
    fn objects_are_applied_again_to_another_cluster_and_for_another_node() {
        let worker = include_str!("../../../../config/tests/data/1.14/worker.yaml");
        let configured = || {
            let parsed = config::parse(worker.as_bytes()).unwrap();
            Arc::new(Configured::new(worker.to_owned(), parsed.config))
        };
        let subject = Subject {
            version: "v1.36.0".to_owned(),
            node: "cp-1".to_owned(),
            data: Some((1, 7)),
            meeting: Meeting::default(),
        };
        let tried = Tried {
            of: configured(),
            subject: subject.clone(),
            at: Instant::now(),
            applied: Applied::default(),
        };
        assert!(tried.holds_for(&tried.of, &subject));
        assert!(!tried.holds_for(&configured(), &subject));
        type Other = fn(&mut Subject);
        let others: [(&str, Other); 4] = [
            ("another version", |it| it.version = "v1.37.0".to_owned()),
            ("another name of the node", |it| it.node = "cp-2".to_owned()),
            ("a restored cluster", |it| it.data = Some((1, 8))),
            ("another object of the node", |it| {
                it.meeting.uid = Some("2".to_owned());
            }),
        ];
        for (words, change) in others {
            let mut other = subject.clone();
            change(&mut other);
            assert!(!tried.holds_for(&tried.of, &other), "{words}");
        }
    }
}
