//! One node's upgrade: it is asked what will live through it, way is made, and the calls of the node's API.
//!
//! ```text
//!  the node's own plan ─► cordon, and a drain if the plan ends the pods ─► upgrade, followed until the version is committed
//! ```
//!
//! A node that is replaced by the version is drained in any case, and asked with the administrator's rights. Its way back is an upgrade in place:
//! of what was on EPHEMERAL before, nothing is left to go back to, and a node that has not joined again could not prove which one it is.

use std::time::Duration;

use instar_api::definitions::instar::ImagePinSpec;
use instar_api::instar::PrepareUpgradeRequest;
use instar_api::instar::ReplaceRequest;
use instar_api::instar::UpgradePlanResponse;
use instar_api::instar::upgrade_service_client::UpgradeServiceClient;
use instar_api::machine::UpgradeRequest;
use instar_client::{Failure, FailureKind, Node, Progress, Update, replace, resources, upgrade};
use instar_rollout::{Action, Report};
use instar_rollout_driver::{pinned, plan};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::api::Strategy;
use crate::cluster::ASK;
use crate::making_way::{MakingWay, unreachable};

/// The container of a node in which all pods are.
const KUBERNETES: &str = "kubernetes";
/// Why the pods of a node leave that is replaced.
const REPLACED: &str = "the machine is replaced, and nothing is left on EPHEMERAL";
/// The pause between two looks at how far images are.
const FETCHES: Duration = Duration::from_secs(2);

/// One action on one node.
pub(crate) struct Order {
    pub(crate) way: MakingWay,
    pub(crate) strategy: Strategy,
    /// The time that it has.
    pub(crate) limit: Duration,
}

impl Order {
    /// Carries it out; returns what is reported of it ([`MakingWay::reported`]).
    pub(crate) async fn carry_out(self) -> Option<Report> {
        let until = Instant::now() + self.limit;
        let done = timeout_at(until, self.act(until)).await;
        self.way.reported(done.ok()).await
    }

    async fn act(&self, until: Instant) -> Result<(), Failure> {
        let view = self.way.view()?;
        let image = self.way.to.as_ref().and_then(pinned).ok_or_else(|| {
            Failure::new(
                FailureKind::Refused,
                "the previous version came from no image: roll it back with `instarctl rollback`",
            )
        })?;
        let cluster = &self.way.cluster;
        match (&self.way.action, self.strategy) {
            (Action::Prepare(_), _) => prepare(&cluster.connect(&view).await?, &image).await,
            (Action::Switch(_), Strategy::Replace) => {
                let node = cluster.connect_as_administrator(&view).await?;
                self.replace(&node, image, until).await
            }
            (Action::Switch(_) | Action::Return(_), _) => {
                self.change(&cluster.connect(&view).await?, image, until)
                    .await
            }
        }
    }

    async fn change(&self, node: &Node, image: String, until: Instant) -> Result<(), Failure> {
        let plan = self.plan(node, &image).await?;
        let leave = plan.as_ref().and_then(ends_pods);
        self.way.make(leave.as_deref()).await?;
        let request = UpgradeRequest {
            image,
            preserve: true,
            ..UpgradeRequest::default()
        };
        let mut progress = Log { way: &self.way };
        upgrade(node, request, left(until), &mut progress).await?;
        Ok(())
    }

    async fn replace(&self, node: &Node, image: String, until: Instant) -> Result<(), Failure> {
        // A node that would refuse the image is not drained for it.
        self.plan(node, &image).await?;
        self.way.make(Some(REPLACED)).await?;
        let request = ReplaceRequest {
            image,
            force: false,
        };
        let mut progress = Log { way: &self.way };
        replace(node, request, left(until), &mut progress).await?;
        Ok(())
    }

    /// The node's own plan; none from a version that cannot tell.
    async fn plan(&self, node: &Node, image: &str) -> Result<Option<UpgradePlanResponse>, Failure> {
        let plan = timeout(ASK, plan(node, image)).await;
        plan.map_err(|_| unreachable("it does not answer"))?
    }
}

/// The time that is left once way has been made. An image that comes later must not change a node that its rollout counts as failed by then.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Why the node's pods would not live through the upgrade, by its own plan.
fn ends_pods(plan: &UpgradePlanResponse) -> Option<String> {
    if !plan.reboot_reason.is_empty() {
        return Some(plan.reboot_reason.clone());
    }
    let mut containers = plan.containers.iter();
    let kubernetes = containers.find(|container| container.name == KUBERNETES)?;
    (!kubernetes.lives_on).then(|| kubernetes.reason.clone())
}

/// Has the node fetch the images ahead, and waits until they are there.
async fn prepare(node: &Node, image: &str) -> Result<(), Failure> {
    let request = node.request(PrepareUpgradeRequest {
        image: image.to_owned(),
        ..PrepareUpgradeRequest::default()
    });
    let mut client = UpgradeServiceClient::new(node.channel());
    let explain = |status| node.explain("did not prepare the upgrade", status);
    let prepared = client.prepare(request).await.map_err(explain)?.into_inner();
    loop {
        let pins = resources::<ImagePinSpec>(node, "ImagePins.instar.dev").await;
        let pins = pins.map_err(|status| node.explain("cannot tell how far it is", status))?;
        let of = |reference: &str| pins.iter().find(|(_, pin)| pin.reference == reference);
        let needed = prepared.images.iter();
        let states: Vec<_> = needed.filter_map(|image| of(&image.reference)).collect();
        if let Some((_, failed)) = states.iter().find(|(_, pin)| pin.state == "failed") {
            return Err(Failure::new(FailureKind::Failed, failed.reason.clone()));
        }
        if states.len() == prepared.images.len()
            && states.iter().all(|(_, pin)| pin.state == "pinned")
        {
            return Ok(());
        }
        sleep(FETCHES).await;
    }
}

/// Progress as lines of the log.
struct Log<'a> {
    way: &'a MakingWay,
}

impl Progress for Log<'_> {
    fn note(&mut self, text: &str) {
        self.way.log(text);
    }

    fn update(&mut self, _: &Update) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::instar::ContainerPlan;

    use super::*;

    #[test]
    fn pods_leave_only_where_the_node_says_that_they_end() {
        let plan = |reboot: &str, name: &str, lives_on: bool| UpgradePlanResponse {
            reboot_reason: reboot.to_owned(),
            containers: vec![ContainerPlan {
                name: name.to_owned(),
                lives_on,
                reason: "another runtime".to_owned(),
            }],
            ..UpgradePlanResponse::default()
        };
        for (plan, expected) in [
            (plan("", KUBERNETES, true), None),
            (plan("", KUBERNETES, false), Some("another runtime")),
            (plan("", "web", false), None),
            (
                plan("another kernel", KUBERNETES, true),
                Some("another kernel"),
            ),
        ] {
            assert_eq!(ends_pods(&plan).as_deref(), expected, "{plan:?}");
        }
    }
}
