//! One node's upgrade: cordon, ask what will live through it, drain if that is needed, and the calls of the node's API.
//!
//! ```text
//!  the node's own plan ─► cordon, marked as ours ─► drain, if the plan ends the pods ─► upgrade, followed until the version is committed
//! ```
//!
//! All steps may be taken again by the next driver. The cordon is taken back by the keeper of the pool, once the node has ended in the record.

use std::time::Duration;

use instar_api::definitions::instar::ImagePinSpec;
use instar_api::instar::PrepareUpgradeRequest;
use instar_api::instar::UpgradePlanResponse;
use instar_api::instar::upgrade_service_client::UpgradeServiceClient;
use instar_api::machine::UpgradeRequest;
use instar_client::{Failure, FailureKind, Node, Progress, Update, resources, upgrade};
use instar_rollout::{Action, Phase, Record, Release, Report, Step};
use instar_rollout_driver::{pinned, plan, report};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::api::{CORDONED_BY, Pool};
use crate::cluster::{ASK, Cluster};
use crate::drain::{Drain, Draining};
use crate::failure::{Error, code};
use crate::node::NodeView;
use crate::record_store::record;

/// The container of a node in which all pods are.
const KUBERNETES: &str = "kubernetes";
/// The pause between two looks at how far images are.
const FETCHES: Duration = Duration::from_secs(2);
/// Changes of a node's object by others before a cordon is given up.
const CONFLICTS: usize = 10;

/// One action on one node.
pub(crate) struct Order {
    pub(crate) cluster: Cluster,
    pub(crate) pool: String,
    pub(crate) node: String,
    pub(crate) action: Action,
    /// The version that it leads to.
    pub(crate) to: Option<Release>,
    /// The time that it has.
    pub(crate) limit: Duration,
    pub(crate) drain: Drain,
}

impl Order {
    /// Carries it out. Without a report the facts show what came of it: that a node has proved itself is never reported, but seen.
    pub(crate) async fn carry_out(self) -> Option<Report> {
        let limit = self.limit;
        let done = match timeout(limit, self.act()).await {
            Ok(done) => done,
            Err(_) => return None,
        };
        match (done, &self.action) {
            (Ok(()), Action::Prepare(_)) => Some(Report::Done),
            (Ok(()), _) => None,
            (Err(failure), _) => {
                self.log(&failure.chain());
                report(&failure).map(|report| self.without_name(report))
            }
        }
    }

    /// The node's name stands before each failure anyway.
    fn without_name(&self, report: Report) -> Report {
        match report {
            Report::Failed(why) => {
                let own = format!("{}: ", self.node);
                Report::Failed(why.strip_prefix(&own).unwrap_or(&why).to_owned())
            }
            Report::Done => Report::Done,
        }
    }

    async fn act(&self) -> Result<(), Failure> {
        let Some(view) = self.cluster.node(&self.node) else {
            return Err(unreachable("it is not in the cluster any more"));
        };
        let image = self.to.as_ref().and_then(pinned).ok_or_else(|| {
            Failure::new(
                FailureKind::Refused,
                "the version of before came from no image: roll it back with `instarctl rollback`",
            )
        })?;
        let node = self.cluster.connect(&view).await?;
        match self.action {
            Action::Prepare(_) => prepare(&node, &image).await,
            Action::Switch(_) | Action::Return(_) => self.change(&node, image).await,
        }
    }

    async fn change(&self, node: &Node, image: String) -> Result<(), Failure> {
        let plan = timeout(ASK, plan(node, &image)).await;
        let plan = plan.map_err(|_| unreachable("it does not answer"))??;
        self.cordon().await?;
        if let Some(why) = plan.as_ref().and_then(ends_pods) {
            self.log(&format!("its pods have to leave: {why}"));
            let draining = Draining {
                client: &self.cluster.client,
                evictions: &self.cluster.evictions,
                namespace: &self.cluster.namespace,
                node: &self.node,
                drain: self.drain,
                log: &|text| self.log(text),
            };
            draining.empty().await?;
        }
        if !self.cluster.lease.is_held() {
            return Err(unreachable("another process has the lease"));
        }
        if !self.is_wanted_still().await? {
            return Err(unreachable("the rollout does not want it any more"));
        }
        let request = UpgradeRequest {
            image,
            preserve: true,
            ..UpgradeRequest::default()
        };
        let mut progress = Log { order: self };
        upgrade(node, request, self.limit, &mut progress).await?;
        Ok(())
    }

    /// Whether the rollout wants this now. It may have stopped while the pods left.
    async fn is_wanted_still(&self) -> Result<bool, Failure> {
        let api: Api<Pool> = Api::all(self.cluster.client.clone());
        // The watch may be behind: the object itself is read.
        let read = timeout(ASK, api.get(&self.pool)).await;
        let read = read.map_err(|_| unreachable("the API server does not answer"))?;
        let failed = Error::calling(format!("pool {} cannot be read", self.pool));
        let status = read.map_err(failed)?.status.unwrap_or_default();
        let record = record(&status)?;
        Ok(record.is_some_and(|record| is_wanted(&record, &self.action, self.to.as_ref())))
    }

    /// Cordons the node, marked as ours, unless a person has done so meanwhile.
    async fn cordon(&self) -> Result<(), Failure> {
        let api = self.cluster.node_api();
        for _ in 0..CONFLICTS {
            let failed = Error::calling(format!("node {} cannot be read", self.node));
            let object = api.get(&self.node).await.map_err(failed)?;
            let view = NodeView::of(&object);
            if let Some(why) = view.hold {
                return Err(unreachable(&format!("it is to be left alone: {why}")));
            }
            let is_ours = view.cordoned_by.as_deref() == Some(&self.pool);
            if is_ours && object.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
                return Ok(());
            }
            // Only over the version that was read: a cordon that came meanwhile is not ours.
            let patch = json!({
                "metadata": {"resourceVersion": object.resource_version(), "annotations": {CORDONED_BY: self.pool}},
                "spec": {"unschedulable": true},
            });
            match api
                .patch(&self.node, &PatchParams::default(), &Patch::Merge(patch))
                .await
            {
                Ok(_) => return Ok(()),
                Err(error) if code(&error) == Some(409) => {}
                Err(error) => {
                    return Err(
                        Error::calling(format!("node {} cannot be cordoned", self.node))(error)
                            .into(),
                    );
                }
            }
        }
        Err(unreachable("others change its object all the time"))
    }

    fn log(&self, text: &str) {
        eprintln!("pool {}, node {}: {text}", self.pool, self.node);
    }
}

fn unreachable(why: &str) -> Failure {
    Failure::new(FailureKind::Unreachable, why)
}

/// Whether a record wants a node to change as it was asked to. After a stop, or while it is paused, no upgrade begins, and the way back does: as the
/// engine decides for a node that was asked and shows no sign.
fn is_wanted(record: &Record, action: &Action, to: Option<&Release>) -> bool {
    let Some(entry) = record.machines.get(action.machine()) else {
        return false;
    };
    match (action, &entry.step) {
        (Action::Switch(_), Step::Switching { .. }) => {
            let goes_on = record.phase == Phase::Rolling && record.paused.is_none();
            goes_on && to == Some(&record.target)
        }
        (Action::Return(_), Step::Returning { .. }) => to == entry.before.as_ref(),
        _ => false,
    }
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

/// Uncordons a node, if it is this pool's cordon.
pub(crate) async fn uncordon(cluster: &Cluster, node: &str, pool: &str) -> Result<(), Error> {
    let api = cluster.node_api();
    for _ in 0..CONFLICTS {
        let read = api.get(node).await;
        let object = read.map_err(Error::calling(format!("node {node} cannot be read")))?;
        if NodeView::of(&object).cordoned_by.as_deref() != Some(pool) {
            return Ok(());
        }
        let patch = json!({
            "metadata": {"resourceVersion": object.resource_version(), "annotations": {CORDONED_BY: null}},
            "spec": {"unschedulable": null},
        });
        match api
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(_) => return Ok(()),
            Err(error) if code(&error) == Some(409) => {}
            Err(error) => {
                return Err(Error::calling(format!("node {node} cannot be uncordoned"))(
                    error,
                ));
            }
        }
    }
    Ok(())
}

/// Progress as lines of the log.
struct Log<'a> {
    order: &'a Order,
}

impl Progress for Log<'_> {
    fn note(&mut self, text: &str) {
        self.order.log(text);
    }

    fn update(&mut self, _: &Update) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_api::instar::ContainerPlan;
    use instar_rollout::{Facts, MachineName, Member, Moment, Policy};

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

    #[test]
    fn a_node_is_upgraded_only_while_its_rollout_goes_on() {
        let release = |version: &str| Release {
            version: version.to_owned(),
            digest: None,
            image: None,
        };
        let (target, before) = (release("v2"), release("v1"));
        let name = MachineName::from("n1");
        let members = [(name.clone(), Member::default())];
        let begun = Record::begin(target.clone(), vec![Policy::default()], members.into());
        let mut begun = begun.unwrap();
        let switch = Action::Switch(name.clone());
        assert!(!is_wanted(&begun, &switch, Some(&target)));
        begun.intend(&switch, &Facts::new(), Moment(7));
        assert!(is_wanted(&begun, &switch, Some(&target)));
        assert!(!is_wanted(&begun, &switch, Some(&before)));

        let mut paused = begun.clone();
        paused.paused = Some("lunch".to_owned());
        let why = || "n2 failed".to_owned();
        let in_phase = |phase| Record {
            phase,
            ..begun.clone()
        };
        let mut failed = begun.clone();
        let (at, entry) = (Moment(8), failed.machines.get_mut(&name).unwrap());
        entry.step = Step::Failed { at, why: why() };
        for record in [
            paused,
            failed,
            in_phase(Phase::Halted { why: why() }),
            in_phase(Phase::GoingBack { why: why() }),
            in_phase(Phase::Aborted),
        ] {
            assert!(!is_wanted(&record, &switch, Some(&target)), "{record:?}");
        }

        // The way back goes on after a stop.
        let mut returning = in_phase(Phase::GoingBack { why: why() });
        let entry = returning.machines.get_mut(&name).unwrap();
        entry.before = Some(before.clone());
        entry.step = Step::Returning {
            since: Moment(9),
            mark: 0,
        };
        let back = Action::Return(name);
        assert!(is_wanted(&returning, &back, Some(&before)));
        assert!(!is_wanted(&returning, &switch, Some(&target)));
    }
}
