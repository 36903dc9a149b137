//! An object with its path at the API server.

use serde_json::Value;

#[derive(Debug, PartialEq)]
pub(super) struct Object {
    pub(super) path: String,
    pub(super) content: Value,
}
