//! `upgrade --if-needed`: for jobs that are started again after they have done their work, or in the middle of it.
//!
//! ```text
//! the node changes its version ──► wait ──► this very image runs ──► nothing to do
//!                                       ──► it failed here before ──► the node's reason
//!                                       ──► upgrade
//! ```

use std::time::Duration;

use instar_api::cosi::resource::GetRequest;
use instar_api::instar::UpgradePlanRequest;
use instar_api::instar::upgrade_service_client::UpgradeServiceClient;
use instar_api::machine::UpgradeRequest;
use instar_client::{Failure, FailureKind, Node};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use tonic::{Code, Status};

use crate::commands::get::state;

/// The interval between two looks at a node that changes its version.
const LOOK: Duration = Duration::from_secs(1);

/// Whether there is anything to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Need {
    /// The image is another one than the one that runs.
    Upgrade,
    /// The image runs.
    Nothing {
        /// Its version.
        version: String,
    },
}

/// Waits until the node is in no change of versions, and asks whether it needs the upgrade.
pub(super) async fn judge(
    node: &Node,
    upgrade: &UpgradeRequest,
    limit: Duration,
) -> Result<Need, Failure> {
    wait_until_it_runs(node, limit).await?;
    let request = UpgradePlanRequest {
        upgrade: Some(upgrade.clone()),
    };
    let mut client = UpgradeServiceClient::new(node.channel());
    let reply = client.plan(node.request(request)).await;
    let plan = reply.map_err(|status| node.explain("does not take the upgrade", status))?;
    let plan = plan.into_inner();
    let running = node.version().await?.release.unwrap_or_default();
    Ok(need(
        &running.digest,
        &plan.digest,
        &plan.version,
        &plan.version_before,
    ))
}

/// `running` is the digest of the image that runs. Without one, the version came from a medium: then its name decides.
fn need(running: &str, digest: &str, version: &str, runs: &str) -> Need {
    let is_same = match running {
        "" => version == runs,
        running => running == digest,
    };
    match is_same {
        true => Need::Nothing {
            version: runs.to_owned(),
        },
        false => Need::Upgrade,
    }
}

async fn wait_until_it_runs(node: &Node, limit: Duration) -> Result<(), Failure> {
    let until = Instant::now() + limit;
    loop {
        let seen = match stage(node).await {
            Ok(stage) if stage == "running" => return Ok(()),
            Ok(stage) => format!("it is {stage}"),
            Err(status) if status.code() == Code::Unavailable => "it does not answer".to_owned(),
            Err(status) => return Err(node.explain("cannot ask for its stage", status)),
        };
        if Instant::now() >= until {
            let (node, limit) = (node.name(), limit.as_secs());
            let message = format!("{node}: not running after {limit} s: {seen}");
            return Err(Failure::new(FailureKind::TimedOut, message));
        }
        sleep(LOOK).await;
    }
}

/// The stage that the machine is in.
async fn stage(node: &Node) -> Result<String, Status> {
    let request = node.request(GetRequest {
        namespace: "runtime".to_owned(),
        r#type: "MachineStatuses.runtime.talos.dev".to_owned(),
        id: "machine".to_owned(),
        options: None,
    });
    let reply = state(node).get(request).await?.into_inner();
    let spec = reply.resource.and_then(|resource| resource.spec);
    let yaml = spec.map(|spec| spec.yaml_spec).unwrap_or_default();
    let status: Value = serde_saphyr::from_str(&yaml)
        .map_err(|error| Status::internal(format!("the machine's status is no YAML: {error}")))?;
    Ok(status["stage"].as_str().unwrap_or("silent").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_decides_and_without_one_the_version() {
        let nothing = Need::Nothing {
            version: "v1".to_owned(),
        };
        assert_eq!(need("sha256:a", "sha256:a", "v1", "v1"), nothing);
        // The same version from another image.
        assert_eq!(need("sha256:a", "sha256:b", "v1", "v1"), Need::Upgrade);
        assert_eq!(need("", "sha256:a", "v1", "v1"), nothing);
        assert_eq!(need("", "sha256:a", "v2", "v1"), Need::Upgrade);
    }
}
