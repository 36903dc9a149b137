//! Extensions, of the machine itself and of its Kubernetes node, as `get extensions` shows them.

use serde::Serialize;

use super::Resource;

/// An extension. Its id is its name, which the config has once, whatever the extension is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionFact {
    /// The system that it extends.
    pub target: ExtensionTarget,
    /// Its image, or the address of its file.
    pub source: String,
    /// The digest of the image in force, or, if none is, of the one that is wanted, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// How far it is.
    pub state: ExtensionState,
}

/// The system that an extension extends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ExtensionTarget {
    /// The machine itself.
    Os,
    /// The container of Kubernetes.
    Kubernetes,
}

impl ExtensionTarget {
    /// Returns its word in the config.
    pub fn word(self) -> &'static str {
        match self {
            ExtensionTarget::Os => "os",
            ExtensionTarget::Kubernetes => "kubernetes",
        }
    }
}

/// How far an extension is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum ExtensionState {
    /// Its image is not here yet: `get pins` says how far it is. The one before, if there is one, is in force meanwhile.
    Fetching,
    /// It cannot be used, for this reason. The one before, if there is one, stays in force.
    Refused(String),
    /// It is one of Kubernetes, and its services are in the plan of the node.
    Planned,
    /// It is one of the machine itself, and its files are there.
    InForce,
}

impl ExtensionState {
    /// Returns its word.
    pub fn word(&self) -> &'static str {
        match self {
            ExtensionState::Fetching => "fetching",
            ExtensionState::Refused(_) => "refused",
            ExtensionState::Planned => "planned",
            ExtensionState::InForce => "in force",
        }
    }

    /// Returns why it cannot be used, if it cannot.
    pub fn reason(&self) -> Option<&str> {
        match self {
            ExtensionState::Refused(reason) => Some(reason),
            ExtensionState::Fetching | ExtensionState::Planned | ExtensionState::InForce => None,
        }
    }
}

impl Resource for ExtensionFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "Extensions.instar.dev";
}
