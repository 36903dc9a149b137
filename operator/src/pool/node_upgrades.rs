//! The NodeUpgrades of a pool: what people see of each node of a rollout.

use instar_rollout_driver::Round;
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::Keeper;
use crate::api::{NodeUpgrade, NodeUpgradeSpec, NodeUpgradeStatus, POOL_LABEL, Pool};
use crate::failure::{Error, code};
use crate::record_store::Kept;
use crate::{events, shown};

impl Keeper {
    /// Writes the NodeUpgrades that have changed.
    pub(super) async fn show_nodes(&mut self, pool: &Pool, round: &Round) -> Result<(), Error> {
        let kept = self.store.kept().await?;
        let rollout = kept.status.rollout.unwrap_or_default();
        let (number, kind) = (rollout.number, rollout.kind());
        let now = Timestamp::now();
        for (machine, entry) in &round.record.machines {
            let reason = round.decision.reasons.get(machine);
            let name = format!("{}.{machine}.{number}", self.name);
            let shown = self.written.get(&name);
            let before = shown.map_or(&[][..], |shown| &shown.conditions);
            let wanted = shown::node_upgrade(entry, reason, before, now);
            if shown.is_some_and(|shown| !shown::differs(shown, &wanted)) {
                continue;
            }
            let spec = NodeUpgradeSpec {
                pool: self.name.clone(),
                node: machine.as_str().to_owned(),
                rollout: number,
                kind,
                to: round.record.target.version.clone(),
            };
            if shown.is_none() {
                self.create(pool, &name, &spec).await?;
            }
            if !self.write(&name, &wanted).await? {
                // One of a pool of this name that was deleted: it went just now.
                self.create(pool, &name, &spec).await?;
                self.write(&name, &wanted).await?;
            }
            if shown.is_none_or(|shown| shown.phase != wanted.phase) {
                let to = &round.record.target.version;
                let told = events::of_node(kind, &wanted.phase, to, &wanted.message);
                let node = self.cluster.node_reference(machine.as_str());
                if let (Some(told), Some(node)) = (told, node) {
                    self.cluster.recorder.tell(node, told).await;
                }
            }
            self.written.insert(name, wanted);
        }
        Ok(())
    }

    /// Writes the status of a NodeUpgrade. Returns whether it is there.
    async fn write(&self, name: &str, wanted: &NodeUpgradeStatus) -> Result<bool, Error> {
        let api: Api<NodeUpgrade> = Api::all(self.cluster.client.clone());
        // A field that is gone has to be named.
        let status = json!({"status": {
            "phase": wanted.phase, "reason": wanted.reason, "message": wanted.message,
            "from": wanted.from, "began": wanted.began, "ended": wanted.ended, "conditions": wanted.conditions,
        }});
        let patch = Patch::Merge(status);
        let patched = api
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        match patched {
            Ok(_) => Ok(true),
            Err(error) if code(&error) == Some(404) => Ok(false),
            Err(error) => {
                let doing = format!("nodeupgrade {name} cannot be written");
                Err(Error::calling(doing)(error))
            }
        }
    }

    async fn create(&self, pool: &Pool, name: &str, spec: &NodeUpgradeSpec) -> Result<(), Error> {
        let api: Api<NodeUpgrade> = Api::all(self.cluster.client.clone());
        let mut object = NodeUpgrade::new(name, spec.clone());
        object.metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some([(POOL_LABEL.to_owned(), self.name.clone())].into()),
            owner_references: pool.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        };
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(()),
            Err(error) if code(&error) == Some(409) => Ok(()),
            Err(error) => Err(Error::calling(format!("nodeupgrade {name} cannot be made"))(error)),
        }
    }

    /// Deletes the NodeUpgrades of all rollouts but the newest one, that before it, and the one that is set aside.
    pub(super) async fn prune(&mut self, kept: &Kept) -> Result<(), Error> {
        let api: Api<NodeUpgrade> = Api::all(self.cluster.client.clone());
        let newest = kept.status.rollout.as_ref().map_or(0, |it| it.number);
        let aside = kept.status.set_aside.as_ref().map(|it| it.number);
        for object in self.cluster.upgrades.state() {
            let number = object.spec.rollout;
            if object.spec.pool != self.name || number + 1 >= newest || aside == Some(number) {
                continue;
            }
            let name = object.name_any();
            match api.delete(&name, &DeleteParams::default()).await {
                Ok(_) => {}
                Err(error) if code(&error) == Some(404) => {}
                Err(error) => {
                    return Err(Error::calling(format!(
                        "nodeupgrade {name} cannot be deleted"
                    ))(error));
                }
            }
            self.written.remove(&name);
        }
        Ok(())
    }
}
