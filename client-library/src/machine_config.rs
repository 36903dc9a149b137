//! A node's machine config, as it was written.

use instar_api::MAX_MESSAGE_BYTES;
use instar_api::cosi::resource::GetRequest;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::definitions::config::MachineConfigSpec;
use prost::Message;
use tonic::Code;

use crate::failure::{Failure, FailureKind};
use crate::node::Node;

/// The id of the config in force.
pub const CONFIG_IN_FORCE: &str = "v1alpha1";
/// The id of the config for the next boot. The two differ while one is tried, or staged.
pub const CONFIG_KEPT: &str = "persistent";

/// Reads a node's machine config, with its secrets: the one in force ([`CONFIG_IN_FORCE`]) or for the next boot ([`CONFIG_KEPT`]).
///
/// # Errors
/// The node has none, or the caller may not read it.
pub async fn read_config(node: &Node, id: &str) -> Result<String, Failure> {
    let request = node.request(GetRequest {
        namespace: "config".to_owned(),
        r#type: "MachineConfigs.config.talos.dev".to_owned(),
        id: id.to_owned(),
        options: None,
    });
    let mut client = StateClient::new(node.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let reply = client.get(request).await;
    let reply = reply.map_err(|status| node.explain("cannot get the machine config", status))?;
    let resource = reply.into_inner().resource.unwrap_or_default();
    let spec = resource.spec.unwrap_or_default().proto_spec;
    text(&spec).ok_or_else(|| {
        let why = format!("{} sent no machine config", node.name());
        Failure::new(FailureKind::Failed, why)
    })
}

/// What a node has not done that failed to apply a machine config, for [`Node::explain`]. An internal failure may come after the config is in
/// force: the node took it, and did not carry all of it out.
pub fn config_failure(code: Code) -> &'static str {
    match code {
        Code::Internal => "did not carry out the machine config",
        _ => "did not take the machine config",
    }
}

fn text(spec: &[u8]) -> Option<String> {
    let spec = MachineConfigSpec::decode(spec).ok()?;
    let text = String::from_utf8(spec.yaml_marshalled).ok()?;
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_config_is_text() {
        let sent = |bytes: &[u8]| {
            let yaml_marshalled = bytes.to_vec();
            text(&MachineConfigSpec { yaml_marshalled }.encode_to_vec())
        };
        assert_eq!(sent(b"a: 1 # one\n").as_deref(), Some("a: 1 # one\n"));
        for nothing in [&b""[..], b"\xff"] {
            assert_eq!(sent(nothing), None);
        }
        assert_eq!(text(b"\xff"), None);
    }
}
