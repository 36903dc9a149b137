//! `instar.UpgradeService`: shows the plan of an upgrade, prepares one ahead, and replaces the machine by an image.

use std::sync::Arc;

use instar_api::instar as wire;
use instar_api::instar::upgrade_service_server::UpgradeService;
use tonic::{Request, Response, Status};

use super::{caller, changing, image_pins, upgrade_request};
use crate::machine::Machine;
use crate::sequences::{self, Ahead, AheadPlan};
use crate::upgrade::{Route, UpgradeMode, UpgradeRequest};

/// The service.
pub(super) struct UpgradePlanApi {
    machine: Arc<Machine>,
}

impl UpgradePlanApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        UpgradePlanApi { machine }
    }
}

#[tonic::async_trait]
impl UpgradeService for UpgradePlanApi {
    async fn plan(
        &self,
        request: Request<wire::UpgradePlanRequest>,
    ) -> Result<Response<wire::UpgradePlanResponse>, Status> {
        let request = request.into_inner().upgrade.unwrap_or_default();
        let wanted = upgrade_request::wanted(&request)?;
        let plan = sequences::plan_upgrade(&self.machine, &wanted).await;
        let plan = plan.map_err(upgrade_request::status)?;
        let containers = plan
            .containers
            .into_iter()
            .map(|(name, ends)| wire::ContainerPlan {
                name,
                lives_on: ends.is_none(),
                reason: ends.unwrap_or_default(),
            });
        Ok(Response::new(wire::UpgradePlanResponse {
            version_before: self.machine.running.version.clone(),
            version: plan.version,
            reboot_reason: match plan.path {
                Route::Soft => String::new(),
                Route::Reboot(why) => why.to_owned(),
            },
            containers: containers.collect(),
            overridden: plan.overridden.iter().map(ToString::to_string).collect(),
            digest: plan.digest,
            created: plan.created.unwrap_or_default(),
        }))
    }

    async fn prepare(
        &self,
        request: Request<wire::PrepareUpgradeRequest>,
    ) -> Result<Response<wire::PrepareUpgradeResponse>, Status> {
        upgrade_request::check_force(request.metadata(), request.get_ref().force)?;
        let request = request.into_inner();
        let terms = image_pins::terms(request.terms)?;
        image_pins::has_place(&self.machine)?;
        let ahead = match request.dry_run {
            true => Ahead::Plan,
            false => Ahead::Prepare,
        };
        let wanted = UpgradeRequest {
            image: request.image,
            force: request.force,
            mode: UpgradeMode::Quickest,
        };
        let machine = self.machine.clone();
        let preparing = async move {
            let plan = sequences::prepare_ahead(&machine, &wanted, terms, ahead).await;
            let plan = plan.map_err(upgrade_request::status)?;
            Ok(answer(&machine.running.version, plan))
        };
        Ok(Response::new(changing::to_its_end(preparing).await?))
    }

    async fn replace(
        &self,
        request: Request<wire::ReplaceRequest>,
    ) -> Result<Response<wire::ReplaceResponse>, Status> {
        let peer = caller::peer(&request).to_owned();
        let request = request.into_inner();
        tracing::info!("replacement by {} asked for by {peer}", request.image);
        let wanted = UpgradeRequest {
            image: request.image,
            force: request.force,
            mode: UpgradeMode::Replace,
        };
        let machine = self.machine.clone();
        let begun = changing::told_of_its_caller(|caller| async move {
            let begun = sequences::upgrade(machine, wanted, caller).await;
            begun.map_err(upgrade_request::status)
        });
        let actor_id = begun.await?.0;
        Ok(Response::new(wire::ReplaceResponse { actor_id }))
    }
}

fn answer(running: &str, plan: AheadPlan) -> wire::PrepareUpgradeResponse {
    let images = plan.images.iter().map(|image| wire::NeededImage {
        reference: image.reference.to_string(),
        digest: image.digest.to_string(),
        bytes: image.bytes(),
    });
    let numbers = plan.room.numbers;
    wire::PrepareUpgradeResponse {
        version_before: running.to_owned(),
        images: images.collect(),
        fetch: plan.room.fetch,
        needed: numbers.needed,
        free: numbers.free,
        reserve: numbers.reserve,
        used: numbers.used,
        limit: numbers.limit,
        fits: plan.room.is_enough(),
        overridden: plan.overridden.iter().map(ToString::to_string).collect(),
        version: plan.version,
    }
}
