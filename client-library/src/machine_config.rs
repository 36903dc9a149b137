//! A node's machine config, as it was written.

use instar_api::cosi::resource::state_client::StateClient;
use instar_api::cosi::resource::{GetRequest, Resource};
use instar_api::definitions::config::MachineConfigSpec;
use instar_api::{MAX_MESSAGE_BYTES, ON_TRIAL};
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
    let resource = read(node, id).await?;
    let spec = resource.spec.unwrap_or_default().proto_spec;
    text(&spec).ok_or_else(|| {
        let why = format!("{} sent no machine config", node.name());
        Failure::new(FailureKind::Failed, why)
    })
}

/// Whether a node takes its config in force back unless it is applied to stay (`--mode try`). An older node does not tell.
///
/// # Errors
/// The node has none, or the caller may not read it.
pub async fn is_on_trial(node: &Node) -> Result<bool, Failure> {
    let resource = read(node, CONFIG_IN_FORCE).await?;
    Ok(is_marked(&resource))
}

async fn read(node: &Node, id: &str) -> Result<Resource, Failure> {
    let request = node.request(GetRequest {
        namespace: "config".to_owned(),
        r#type: "MachineConfigs.config.talos.dev".to_owned(),
        id: id.to_owned(),
        options: None,
    });
    let mut client = StateClient::new(node.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let reply = client.get(request).await;
    let reply = reply.map_err(|status| node.explain("cannot get the machine config", status))?;
    Ok(reply.into_inner().resource.unwrap_or_default())
}

fn is_marked(resource: &Resource) -> bool {
    let metadata = resource.metadata.as_ref();
    metadata.is_some_and(|metadata| metadata.annotations.contains_key(ON_TRIAL))
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
    use instar_api::cosi::resource::Metadata;

    use super::*;

    #[test]
    fn a_config_on_trial_is_marked() {
        let with = |annotation: &str| Resource {
            metadata: Some(Metadata {
                annotations: [(annotation.to_owned(), "1".to_owned())].into(),
                ..Metadata::default()
            }),
            ..Resource::default()
        };
        assert!(is_marked(&with("instar.dev/on-trial")));
        assert!(!is_marked(&with("talos.dev/yaml-spec")));
        assert!(!is_marked(&Resource::default()));
    }

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
