//! `apply-config`: gives a node its machine config.

use instar_api::machine::ApplyConfigurationRequest;
use instar_api::machine::apply_configuration_request::Mode;
use instar_client::{Failure, FailureKind, Node, config_failure};
use serde_json::json;

use crate::cli::{ApplyConfig, ApplyHow, ApplyMode, Global};
use crate::each_node::each_node;
use crate::patch;

pub(super) async fn run(global: &Global, arguments: &ApplyConfig) -> Result<(), Failure> {
    let file = arguments.file.display();
    let mut data = std::fs::read(&arguments.file)
        .map_err(|error| Failure::io(format!("cannot read {file}"), error))?;
    // Without patches the file goes to the node unread: the node checks it.
    if !arguments.patches.is_empty() {
        let patches = patch::read_all(&arguments.patches)?;
        let text = String::from_utf8(data).map_err(|error| {
            Failure::new(FailureKind::Usage, format!("{file} is no text")).because(error)
        })?;
        data = patch::apply(&text, &patches)?.into_bytes();
    }
    each_node(global, async |node| {
        apply(global, node, data.clone(), arguments.how).await
    })
    .await
}

/// Applies a config to one node, and shows the node's answer.
pub(super) async fn apply(
    global: &Global,
    node: &Node,
    data: Vec<u8>,
    how: ApplyHow,
) -> Result<(), Failure> {
    let mode = match how.mode {
        ApplyMode::Auto => Mode::Auto,
        ApplyMode::NoReboot => Mode::NoReboot,
        ApplyMode::Reboot => Mode::Reboot,
        ApplyMode::Staged => Mode::Staged,
        ApplyMode::Try => Mode::Try,
    };
    let request = ApplyConfigurationRequest {
        data,
        mode: mode.into(),
        dry_run: how.dry_run,
        try_mode_timeout: how.timeout.try_into().ok(),
    };
    let reply = node
        .machine()
        .apply_configuration(node.request(request))
        .await;
    let reply = reply.map_err(|status| node.explain(config_failure(status.code()), status))?;
    let applied = node.only(reply.into_inner().messages)?;
    global.output.show(
        || {
            let warnings = applied.warnings.iter().map(|warning| format!("warning: {warning}\n"));
            let details = if applied.mode_details.is_empty() { "taken" } else { applied.mode_details.trim_end() };
            format!("{}{}: {details}", warnings.collect::<String>(), node.name())
        },
        || json!({ "node": node.name(), "warnings": applied.warnings, "details": applied.mode_details }),
    )
}
