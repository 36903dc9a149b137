//! Settings of TLS towards a host.

use crate::Secret;

/// How to trust a host, and how to be trusted by it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostTls {
    /// Certificate authorities beside the system's (PEM).
    pub ca: Option<String>,
    /// Our certificate chain and key (PEM).
    pub client_identity: Option<ClientIdentity>,
    /// Take any certificate.
    pub insecure_skip_verify: bool,
}

/// A client certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// Chain, PEM.
    pub certificate: String,
    /// Private key, PEM.
    pub key: Secret,
}
