//! `ApplyConfiguration`: converts modes and errors between the API and the sequence.

use std::sync::Arc;

use instar_api::machine as wire;
use tonic::Status;

use crate::base::error_chain::chain;
use crate::config;
use crate::machine::Machine;
use crate::sequences::{ApplyError, ApplyMode, apply_config};

/// Duration of a config's trial if the request names none.
const TRIAL: prost_types::Duration = prost_types::Duration {
    seconds: 60,
    nanos: 0,
};

/// Applies the config of a request; the reply lacks its metadata.
pub(super) async fn apply(
    machine: &Arc<Machine>,
    mut request: wire::ApplyConfigurationRequest,
    is_talosctl: bool,
) -> Result<wire::ApplyConfiguration, Status> {
    let mode = mode(&request)?;
    let mut warnings = Vec::new();
    if is_talosctl && let Some(kept) = keep_own(machine, &request.data) {
        request.data = kept.text.into_bytes();
        warnings = kept.warnings;
    }
    let applied = apply_config(machine, &request.data, mode, request.dry_run)
        .await
        .map_err(status)?;
    warnings.extend(applied.warnings);
    Ok(wire::ApplyConfiguration {
        metadata: None,
        warnings,
        mode: chosen(applied.mode).into(),
        mode_details: applied.details,
        pods: Some(wire::PodsEffect {
            leave_first: applied.pods_leave.unwrap_or_default(),
        }),
    })
}

/// Keeps our own documents in a config from a client of Talos, which lacks them because the client was never shown them.
fn keep_own(machine: &Machine, brought: &[u8]) -> Option<config::Kept> {
    let in_force = machine.config()?;
    config::keep_own(&in_force.text, std::str::from_utf8(brought).ok()?)
}

fn mode(request: &wire::ApplyConfigurationRequest) -> Result<ApplyMode, Status> {
    use wire::apply_configuration_request::Mode;
    let mode = Mode::try_from(request.mode)
        .map_err(|_| Status::invalid_argument(format!("there is no mode {}", request.mode)))?;
    Ok(match mode {
        Mode::Reboot => ApplyMode::Reboot,
        Mode::Auto => ApplyMode::Auto,
        Mode::NoReboot => ApplyMode::NoReboot,
        Mode::Staged => ApplyMode::Staged,
        Mode::Try => {
            let time = request.try_mode_timeout.unwrap_or(TRIAL);
            ApplyMode::Try(time.try_into().unwrap_or_default())
        }
    })
}

fn chosen(mode: ApplyMode) -> wire::apply_configuration_request::Mode {
    use wire::apply_configuration_request::Mode;
    match mode {
        ApplyMode::Auto => Mode::Auto,
        ApplyMode::NoReboot => Mode::NoReboot,
        ApplyMode::Reboot => Mode::Reboot,
        ApplyMode::Staged => Mode::Staged,
        ApplyMode::Try(_) => Mode::Try,
    }
}

fn status(error: ApplyError) -> Status {
    let text = chain(&error);
    match error {
        ApplyError::Invalid(_)
        | ApplyError::NotText
        | ApplyError::TrialTime
        | ApplyError::Unusable(_) => Status::invalid_argument(text),
        ApplyError::Unconfigured
        | ApplyError::NeedsReboot(_)
        | ApplyError::NowhereToKeep(_)
        | ApplyError::Disk(_)
        | ApplyError::Busy(_) => Status::failed_precondition(text),
        ApplyError::Failed(_) | ApplyError::Incomplete(_) => Status::internal(text),
    }
}
