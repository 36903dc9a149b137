//! Finds the authority that has signed a server's certificate.

use std::sync::Arc;

use anyhow::Context as _;
use instar_pki::SubjectName;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

/// Returns the one of the authorities (DER) by which clients can verify the certificate now; None if there is none.
pub(super) fn issuer_of(
    certificate: &[u8],
    authorities: &[Vec<u8>],
) -> anyhow::Result<Option<Vec<u8>>> {
    let names = instar_pki::server_names(certificate)?;
    let name = names.iter().find_map(server_name);
    let name = name.context("the certificate has no name")?;
    let leaf = CertificateDer::from(certificate);
    for authority in authorities {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(authority.clone()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        let now = UnixTime::now();
        let verified = verifier.verify_server_cert(&leaf, &[], &name, &[], now);
        if verified.is_ok() {
            return Ok(Some(authority.clone()));
        }
    }
    Ok(None)
}

fn server_name(name: &SubjectName) -> Option<ServerName<'static>> {
    match name {
        SubjectName::Ip(address) => Some(ServerName::IpAddress((*address).into())),
        SubjectName::Dns(name) => ServerName::try_from(name.clone()).ok(),
    }
}
