//! A node's standing: the version that it runs, whether it is ready, and how its upgrades ended.

use instar_api::MAX_MESSAGE_BYTES;
use instar_api::cosi::resource::ListRequest;
use instar_api::cosi::resource::state_client::StateClient;
use instar_api::definitions::instar::{Outcome, UpgradeRecordSpec};
use instar_api::definitions::runtime::{MachineStage, MachineStatusSpec};
use instar_api::machine::ReleaseInfo;
use prost::Message;
use tonic::{Code, Status};

use crate::failure::Failure;
use crate::node::Node;

const NAMESPACE: &str = "runtime";
const STATUS: &str = "MachineStatuses.runtime.talos.dev";
const HISTORY: &str = "UpgradeRecords.instar.dev";

/// A node's standing.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// The version that it runs, as in `v0.1.0`.
    pub version: String,
    /// The image that it came from, and the node's floor; none if the node does not tell.
    pub release: Option<ReleaseInfo>,
    /// Its status; none if the node does not serve it.
    pub status: Option<MachineStatusSpec>,
    /// The upgrades that it remembers, oldest first, each with its number. Empty if the node keeps no history.
    pub history: Vec<(u64, UpgradeRecordSpec)>,
}

impl Standing {
    /// Asks a node.
    ///
    /// # Errors
    /// A call failed.
    pub async fn of(node: &Node) -> Result<Self, Failure> {
        let version = node.version().await?;
        let explain = |status| node.explain("cannot ask for its standing", status);
        let status = resources::<MachineStatusSpec>(node, STATUS)
            .await
            .map_err(explain)?;
        let history = resources::<UpgradeRecordSpec>(node, HISTORY)
            .await
            .map_err(explain)?;
        let numbered = history
            .into_iter()
            .filter_map(|(id, record)| Some((id.parse().ok()?, record)));
        Ok(Self {
            version: version.version.unwrap_or_default().tag,
            release: version.release,
            status: status.into_iter().next().map(|(_, status)| status),
            history: numbered.collect(),
        })
    }

    /// The stage, if the node tells it.
    pub fn stage(&self) -> Option<MachineStage> {
        self.status.as_ref().map(MachineStatusSpec::stage)
    }

    /// The newest entry of the history with this outcome.
    pub fn newest(&self, outcome: Outcome) -> Option<&(u64, UpgradeRecordSpec)> {
        let mut entries = self.history.iter().rev();
        entries.find(|(_, entry)| entry.outcome() == outcome)
    }
}

/// All resources of a type in the namespace `runtime` with their ids, sorted by id. None if the node does not know the type.
///
/// # Errors
/// The call failed.
pub async fn resources<Spec: Message + Default>(
    node: &Node,
    name: &str,
) -> Result<Vec<(String, Spec)>, Status> {
    resources_in(node, NAMESPACE, name).await
}

/// The same, in another namespace.
///
/// # Errors
/// The call failed.
pub async fn resources_in<Spec: Message + Default>(
    node: &Node,
    namespace: &str,
    name: &str,
) -> Result<Vec<(String, Spec)>, Status> {
    let request = node.request(ListRequest {
        namespace: namespace.to_owned(),
        r#type: name.to_owned(),
        options: None,
    });
    let mut client = StateClient::new(node.channel()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut stream = match client.list(request).await {
        Ok(reply) => reply.into_inner(),
        Err(status) if matches!(status.code(), Code::Unimplemented | Code::NotFound) => {
            return Ok(Vec::new());
        }
        Err(status) => return Err(status),
    };
    let mut found = Vec::new();
    while let Some(reply) = stream.message().await? {
        let Some(resource) = reply.resource else {
            continue;
        };
        let id = resource.metadata.unwrap_or_default().id;
        let spec = resource.spec.unwrap_or_default().proto_spec;
        let spec = Spec::decode(spec.as_slice())
            .map_err(|error| Status::internal(format!("{name} {id}: {error}")))?;
        found.push((id, spec));
    }
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}
