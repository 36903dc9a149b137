//! Where a machine without the authority's key gets its certificate.

use crate::values::Secret;

/// A control plane, as the config names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlPlane {
    /// The host of the cluster's endpoint.
    pub host: String,
    /// The token that the machines of the cluster share.
    pub token: Secret,
}
