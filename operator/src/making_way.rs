//! Makes way for the change of one node: a cordon, a drain where its pods would end, and the last look whether the change is still wanted.
//!
//! ```text
//!  cordon, marked as ours ─► drain, if the node says that its pods do not live through ─► the node, the record and the lease, looked at again
//! ```
//!
//! All steps may be taken again by the next driver. The cordon is taken back by the keeper of the pool, once the node has ended in the record.
//!
//! A drain takes minutes, in which a person may pause the rollout or hold the node, and another node may stop it. Then the node is not asked, which is
//! reported: it waits as before, and has failed at nothing.

use std::cell::Cell;

use instar_client::{Failure, FailureKind};
use instar_rollout::{Action, Phase, Record, Release, Report, Step};
use instar_rollout_driver::report;
use kube::api::{Patch, PatchParams};
use kube::core::{Selector, SelectorExt as _};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, timeout, timeout_at};

use crate::api::{CORDONED_BY, Pool};
use crate::cluster::{ASK, Cluster};
use crate::drain::{Drain, Draining};
use crate::failure::{Error, code};
use crate::hindrances::Hindrances;
use crate::node::NodeView;
use crate::record_store::record;

/// Changes of a node's object by others before a cordon is given up.
const CONFLICTS: usize = 10;

/// Why a node is not changed whose way took too long.
const NO_WAY_IN_TIME: &str = "way was not made in time for the change: its pods have not left, or the API server did not answer";

/// The change of one node, as far as its way has to be made.
pub(crate) struct MakingWay {
    pub(crate) cluster: Cluster,
    pub(crate) pool: String,
    pub(crate) node: String,
    pub(crate) action: Action,
    /// The version or the config that it leads to.
    pub(crate) to: Option<Release>,
    pub(crate) drain: Drain,
    /// When way has to be made: what is left then of the node's time is for its change, or for the report that it was not asked.
    pub(crate) until: Instant,
    /// Where it is noted why this order could not be carried out, if that may pass.
    pub(crate) hindrances: Hindrances,
    /// Whether way is being made: nothing has been asked of the node yet.
    pub(crate) is_making: Cell<bool>,
}

impl MakingWay {
    /// Makes way. `leave`: why the node's pods have to leave; none if they live through the change.
    ///
    /// # Errors
    /// The node is to be left alone, its pods do not leave in time, or the change is not wanted any more.
    pub(crate) async fn make(&self, leave: Option<&str>) -> Result<(), Failure> {
        self.is_making.set(true);
        let made = timeout_at(self.until, self.make_in_time(leave)).await;
        made.unwrap_or_else(|_| Err(unreachable(NO_WAY_IN_TIME)))?;
        self.is_making.set(false);
        Ok(())
    }

    async fn make_in_time(&self, leave: Option<&str>) -> Result<(), Failure> {
        let mut view = Some(self.cordon().await?);
        if let Some(why) = leave {
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
            view = self.read_node().await?;
        }
        if let Some(why) = self.objection(view.as_ref()).await? {
            return Err(unreachable(&why));
        }
        // After the looks, which take seconds.
        self.may_ask()
    }

    /// Whether this process may ask the node. It is looked at right before the request.
    ///
    /// # Errors
    /// Another process may act.
    pub(crate) fn may_ask(&self) -> Result<(), Failure> {
        match self.cluster.lease.is_held() {
            true => Ok(()),
            false => Err(unreachable("another process has the lease")),
        }
    }

    /// The node as the cluster shows it now.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) fn view(&self) -> Result<NodeView, Failure> {
        let view = self.cluster.node(&self.node);
        view.ok_or_else(|| unreachable("it is not in the cluster any more"))
    }

    pub(crate) fn log(&self, text: &str) {
        eprintln!("pool {}, node {}: {text}", self.pool, self.node);
    }

    /// The report of the action's end, if there is one. Without it the facts show the outcome: that a node has proved itself is never reported, but
    /// seen. `done`: none if its time was over first.
    pub(crate) async fn reported(&self, done: Option<Result<(), Failure>>) -> Option<Report> {
        let failure = match (done, &self.action) {
            (Some(Ok(())), Action::Prepare(_)) => return Some(Report::Done),
            (Some(Ok(())), _) => return None,
            (Some(Err(failure)), _) => Some(failure),
            (None, _) => None,
        };
        if let Some(failure) = &failure {
            self.log(&failure.chain());
        }
        if let Some(why) = self.why_not_asked().await {
            self.log(&format!("it was not asked, and waits: {why}"));
            return Some(Report::NotAsked);
        }
        let failure = failure?;
        let report = report(&failure).map(|report| self.without_name(report));
        if report.is_none() {
            self.hindrances.note(&self.node, failure.chain());
        }
        report
    }

    /// Why the node was not asked, and is not to be asked again now. None if it may have been asked, or is to be asked still: then it has failed, or is
    /// asked again.
    async fn why_not_asked(&self) -> Option<String> {
        if !self.is_making.get() || self.may_ask().is_err() {
            return None;
        }
        let look = async {
            let view = self.read_node().await?;
            self.objection(view.as_ref()).await
        };
        look.await.unwrap_or_else(|failure| {
            self.log(&failure.chain());
            None
        })
    }

    /// The report without the node's name, which stands before each failure anyway.
    fn without_name(&self, report: Report) -> Report {
        match report {
            Report::Failed(why) => {
                let own = format!("{}: ", self.node);
                Report::Failed(why.strip_prefix(&own).unwrap_or(&why).to_owned())
            }
            report => report,
        }
    }

    /// The node as the cluster has it now; none if it is gone. The watch may be behind: the object itself is read.
    async fn read_node(&self) -> Result<Option<NodeView>, Failure> {
        let api = self.cluster.node_api();
        let read = timeout(ASK, api.get_opt(&self.node)).await;
        let read = read.map_err(|_| unreachable("the API server does not answer"))?;
        let failed = Error::calling(format!("node {} cannot be read", self.node));
        Ok(read.map_err(failed)?.as_ref().map(NodeView::of))
    }

    /// Why the node is not to change now; none if it is. Much may have happened while its pods left.
    async fn objection(&self, view: Option<&NodeView>) -> Result<Option<String>, Failure> {
        let api: Api<Pool> = Api::all(self.cluster.client.clone());
        // The watch may be behind: the object itself is read.
        let read = timeout(ASK, api.get(&self.pool)).await;
        let read = read.map_err(|_| unreachable("the API server does not answer"))?;
        let failed = Error::calling(format!("pool {} cannot be read", self.pool));
        let pool = read.map_err(failed)?;
        let record = record(&pool.status.unwrap_or_default())?;
        let is_wanted =
            record.is_some_and(|record| is_wanted(&record, &self.action, self.to.as_ref()));
        // A selector that cannot be used says nothing about the node.
        let selector = Selector::try_from(pool.spec.node_selector).unwrap_or_default();
        Ok(why_not(view, &selector, is_wanted))
    }

    /// Cordons the node, marked as ours, unless a person has done so meanwhile. Returns the node as it was before.
    async fn cordon(&self) -> Result<NodeView, Failure> {
        let api = self.cluster.node_api();
        for _ in 0..CONFLICTS {
            let failed = Error::calling(format!("node {} cannot be read", self.node));
            let object = api.get(&self.node).await.map_err(failed)?;
            let view = NodeView::of(&object);
            if let Some(why) = &view.hold {
                return Err(unreachable(&format!("it is to be left alone: {why}")));
            }
            let is_ours = view.cordoned_by.as_deref() == Some(&self.pool);
            if is_ours && object.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
                return Ok(view);
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
                Ok(_) => return Ok(view),
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
}

/// A failure that may pass: what became of the node is seen by the facts.
pub(crate) fn unreachable(why: &str) -> Failure {
    Failure::new(FailureKind::Unreachable, why)
}

/// Why a node is not to change now, by its object and the selector of its pool, and by whether the rollout wants it; none if it is.
fn why_not(view: Option<&NodeView>, selector: &Selector, is_wanted: bool) -> Option<String> {
    let Some(view) = view else {
        return Some("it is not in the cluster any more".to_owned());
    };
    if let Some(why) = &view.hold {
        return Some(format!("it is to be left alone: {why}"));
    }
    if !selector.matches(&view.labels) {
        return Some("it does not belong to the pool any more".to_owned());
    }
    (!is_wanted).then(|| "the rollout does not want it any more".to_owned())
}

/// Whether a record wants a node to change as it was asked to. After a stop, or while it is paused, no upgrade begins, and the way back does: as the
/// engine decides for a node that was asked and shows no sign.
fn is_wanted(record: &Record, action: &Action, to: Option<&Release>) -> bool {
    let Some(entry) = record.machines.get(action.machine()) else {
        return false;
    };
    if entry.hold.is_some() {
        return false;
    }
    match (action, &entry.step) {
        (Action::Switch(_), Step::Switching { .. }) => {
            let goes_on = record.phase == Phase::Rolling && record.paused.is_none();
            goes_on && to == Some(&record.target)
        }
        (Action::Return(_), Step::Returning { .. }) => to == entry.before.as_ref(),
        _ => false,
    }
}

/// Uncordons a node, if it is this pool's cordon.
///
/// # Errors
/// The cordon may be left; says why.
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
    Err(Error::Other(format!(
        "node {node} cannot be uncordoned: others change its object all the time"
    )))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use instar_rollout::{Facts, MachineName, Member, Moment, Policy};

    use super::*;
    use crate::api::HOLD;

    #[test]
    fn a_node_is_not_asked_that_a_person_has_taken_out_while_its_pods_left() {
        let node = |annotations: &[(&str, &str)], rack: &str| {
            let annotations: BTreeMap<&str, &str> = annotations.iter().copied().collect();
            let metadata =
                json!({"name": "n1", "labels": {"rack": rack}, "annotations": annotations});
            let object = json!({"metadata": metadata, "spec": {"unschedulable": true}});
            NodeView::of(&serde_json::from_value(object).unwrap())
        };
        let selector: Selector = [("rack".to_owned(), "r1".to_owned())].into_iter().collect();
        let ours = (CORDONED_BY, "lab");
        for (view, is_wanted, expected) in [
            (Some(node(&[ours], "r1")), true, None),
            (Some(node(&[ours], "r1")), false, Some("does not want it")),
            (
                Some(node(&[ours, (HOLD, "mine")], "r1")),
                true,
                Some("left alone: mine"),
            ),
            (
                Some(node(&[], "r1")),
                true,
                Some("it is cordoned, and not by"),
            ),
            (Some(node(&[ours], "r2")), true, Some("belong to the pool")),
            (None, true, Some("not in the cluster")),
        ] {
            let why = why_not(view.as_ref(), &selector, is_wanted);
            let is_meant = match (&why, expected) {
                (Some(why), Some(expected)) => why.contains(expected),
                (why, expected) => why.is_none() && expected.is_none(),
            };
            assert!(is_meant, "{view:?}: {why:?}");
        }
    }

    #[test]
    fn a_node_is_changed_only_while_its_rollout_goes_on() {
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
        let mut held = begun.clone();
        held.machines.get_mut(&name).unwrap().hold = Some("mine".to_owned());
        for record in [
            paused,
            held,
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
