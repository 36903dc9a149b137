//! Makes way for the change of one node: a cordon, a drain where its pods would end, and the last look whether the change is still wanted.
//!
//! ```text
//!  cordon, marked as ours ─► drain, if the node says that its pods do not live through ─► the lease and the record, looked at again
//! ```
//!
//! All steps may be taken again by the next driver. The cordon is taken back by the keeper of the pool, once the node has ended in the record.

use instar_client::{Failure, FailureKind};
use instar_rollout::{Action, Phase, Record, Release, Report, Step};
use instar_rollout_driver::report;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::timeout;

use crate::api::{CORDONED_BY, Pool};
use crate::cluster::{ASK, Cluster};
use crate::drain::{Drain, Draining};
use crate::failure::{Error, code};
use crate::node::NodeView;
use crate::record_store::record;

/// Changes of a node's object by others before a cordon is given up.
const CONFLICTS: usize = 10;

/// The change of one node, as far as its way has to be made.
pub(crate) struct MakingWay {
    pub(crate) cluster: Cluster,
    pub(crate) pool: String,
    pub(crate) node: String,
    pub(crate) action: Action,
    /// The version or the config that it leads to.
    pub(crate) to: Option<Release>,
    pub(crate) drain: Drain,
}

impl MakingWay {
    /// Makes way. `leave`: why the node's pods have to leave; none if they live through the change.
    ///
    /// # Errors
    /// The node is to be left alone, its pods do not leave in time, or the change is not wanted any more.
    pub(crate) async fn make(&self, leave: Option<&str>) -> Result<(), Failure> {
        self.cordon().await?;
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
        }
        if !self.cluster.lease.is_held() {
            return Err(unreachable("another process has the lease"));
        }
        match self.is_wanted_still().await? {
            true => Ok(()),
            false => Err(unreachable("the rollout does not want it any more")),
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
    /// seen.
    pub(crate) fn reported(&self, done: Result<(), Failure>) -> Option<Report> {
        match (done, &self.action) {
            (Ok(()), Action::Prepare(_)) => Some(Report::Done),
            (Ok(()), _) => None,
            (Err(failure), _) => {
                self.log(&failure.chain());
                report(&failure).map(|report| self.without_name(report))
            }
        }
    }

    /// The report without the node's name, which stands before each failure anyway.
    fn without_name(&self, report: Report) -> Report {
        match report {
            Report::Failed(why) => {
                let own = format!("{}: ", self.node);
                Report::Failed(why.strip_prefix(&own).unwrap_or(&why).to_owned())
            }
            Report::Done => Report::Done,
        }
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
}

/// A failure that may pass: what became of the node is seen by the facts.
pub(crate) fn unreachable(why: &str) -> Failure {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Facts, MachineName, Member, Moment, Policy};

    use super::*;

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
