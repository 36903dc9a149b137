//! `config new`: a client configuration from the node's authority.

use std::path::Path;
use std::time::Duration;

use instar_api::machine::GenerateClientConfigurationRequest;
use instar_client::{Failure, FailureKind};
use instar_pki::client_config::{ClientConfig, ClientConfigError};

use crate::cli::Global;
use crate::output::print_bytes;
use crate::{private_file, target};

pub(super) async fn run(
    global: &Global,
    file: &Path,
    roles: Vec<String>,
    lifetime: Duration,
    force: bool,
) -> Result<(), Failure> {
    let is_stdout = file == Path::new("-");
    if !is_stdout {
        private_file::check_free(file, force)?;
    }
    let endpoints = target::endpoints(global)?;
    let node = target::one(global).await?;
    let request = GenerateClientConfigurationRequest {
        roles,
        crt_ttl: prost_types::Duration::try_from(lifetime).ok(),
    };
    let reply = node
        .machine()
        .generate_client_configuration(node.request(request))
        .await;
    let reply = reply.map_err(|status| node.explain("makes no client configuration", status))?;
    let made = node.only(reply.into_inner().messages)?.talosconfig;
    let config = with_endpoints(&String::from_utf8_lossy(&made), &endpoints);
    let config = config.map_err(|error| {
        let doing = format!("{}: made no usable client configuration", node.name());
        Failure::new(FailureKind::Failed, doing).because(error)
    })?;
    if is_stdout {
        return print_bytes(config.as_bytes());
    }
    private_file::write(file, force, config.as_bytes())?;
    global.output.show(
        || format!("wrote {}", file.display()),
        || serde_json::json!({ "node": node.name(), "file": file }),
    )
}

/// The configuration with the endpoints that this command has used. Those that the node names are its own addresses, which may be out of reach
/// behind a NAT. Without endpoints, as over a socket, it stays as it is.
fn with_endpoints(config: &str, endpoints: &[String]) -> Result<String, ClientConfigError> {
    if endpoints.is_empty() {
        return Ok(config.to_owned());
    }
    let mut config = ClientConfig::from_yaml(config)?;
    for context in config.contexts.values_mut() {
        context.endpoints = endpoints.to_vec();
    }
    config.to_yaml()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_endpoints_are_those_of_the_caller() {
        let made = "context: lamp\ncontexts:\n  lamp:\n    endpoints: [10.0.2.15, \"fd00::15\"]\n    ca: Y2E=\n    crt: Y3J0\n    key: a2V5\n";
        assert_eq!(with_endpoints(made, &[]).unwrap(), made);
        let used = ["127.0.0.1:51000".to_owned()];
        let config = with_endpoints(made, &used).unwrap();
        let config = ClientConfig::from_yaml(&config).unwrap();
        let context = config.context(None).unwrap();
        assert_eq!(context.endpoints, used);
        assert_eq!(context.key.as_deref(), Some("a2V5"));
    }
}
