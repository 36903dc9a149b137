//! The wishes of people, from the pool's spec and its annotations into the record of the rollout.

use instar_rollout::MachineName;
use kube::api::{Patch, PatchParams};
use kube::core::SelectorExt as _;
use kube::{Api, Resource, ResourceExt};
use serde_json::json;

use super::Keeper;
use super::checked::{Checked, selector};
use super::rights::lacks_right;
use crate::api::{COMMAND, Kind, MACHINE, Pool, UNDONE_PATCHES};
use crate::failure::Error;
use crate::node::NodeView;
use crate::record_store::Kept;
use crate::rollouts::{self, Fault, Wishes};
use crate::shown::Invalid;
use crate::{events, left_behind, removed_patches};

impl Keeper {
    /// Takes the wishes of the pool into the record. Without a valid pool nothing new begins, but for the way back.
    pub(super) async fn take_in(
        &self,
        pool: &Pool,
        checked: &Result<Checked, Invalid>,
    ) -> Result<(), Error> {
        let selector = selector(pool).unwrap_or_default();
        let is_held = |name: &MachineName| {
            let node = self.cluster.node(name.as_str());
            node.is_none_or(|node| node.hold.is_some() || !selector.matches(&node.labels))
        };
        let take_in = |kept: &mut Kept| {
            note_removed_patches(kept, pool);
            let kind = kept.newest().map(|(rollout, _)| rollout.kind());
            let kind = kind.unwrap_or_default();
            let is_meant = checked.as_ref().is_ok_and(|it| it.sides(kept).mean(kind));
            if let Ok(checked) = checked {
                left_behind::forget(&mut kept.status.left_behind, &checked.nodes);
            }
            let (Some(record), Some(rollout)) = (&mut kept.record, &mut kept.status.rollout) else {
                return;
            };
            match checked {
                Ok(checked) => {
                    let is_part = |node: &NodeView| {
                        let name = MachineName::from(node.name.as_str());
                        record.machines.contains_key(&name)
                    };
                    let policy = checked.policy_over(Some(&record.target.version), is_part);
                    let wishes = Wishes {
                        policy: &policy,
                        is_paused: pool.spec.paused,
                        kind,
                        is_meant,
                        approved: rollouts::approvals(&pool.spec, rollout),
                    };
                    rollouts::take_in(record, &wishes, is_held);
                }
                Err(invalid) => {
                    let fault = Fault {
                        why: &invalid.message,
                        is_paused: pool.spec.paused,
                        stops_the_way_back: kind == Kind::Config && lacks_right(invalid),
                    };
                    rollouts::take_in_fault(record, &fault);
                }
            }
        };
        self.store.update(take_in).await.map(|_| ())
    }

    /// Carries out a person's command, once, and then removes it. Returns whether one was carried out.
    pub(super) async fn obey(&self, pool: &Pool) -> Result<bool, Error> {
        let text = pool.annotations().get(COMMAND);
        let obey = |kept: &mut Kept| {
            let (Some(rollout), Some(record)) = (&mut kept.status.rollout, &mut kept.record) else {
                return None;
            };
            if rollout.command.as_ref() == text {
                return None;
            }
            rollout.command = text.cloned();
            let text = text?;
            Some(match rollouts::command(text) {
                Some(command) => rollouts::obey(record, &mut kept.status.left_behind, command)
                    .map_err(|refused| refused.to_string()),
                None => Err("it is none of resume, retry, abort and rollback".to_owned()),
            })
        };
        let (told, _) = self.store.update(obey).await?;
        let Some(text) = text else {
            return Ok(false);
        };
        let has_obeyed = matches!(told, Some(Ok(())));
        match told {
            Some(Ok(())) => eprintln!("pool {}: a person's command: {text}", self.name),
            Some(Err(why)) => {
                eprintln!("pool {}: {text} is refused: {why}", self.name);
                let refused = events::of_refused_command(text, &why);
                let recorder = &self.cluster.recorder;
                recorder.tell(pool.object_ref(&()), refused).await;
            }
            None => {}
        }
        let api: Api<Pool> = Api::all(self.cluster.client.clone());
        let patch = Patch::Merge(json!({"metadata": {"annotations": {COMMAND: null}}}));
        let patched = api.patch(&self.name, &PatchParams::default(), &patch).await;
        let failed = Error::calling("the command of the pool cannot be removed");
        patched.map_err(failed).map(|_| has_obeyed)
    }
}

/// Notes the patches that were taken out of the pool and stay in force, while the last rollout of configs still tells of them. Cluster API takes
/// patches out when their Machine has them: it means them to stay.
fn note_removed_patches(kept: &mut Kept, pool: &Pool) {
    if pool.annotations().contains_key(MACHINE) {
        return;
    }
    let mut known = std::mem::take(&mut kept.status.removed_patches);
    let last = kept.last(Kind::Config);
    let last = last.map(|(rollout, record)| removed_patches::Last {
        patches: &rollout.config_patches,
        record,
    });
    let undone = pool.annotations().get(UNDONE_PATCHES);
    let (wanted, undone) = (&pool.spec.config_patches, undone.map_or("", String::as_str));
    removed_patches::note(&mut known, last.as_ref(), wanted, undone);
    kept.status.removed_patches = known;
}
