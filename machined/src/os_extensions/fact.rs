//! An extension of the machine itself, as `get extensions` shows it.

use serde::Serialize;

use crate::store::Resource;

/// An extension of the machine itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OsExtensionFact {
    /// Its image, or the address of its file.
    pub source: String,
    /// The digest of the image in force, or, if none is, of the one that is wanted, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// How far it is.
    pub state: OsExtensionState,
}

/// How far an extension is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum OsExtensionState {
    /// Its image is not here yet. The one before, if there is one, is in force meanwhile.
    Fetching,
    /// It cannot be used. The one before, if there is one, stays in force.
    Refused(String),
    /// Its files are there.
    InForce,
}

impl Resource for OsExtensionFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "OsExtensions.instar.dev";
}
