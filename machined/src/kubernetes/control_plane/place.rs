//! Where a control plane is.

use std::net::IpAddr;

/// Where the control plane is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The node's name.
    pub node: String,
    /// The domain of the cluster's services.
    pub domain: String,
    /// The machine's own addresses.
    pub addresses: Vec<IpAddr>,
}
