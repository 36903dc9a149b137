//! A test's identity towards a node: the machine's certificate authority and an administrator's certificate of it.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use instar_pki::client_config::{ClientConfig, Context};
use instar_pki::{CertificateAuthority, Role, SubjectName, with_standard_label};

/// Lifetime of certificates: longer than any test, and short in case one gets out.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// An authority and a client of it.
#[derive(Debug)]
pub struct Identity {
    authority: CertificateAuthority,
    /// Certificates of the authorities that nodes may show a certificate of, PEM.
    trusted: String,
    /// The client's certificate, PEM.
    pub certificate: String,
    /// The client's key, PEM under the standard label, which OpenSSL and tonic read.
    pub key: String,
}

impl Identity {
    /// Returns a new authority and its administrator.
    pub fn administrator() -> Result<Self> {
        let now = SystemTime::now();
        Self::of(CertificateAuthority::generate(now)?, &[Role::Admin], now)
    }

    /// The administrator of an authority with an ECDSA key on P-256, in the form that another tool writes (`EC PRIVATE KEY`).
    pub fn administrator_by_p256() -> Result<Self> {
        let authority = CertificateAuthority::from_pem(
            include_str!("../../pki/tests/data/etcd-ca-1.14.crt"),
            include_str!("../../pki/tests/data/etcd-ca-1.14.key"),
        )?;
        Self::of(authority, &[Role::Admin], SystemTime::now())
    }

    fn of(authority: CertificateAuthority, roles: &[Role], from: SystemTime) -> Result<Self> {
        let issued = authority.issue_client(roles, from, LIFETIME)?;
        Ok(Self {
            certificate: issued.pem(),
            key: with_standard_label(&issued.key_pem()),
            trusted: authority.certificate_pem(),
            authority,
        })
    }

    /// Returns a client of the same authority with this role.
    pub fn with_role(&self, role: Role) -> Result<Self> {
        self.with_roles(&[role])
    }

    /// Returns a client of the same authority with any number of roles.
    pub fn with_roles(&self, roles: &[Role]) -> Result<Self> {
        Self::of(self.same_authority()?, roles, SystemTime::now())
    }

    /// Returns an administrator of the same authority whose certificate is valid for a day from then.
    pub fn for_a_day_from(&self, from: SystemTime) -> Result<Self> {
        Self::of(self.same_authority()?, &[Role::Admin], from)
    }

    /// Returns a client with this certificate, which trusts the same nodes.
    pub fn showing(&self, certificate: String, key: String) -> Result<Self> {
        Ok(Self {
            authority: self.same_authority()?,
            trusted: self.trusted.clone(),
            certificate,
            key,
        })
    }

    /// Returns a copy.
    pub fn twin(&self) -> Result<Self> {
        self.showing(self.certificate.clone(), self.key.clone())
    }

    fn same_authority(&self) -> Result<CertificateAuthority> {
        let (certificate, key) = (self.authority_certificate(), self.authority_key());
        Ok(CertificateAuthority::from_pem(&certificate, &key)?)
    }

    /// Issues a certificate of the same authority for a server at these addresses. Returns it and its key, PEM.
    pub(crate) fn issue_server(&self, addresses: &[Ipv4Addr]) -> Result<(String, String)> {
        let names: Vec<SubjectName> = addresses
            .iter()
            .map(|address| SubjectName::from(IpAddr::from(*address)))
            .collect();
        let issued = self
            .authority
            .issue_server(&names, SystemTime::now(), LIFETIME)?;
        Ok((issued.pem(), with_standard_label(&issued.key_pem())))
    }

    /// Also trusts nodes with a certificate of the other identity's authority.
    pub fn trusting(mut self, other: &Self) -> Self {
        self.trusted.push_str(&other.authority_certificate());
        self
    }

    /// Trusts nodes with a certificate of the other identity's authority and no others.
    pub fn trusting_only(self, other: &Self) -> Self {
        Self {
            trusted: other.authority_certificate(),
            ..self
        }
    }

    /// Takes any node for the right one: a worker has no key of the authority, and so no certificate of it.
    pub fn believing_any_node(self) -> Self {
        Self {
            trusted: String::new(),
            ..self
        }
    }

    /// Certificates of the trusted authorities, PEM; empty if any node is the right one.
    pub fn trusted(&self) -> &str {
        &self.trusted
    }

    /// Returns a client configuration file for this identity.
    pub fn client_config(&self, endpoint: &str) -> Result<String> {
        let encoded = |pem: &str| Some(BASE64_STANDARD.encode(pem));
        let authority = self.authority_certificate();
        let trusted = match self.trusted.is_empty() {
            true => &authority,
            false => &self.trusted,
        };
        let context = Context {
            endpoints: vec![endpoint.to_owned()],
            ca: encoded(trusted),
            crt: encoded(&self.certificate),
            key: encoded(&self.key),
            ..Context::default()
        };
        Ok(ClientConfig::single("test", context).to_yaml()?)
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
