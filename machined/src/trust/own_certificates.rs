//! The certificates that the node issues to itself with the config's authority, and their keys.
//!
//! They go on in the next generation, which gets them with the hand-over: clients see the same server, and its API need not wait for a new
//! P-256 key and new signatures. They are used again only as long as the node would issue the same ones.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use instar_pki::{
    CertificateAuthority, IssuedCertificate, KeptError, PeerError, Role, SubjectName,
};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

/// Lifetime of a certificate.
pub(super) const LIFETIME: Duration = Duration::from_secs(24 * 3600);
/// Remaining lifetime at which a certificate is renewed: long before it expires, in whatever generation that is.
const RENEWAL: Duration = Duration::from_secs(12 * 3600);

/// Certificates and their keys, issued together.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnCertificates {
    /// The certificate of the authority that issued them, DER.
    #[serde(with = "base64_text")]
    authority: Vec<u8>,
    /// The certificate that the API shows to its callers.
    pub(super) server: Pair,
    /// The certificate that the node shows when it calls its own API.
    pub(super) reader: Pair,
    /// The certificate that the node shows when it passes calls on to other nodes.
    pub(super) forwarder: Pair,
}

/// A certificate and its PKCS#8 key, DER.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pair {
    #[serde(with = "base64_text")]
    pub(super) certificate: Vec<u8>,
    #[serde(with = "base64_text")]
    pub(super) key: Vec<u8>,
}

/// Why certificates that were issued earlier are not used again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Misfit {
    #[error("the config has another authority")]
    OtherAuthority,
    #[error("the node has other names or addresses")]
    OtherNames,
    #[error("it is due for renewal")]
    Due,
    #[error("by the clock it is not valid yet")]
    NotYetValid,
    #[error("it is unusable: {0}")]
    Unusable(#[from] KeptError),
}

impl From<PeerError> for Misfit {
    fn from(error: PeerError) -> Self {
        Misfit::Unusable(error.into())
    }
}

impl From<IssuedCertificate> for Pair {
    fn from(issued: IssuedCertificate) -> Self {
        Pair {
            certificate: issued.der().to_vec(),
            key: issued.key_der().to_vec(),
        }
    }
}

impl OwnCertificates {
    /// Issues new certificates, the server's for these names.
    pub(super) fn issue(
        authority: &CertificateAuthority,
        names: &[SubjectName],
        now: SystemTime,
    ) -> anyhow::Result<Self> {
        let client = |role| authority.issue_client(&[role], now, LIFETIME);
        Ok(OwnCertificates {
            authority: authority.certificate().to_vec(),
            server: authority
                .issue_server(names, now, LIFETIME)
                .context("issue the API's certificate")?
                .into(),
            reader: client(Role::Reader)
                .context("issue the certificate of the API's check")?
                .into(),
            // With the authority's key the node could issue one at any time; apid gets one that expires.
            forwarder: client(Role::Impersonator)
                .context("issue the certificate for calls to other nodes")?
                .into(),
        })
    }

    /// Checks that the node would issue the same certificates now. Where they come from is trusted as much as the config that has the
    /// authority's key, so no signature is verified.
    pub(super) fn fit(
        &self,
        authority: &CertificateAuthority,
        names: &[SubjectName],
        now: SystemTime,
    ) -> Result<(), Misfit> {
        // The config's key belongs to its certificate, so the same certificate means the same key.
        if self.authority != authority.certificate().as_ref() {
            return Err(Misfit::OtherAuthority);
        }
        let known: BTreeSet<SubjectName> = names.iter().cloned().collect();
        if instar_pki::server_names(&self.server.certificate)? != known {
            return Err(Misfit::OtherNames);
        }
        for pair in [&self.server, &self.reader, &self.forwarder] {
            pair.is_fresh(now)?;
        }
        // The server's key is on P-256, and nothing else here is: that code and its tables need not be read from the root filesystem for
        // this. apid, which uses the key, checks it.
        instar_pki::names_public_key(&self.server.certificate, &self.server.key)?;
        for Pair { certificate, key } in [&self.reader, &self.forwarder] {
            IssuedCertificate::from_der(certificate.clone(), key.clone())?;
        }
        Ok(())
    }
}

impl OwnCertificates {
    /// When the API's certificate ends.
    pub fn end(&self) -> Option<SystemTime> {
        let dates = instar_pki::validity(&self.server.certificate);
        dates.ok().map(|(_, end)| end)
    }

    /// The settings of a server that shows the API's certificate, for HTTP/1.1 and clients without a certificate.
    pub fn server_config(&self) -> anyhow::Result<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("choose the versions of TLS")?;
        let certificate = CertificateDer::from(self.server.certificate.clone());
        let key = PrivatePkcs8KeyDer::from(self.server.key.clone());
        let mut config = builder
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key.into())
            .context("use the API's certificate")?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

#[cfg(test)]
impl OwnCertificates {
    /// The authority that issued them, DER.
    pub(crate) fn authority(&self) -> &[u8] {
        &self.authority
    }

    /// Certificates of an authority of its own.
    pub(crate) fn for_tests() -> Self {
        let now = SystemTime::now();
        let issued = CertificateAuthority::generate(now)
            .map_err(anyhow::Error::from)
            .and_then(|authority| Self::issue(&authority, &["node-1".into()], now));
        issued.unwrap_or_else(|error| panic!("{error:#}"))
    }
}

impl Pair {
    fn is_fresh(&self, now: SystemTime) -> Result<(), Misfit> {
        if now < instar_pki::validity(&self.certificate)?.0 {
            return Err(Misfit::NotYetValid);
        }
        if now >= due(&self.certificate)? {
            return Err(Misfit::Due);
        }
        Ok(())
    }
}

/// Returns when a certificate has to be renewed.
pub(super) fn due(certificate: &[u8]) -> Result<SystemTime, PeerError> {
    let (_, end) = instar_pki::validity(certificate)?;
    Ok(end.checked_sub(RENEWAL).unwrap_or(end))
}

/// Prints no key.
impl fmt::Debug for OwnCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let certificate = &self.server.certificate;
        let fingerprint = instar_pki::public_key_fingerprint(certificate);
        f.debug_struct("OwnCertificates")
            .field("fingerprint", &fingerprint)
            .finish_non_exhaustive()
    }
}

/// Bytes as base64 in JSON.
pub(super) mod base64_text {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(in crate::trust) fn serialize<S: Serializer>(
        bytes: &[u8],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(bytes))
    }

    pub(in crate::trust) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD
            .decode(text)
            .map_err(|_| D::Error::custom("no base64"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn names(names: &[&str]) -> Vec<SubjectName> {
        names.iter().map(|name| (*name).into()).collect()
    }

    #[test]
    fn certificates_are_used_again_as_long_as_the_same_ones_would_be_issued() {
        let now = SystemTime::now();
        let [ours, other] = [(); 2].map(|()| CertificateAuthority::generate(now).unwrap());
        let known = names(&["192.0.2.7", "node-1", "::1"]);
        let own = OwnCertificates::issue(&ours, &known, now).unwrap();
        let fit = |authority, known: &[&str], at| own.fit(authority, &names(known), at);
        let in_other_order = ["::1", "192.0.2.7", "node-1"];
        for at in [now, now + 11 * HOUR, now - 11 * HOUR] {
            fit(&ours, &in_other_order, at).unwrap();
        }
        let same = in_other_order.as_slice();
        type Row<'a> = (
            &'a CertificateAuthority,
            &'a [&'a str],
            SystemTime,
            fn(&Misfit) -> bool,
        );
        let table: [Row<'_>; 7] = [
            (&other, same, now, |why| {
                matches!(why, Misfit::OtherAuthority)
            }),
            (&ours, &["192.0.2.7", "node-1"], now, |why| {
                matches!(why, Misfit::OtherNames)
            }),
            (&ours, &["192.0.2.8", "node-1", "::1"], now, |why| {
                matches!(why, Misfit::OtherNames)
            }),
            (
                &ours,
                &["192.0.2.7", "node-1", "::1", "lamp.example"],
                now,
                |why| matches!(why, Misfit::OtherNames),
            ),
            (&ours, same, now + 12 * HOUR, |why| {
                matches!(why, Misfit::Due)
            }),
            (&ours, same, now + 1000 * HOUR, |why| {
                matches!(why, Misfit::Due)
            }),
            (&ours, same, now - 13 * HOUR, |why| {
                matches!(why, Misfit::NotYetValid)
            }),
        ];
        for (row, (authority, known, at, expected)) in table.into_iter().enumerate() {
            let why = fit(authority, known, at).unwrap_err();
            assert!(expected(&why), "row {row}: {why}");
        }
    }

    #[test]
    fn damaged_certificates_and_keys_are_not_used_again() {
        let now = SystemTime::now();
        let authority = CertificateAuthority::generate(now).unwrap();
        let known = names(&["node-1"]);
        let own = OwnCertificates::issue(&authority, &known, now).unwrap();
        let damages: [fn(&mut OwnCertificates); 4] = [
            |own| own.server.certificate.truncate(100),
            |own| own.server.key = own.reader.key.clone(),
            |own| own.reader.key.clear(),
            |own| own.forwarder.certificate = own.reader.certificate.clone(),
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            let mut damaged = own.clone();
            damage(&mut damaged);
            let why = damaged.fit(&authority, &known, now).unwrap_err();
            assert!(matches!(why, Misfit::Unusable(_)), "{number}: {why}");
        }
    }

    #[test]
    fn no_key_is_printed() {
        let now = SystemTime::now();
        let authority = CertificateAuthority::generate(now).unwrap();
        let own = OwnCertificates::issue(&authority, &names(&["node-1"]), now).unwrap();
        let printed = format!("{own:?}");
        assert!(
            printed.contains("fingerprint") && printed.len() < 200,
            "{printed}"
        );
    }
}
