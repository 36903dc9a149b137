//! `cluster.ClusterService`: the node's own health checks, reported until they pass.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use instar_api::cluster::cluster_service_server::ClusterService;
use instar_api::cluster::{ClusterInfo, HealthCheckProgress, HealthCheckRequest};
use instar_api::common::Metadata;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{caller, streamed};
use crate::kubernetes::KubernetesFact;
use crate::machine::Machine;
use crate::status::assess;
use crate::store::MachineStatus;

/// Timeout if the caller gives none; Talos's clients ask for 20 minutes.
const PATIENCE: Duration = Duration::from_secs(20 * 60);
/// Limit on the timeout that a caller may ask for.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The service. A node checks itself alone; one without Kubernetes is a cluster of one.
pub(super) struct ClusterApi {
    machine: Arc<Machine>,
}

impl ClusterApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        ClusterApi { machine }
    }
}

type Sender = mpsc::Sender<Result<HealthCheckProgress, Status>>;

/// Reports the failing checks, whenever they change, until all pass or the time is over. The first line is this one, if there is one.
async fn check(
    machine: Arc<Machine>,
    first: Option<String>,
    until: Instant,
    sender: Sender,
    metadata: Option<Metadata>,
) {
    let mut changes = machine.store.watch();
    let tell = |message: String| {
        sender.send(Ok(HealthCheckProgress {
            metadata: metadata.clone(),
            message,
        }))
    };
    if let Some(first) = first
        && tell(first).await.is_err()
    {
        return;
    }
    let mut told = Vec::new();
    loop {
        let status = machine.status();
        let mut unmet = lines(&status, &assess(&machine));
        unmet.extend(node_line(&machine));
        for line in unmet.iter().filter(|line| !told.contains(*line)) {
            if tell(format!("waiting: {line}")).await.is_err() {
                return;
            }
        }
        if unmet.is_empty() {
            let ready = "healthy: the machine runs, its network is up, and so are its services";
            // An error means that the caller has disconnected.
            let _ = tell(ready.to_owned()).await;
            return;
        }
        told = unmet;
        tokio::select! {
            // A lagging receiver only means that there were many changes.
            changed = timeout_at(until, changes.recv()) => if changed.is_err() {
                let missing = told.join("; ");
                // An error means that the caller has disconnected.
                let _ = sender.send(Err(Status::deadline_exceeded(missing))).await;
                return;
            },
            () = sender.closed() => return,
        }
    }
}

/// The trouble of the machine as a node of its cluster, as far as that does not make the machine itself unready.
fn node_line(machine: &Machine) -> Option<String> {
    let configured = machine.config()?;
    configured.config.kubernetes.as_ref()?;
    let node = machine.store.list::<KubernetesFact>().pop();
    let wrong = match node {
        None => vec!["nobody has looked at its services yet".to_owned()],
        // Then all of it is among the unmet conditions.
        Some((_, node)) if node.unmet().is_some() => return None,
        Some((_, node)) => node.wrong(),
    };
    let why = wrong.join("; ");
    (!wrong.is_empty()).then(|| format!("{}: {why}", MachineStatus::KUBERNETES))
}

/// Says which of the nodes that a caller names are not checked, as they are others than this one.
fn not_checked(cluster: &ClusterInfo, own: &[IpAddr], host_name: &str) -> Option<String> {
    let is_own = |node: &str| match node.parse::<IpAddr>() {
        Ok(address) => own.contains(&address.to_canonical()),
        Err(_) => node == host_name,
    };
    let nodes = cluster.control_plane_nodes.iter();
    let nodes = nodes.chain(&cluster.worker_nodes).map(String::as_str);
    let others: Vec<&str> = nodes.filter(|node| !is_own(node)).collect();
    (!others.is_empty()).then(|| {
        format!(
            "only this node is checked, and not {}: ask each of them itself (`-n ADDRESS`)",
            others.join(", ")
        )
    })
}

fn lines(status: &MachineStatus, found: &MachineStatus) -> Vec<String> {
    let mut lines: Vec<String> = found
        .unmet
        .iter()
        .map(|(name, reason)| format!("{name}: {reason}"))
        .collect();
    if status.stage != found.stage {
        lines.insert(0, format!("the machine is {}", stage(status)));
    }
    lines
}

fn stage(status: &MachineStatus) -> String {
    format!("{:?}", status.stage).to_lowercase()
}

#[tonic::async_trait]
impl ClusterService for ClusterApi {
    async fn health_check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<BoxStream<HealthCheckProgress>>, Status> {
        let metadata = caller::reply_metadata(request.metadata());
        let request = request.into_inner();
        let first = request.cluster_info.and_then(|cluster| {
            let status = self.machine.network.status();
            let status = status.borrow();
            let own: Vec<IpAddr> = status.ip_addresses().collect();
            not_checked(&cluster, &own, &status.hostname)
        });
        let patience = request
            .wait_timeout
            .and_then(|wait| Duration::try_from(wait).ok())
            .filter(|wait| !wait.is_zero())
            .unwrap_or(PATIENCE)
            .min(LONGEST);
        let (sender, receiver) = mpsc::channel(4);
        let until = Instant::now() + patience;
        crate::base::task::spawn(check(self.machine.clone(), first, until, sender, metadata));
        Ok(streamed(ReceiverStream::new(receiver)))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::store::MachineStage;

    #[test]
    fn nodes_that_are_not_checked_are_named() {
        let own = ["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        let of = |planes: &[&str], workers: &[&str]| {
            let texts = |of: &[&str]| of.iter().map(|it| (*it).to_owned()).collect();
            let cluster = ClusterInfo {
                control_plane_nodes: texts(planes),
                worker_nodes: texts(workers),
                ..ClusterInfo::default()
            };
            not_checked(&cluster, &own, "one")
        };
        assert_eq!(of(&[], &[]), None);
        assert_eq!(of(&["10.0.0.5"], &["fd00:0::5", "one"]), None);
        let told = of(&["10.0.0.5", "10.0.0.6"], &["two"]).unwrap();
        assert!(
            told.starts_with("only this node is checked, and not 10.0.0.6, two:"),
            "{told}"
        );
    }

    #[test]
    fn a_stage_on_the_way_elsewhere_is_not_healthy() {
        let of = |stage| MachineStatus {
            stage,
            ready: true,
            unmet: Vec::new(),
        };
        let (running, upgrading) = (of(MachineStage::Running), of(MachineStage::Upgrading));
        assert!(lines(&running, &running).is_empty());
        assert_eq!(lines(&upgrading, &running), ["the machine is upgrading"]);
        let unmet = MachineStatus {
            unmet: vec![("network".to_owned(), "no link has an address".to_owned())],
            ..running.clone()
        };
        assert_eq!(lines(&running, &unmet), ["network: no link has an address"]);
    }
}
