//! Accepts servers without a certificate of a known authority: nodes in maintenance mode.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// Accepts any certificate, or only those with one of these public keys. The server has to prove in either case that it holds the key.
pub(super) fn verifier(
    fingerprints: Vec<String>,
    provider: Arc<CryptoProvider>,
) -> Arc<dyn ServerCertVerifier> {
    Arc::new(Unverified {
        fingerprints,
        provider,
    })
}

#[derive(Debug)]
struct Unverified {
    /// Each is base64 of the SHA-256 of the public key.
    fingerprints: Vec<String>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _stapled: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.fingerprints.is_empty() {
            return Ok(ServerCertVerified::assertion());
        }
        let fingerprint = instar_pki::public_key_fingerprint(certificate)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        if self.fingerprints.contains(&fingerprint) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            ))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
