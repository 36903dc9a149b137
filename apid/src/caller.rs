//! The caller of a connection, and how apid authenticates callers.

use std::net::SocketAddr;
use std::sync::Arc;

use instar_pki::Role;
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use instar_base::quota::Rank;

/// How callers are authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// By client certificates of the accepted authorities.
    Normal,
    /// No authentication: the node has no config, and everyone is a reader who may bring one.
    Maintenance,
    /// No authentication, and everyone may only read: the node has no config, and does not know who may bring one.
    Closed,
}

/// The caller of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    /// The roles in the client certificate.
    pub(super) roles: Vec<Role>,
    /// The address that the connection comes from.
    pub(super) peer: SocketAddr,
    /// The certificates that the caller showed, its own first; none where no certificate is asked for.
    pub(super) certificates: Arc<[CertificateDer<'static>]>,
}

impl Caller {
    /// The rank whose quota the caller's calls use.
    pub(super) fn rank(&self) -> Rank {
        Rank::of(&self.roles)
    }

    /// Whether the caller may change the node, which takes large messages, for example a machine config.
    pub(super) fn may_bring_much(&self) -> bool {
        let may_change = [Role::Admin, Role::Operator];
        self.roles.iter().any(|role| may_change.contains(role))
    }
}
