//! The caller of a connection, and how apid authenticates callers.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use instar_pki::{Role, may_all};
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

/// The word for the peer of a connection over the socket for pods, as machined gets it.
pub const PODS: &str = "pods";

/// The word before the address of a machine that wants a certificate, as machined gets it.
pub const WORKER: &str = "worker ";

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// An address on the network.
    Network(SocketAddr),
    /// A pod of this node, over the socket for pods.
    Pods,
    /// A machine that wants a certificate. It has none to show, and its token is machined's to check.
    Worker(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Network(address) => address.fmt(f),
            Peer::Pods => f.write_str(PODS),
            Peer::Worker(address) => write!(f, "{WORKER}{address}"),
        }
    }
}

/// The caller of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    /// The roles in the client certificate, or those of the socket for pods.
    pub(super) roles: Vec<Role>,
    /// Where the connection comes from.
    pub(super) peer: Peer,
    /// The certificates that the caller showed, its own first; none where no certificate is asked for.
    pub(super) certificates: Arc<[CertificateDer<'static>]>,
}

impl Caller {
    /// A caller whom nobody asks who it is, where the config says that anybody may read.
    pub(super) fn anyone(address: SocketAddr) -> Self {
        Caller {
            roles: vec![Role::Reader],
            peer: Peer::Network(address),
            certificates: Arc::default(),
        }
    }

    /// The rank whose quota the caller's calls use.
    pub(super) fn rank(&self) -> Rank {
        Rank::of(may_all(&self.roles))
    }

    /// Whether the caller may change the node, which takes large messages, for example a machine config.
    pub(super) fn may_bring_much(&self) -> bool {
        let may_change = [Role::Admin, Role::Operator];
        self.roles.iter().any(|role| may_change.contains(role))
    }
}
