//! The node as a client of its own API: a call over mutual TLS, as every other client makes it.
//!
//! A process that runs proves little; an answer proves certificate, key, sandbox, proxy and machined's socket at once.

use std::net::Ipv4Addr;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::TlsConnector;

use super::one_call::OneCall;

/// The cheapest call: any reader may make it.
const METHOD: &str = "/machine.MachineService/Version";

/// The certificates that the node expects at its own port, and shows there.
#[derive(Clone)]
pub struct SelfCheck {
    tls: TlsConnector,
}

impl SelfCheck {
    /// Made from the DER of the authority of the API's certificate and, where clients need one, a certificate and its PKCS#8 key.
    pub fn new(authority: &[u8], client: Option<(&[u8], &[u8])>) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(authority.to_vec()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots);
        let mut config = match client {
            Some((certificate, key)) => builder.with_client_auth_cert(
                vec![CertificateDer::from(certificate.to_vec())],
                PrivatePkcs8KeyDer::from(key.to_vec()).into(),
            )?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
        })
    }

    /// Calls Version; the error says which step failed.
    pub async fn ask(&self) -> anyhow::Result<()> {
        let call = OneCall {
            to: (Ipv4Addr::LOCALHOST, instar_api::PORT).into(),
            name: ServerName::try_from("127.0.0.1")?,
            method: METHOD,
            metadata: &[],
            message: &[],
        };
        call.make(&self.tls).await.map(drop)
    }
}
