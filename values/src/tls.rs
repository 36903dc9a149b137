//! Settings of TLS towards a host.

use crate::Secret;

/// TLS settings for a host: trusted authorities, and our own identity.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostTls {
    /// Certificate authorities in addition to the system's (PEM).
    pub ca: Option<String>,
    /// Our certificate chain and key (PEM).
    pub client_identity: Option<ClientIdentity>,
    /// Whether any certificate is accepted.
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
