//! `cluster.ClusterService`: the node's own health checks, reported until they pass.

use std::sync::Arc;
use std::time::Duration;

use instar_api::cluster::cluster_service_server::ClusterService;
use instar_api::cluster::{HealthCheckProgress, HealthCheckRequest};
use instar_api::common::Metadata;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::{caller, streamed};
use crate::machine::Machine;
use crate::status::assess;
use crate::store::MachineStatus;

/// Timeout if the caller gives none; Talos's clients ask for 20 minutes.
const PATIENCE: Duration = Duration::from_secs(20 * 60);
/// Limit on the timeout that a caller may ask for.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The service. A node without Kubernetes is a cluster of one.
pub(super) struct ClusterApi {
    machine: Arc<Machine>,
}

impl ClusterApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        ClusterApi { machine }
    }
}

type Sender = mpsc::Sender<Result<HealthCheckProgress, Status>>;

/// Reports the failing checks, whenever they change, until all pass or the time is over.
async fn check(machine: Arc<Machine>, until: Instant, sender: Sender, metadata: Option<Metadata>) {
    let mut changes = machine.store.watch();
    let tell = |message: String| {
        sender.send(Ok(HealthCheckProgress {
            metadata: metadata.clone(),
            message,
        }))
    };
    let mut told = Vec::new();
    loop {
        let status = machine.status();
        let unmet = lines(&status, &assess(&machine));
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
        let patience = request
            .into_inner()
            .wait_timeout
            .and_then(|wait| Duration::try_from(wait).ok())
            .filter(|wait| !wait.is_zero())
            .unwrap_or(PATIENCE)
            .min(LONGEST);
        let (sender, receiver) = mpsc::channel(4);
        let until = Instant::now() + patience;
        crate::base::task::spawn(check(self.machine.clone(), until, sender, metadata));
        Ok(streamed(ReceiverStream::new(receiver)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MachineStage;

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
