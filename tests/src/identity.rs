//! Who a test is to a node: the machine's certificate authority and an administrator's certificate of it.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use instar_pki::{CertificateAuthority, Role};

/// Longer than any test, shorter than a mistake that matters.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// An authority and a client of it.
#[derive(Debug)]
pub struct Identity {
    authority: CertificateAuthority,
    /// The client's certificate, PEM.
    pub certificate: String,
    /// The client's key, PEM.
    pub key: String,
}

impl Identity {
    /// A new authority and its administrator.
    pub fn administrator() -> Result<Self> {
        Self::of(
            CertificateAuthority::generate(SystemTime::now())?,
            Role::Admin,
        )
    }

    fn of(authority: CertificateAuthority, role: Role) -> Result<Self> {
        let issued = authority.issue_client(&[role], SystemTime::now(), LIFETIME)?;
        Ok(Self {
            certificate: issued.pem(),
            key: issued.key_pem(),
            authority,
        })
    }

    /// Somebody else of the same authority.
    pub fn with_role(&self, role: Role) -> Result<Self> {
        let authority =
            CertificateAuthority::from_pem(&self.authority_certificate(), &self.authority_key())?;
        Self::of(authority, role)
    }

    /// The authority's certificate, PEM.
    pub fn authority_certificate(&self) -> String {
        self.authority.certificate_pem()
    }

    /// The authority's key, PEM.
    pub fn authority_key(&self) -> String {
        self.authority.key_pem()
    }
}
