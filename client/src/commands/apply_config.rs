//! `apply-config`: gives a node its machine config.

use instar_api::machine::ApplyConfigurationRequest;
use instar_api::machine::apply_configuration_request::Mode;
use serde_json::json;

use crate::cli::{ApplyConfig, ApplyMode, Global};
use crate::failure::Failure;
use crate::target;

pub(super) async fn run(global: &Global, arguments: &ApplyConfig) -> Result<(), Failure> {
    let data = std::fs::read(&arguments.file)
        .map_err(|error| Failure::io(format!("cannot read {}", arguments.file.display()), error))?;
    let mode = match arguments.mode {
        ApplyMode::Auto => Mode::Auto,
        ApplyMode::NoReboot => Mode::NoReboot,
        ApplyMode::Reboot => Mode::Reboot,
        ApplyMode::Staged => Mode::Staged,
        ApplyMode::Try => Mode::Try,
    };
    for node in target::all(global).await? {
        let request = ApplyConfigurationRequest {
            data: data.clone(),
            mode: mode.into(),
            dry_run: arguments.dry_run,
            try_mode_timeout: arguments.timeout.try_into().ok(),
        };
        let reply = node
            .machine()
            .apply_configuration(node.request(request)?)
            .await;
        let reply =
            reply.map_err(|status| node.explain("did not take the machine config", status))?;
        let applied = node.only(reply.into_inner().messages)?;
        global.output.show(
            || {
                let warnings = applied.warnings.iter().map(|warning| format!("warning: {warning}\n"));
                let details = if applied.mode_details.is_empty() { "taken" } else { applied.mode_details.trim_end() };
                format!("{}{}: {details}", warnings.collect::<String>(), node.name())
            },
            || json!({ "node": node.name(), "warnings": applied.warnings, "details": applied.mode_details }),
        )?;
    }
    Ok(())
}
