//! The dry run of an upgrade: finds out its effects without changing anything.

use super::{Found, Var, look_up, plan, route};
use crate::intent::{self, next_config};
use crate::machine::Machine;
use crate::upgrade::{Refusal, Route, UpgradeError, UpgradeRequest, created};

/// The effects of an upgrade.
pub struct UpgradePlan {
    /// The version that it would bring.
    pub version: String,
    /// Digest of the image's manifest.
    pub digest: String,
    /// The date in the image's config.
    pub created: Option<String>,
    /// Objections that force overrides.
    pub overridden: Vec<Refusal>,
    /// How the version would be started.
    pub path: Route,
    /// Running containers by name, each with the reason if it would end.
    pub containers: Vec<(String, Option<String>)>,
}

/// Plans an upgrade as if it began now. Reads the image's labels, but does not pull the image.
///
/// # Errors
/// The errors of an upgrade, except for those that only a pull of the image finds.
pub async fn plan_upgrade(
    machine: &Machine,
    request: &UpgradeRequest,
) -> Result<UpgradePlan, UpgradeError> {
    // An operation that would keep an upgrade from beginning is reported here as well.
    machine.operations.check_free()?;
    let Found {
        offer,
        candidate,
        starts,
        overridden,
        ..
    } = look_up(machine, request).await?;
    let shortest = plan(machine, &candidate, Var::AsItSays)?.path;
    let path = route(request.mode, starts.route(shortest));
    let next = next_config::planned(machine).await;
    let kept = intent::kept_by(machine, next).await;
    let fates = machine.services.fates(&*kept).into_iter();
    let containers = fates.map(|(service, fate)| {
        let ends = match path {
            Route::Soft => fate.err().map(|why| format!("{why:#}")),
            Route::Reboot(why) => Some(format!("the machine reboots: {why}")),
        };
        (service.definition().id.clone(), ends)
    });
    Ok(UpgradePlan {
        version: candidate.version.to_string(),
        digest: offer.digest().to_string(),
        created: created(offer.config().created.as_deref()),
        overridden,
        path,
        containers: containers.collect(),
    })
}
