//! What an upgrade would do, found out without doing any of it.

use super::{Found, Var, look_up, plan, route};
use crate::machine::Machine;
use crate::upgrade::{Route, UpgradeError, UpgradeRequest};

/// What an upgrade would do.
pub struct UpgradePlan {
    /// The version that it would bring.
    pub version: String,
    /// How.
    pub path: Route,
    /// Containers that run, by name, and why those end that do.
    pub containers: Vec<(String, Option<String>)>,
}

/// Looks at an upgrade as if it were to begin. The image's description is read; the image is not pulled.
///
/// # Errors
/// Those of an upgrade, but for what is found out by pulling the image.
pub async fn plan_upgrade(
    machine: &Machine,
    request: &UpgradeRequest,
) -> Result<UpgradePlan, UpgradeError> {
    // An operation that keeps an upgrade from beginning is named here as well.
    machine.operations.check_free()?;
    let Found { candidate, .. } = look_up(machine, request).await?;
    let path = route(request.mode, plan(machine, &candidate, Var::AsItSays)?.path);
    let fates = machine.services.fates().into_iter();
    let containers = fates.map(|(service, fate)| {
        let ends = match path {
            Route::Soft => fate.err().map(|why| format!("{why:#}")),
            Route::Reboot(why) => Some(format!("the machine reboots: {why}")),
        };
        (service.definition().id.clone(), ends)
    });
    Ok(UpgradePlan {
        version: candidate.version.clone(),
        path,
        containers: containers.collect(),
    })
}
