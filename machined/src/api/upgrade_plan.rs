//! `instar.UpgradeService`: shows what an upgrade would do.

use std::sync::Arc;

use instar_api::instar as wire;
use instar_api::instar::upgrade_service_server::UpgradeService;
use tonic::{Request, Response, Status};

use super::upgrade_request;
use crate::machine::Machine;
use crate::sequences;
use crate::upgrade::Route;

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
        let wanted = upgrade_request::wanted(&request);
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
}
