//! Asks the control plane for the machine's certificate, and again before it ends, for as long as the config has no authority's key.
//!
//! The API never waits for this: until there is a certificate, it shows one that the machine signed itself.

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow};
use instar_api::securityapi::{CertificateRequest, CertificateResponse};
use instar_api::{CERTIFICATE_METHOD, CERTIFICATES_PORT, TOKEN_KEY};
use instar_pki::{IssuedCertificate, SubjectName};
use prost::Message as _;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use super::control_plane::ControlPlane;
use super::granted::{self, Granted, Next};
use super::issuer::issuer_of;
use super::server_identity::{Names, PinnedKey, Trust, subjects};
use crate::apid::OneCall;
use crate::base::back_off::BackOff;

/// Timeout for the lookup of the control plane's addresses.
const LOOKUP: Duration = Duration::from_secs(10);
/// Timeout for one address.
const ONE: Duration = Duration::from_secs(10);
/// Limit on the addresses of a name that are tried in a round.
const MOST_ADDRESSES: usize = 8;
/// Pauses between rounds in which no address answered.
const PAUSES: BackOff = BackOff {
    first: Duration::from_secs(2),
    longest: Duration::from_secs(300),
};

/// How many failures in a row are in the log, and then one of how many.
const SAID: u32 = 3;
const SAID_EVERY: u32 = 12;

/// Asks for as long as it runs.
pub struct AskControlPlane {
    /// The newest trust.
    pub trust: watch::Receiver<Option<Trust>>,
    /// The newest names; None before the network has been examined.
    pub names: watch::Receiver<Option<Names>>,
    /// Receives the certificates.
    pub granted: watch::Sender<Option<Granted>>,
    /// The machine's key.
    pub pinned: watch::Sender<PinnedKey>,
}

/// All that a round needs.
struct Question {
    control_plane: ControlPlane,
    /// DER of the accepted authorities; that of the config first.
    accepted: Vec<Vec<u8>>,
    subjects: Vec<SubjectName>,
    names: BTreeSet<String>,
}

impl AskControlPlane {
    /// Asks now, at half of a certificate's life, and when names or the authority change.
    pub async fn run(mut self) {
        let mut failures = 0;
        loop {
            let question = self.question();
            let pause = match question {
                Some(question) => self.step(question, &mut failures).await,
                None => None,
            };
            let pause = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.trust.changed() => if changed.is_err() { return },
                changed = self.names.changed() => if changed.is_err() { return },
                () = pause => {}
            }
        }
    }

    fn question(&mut self) -> Option<Question> {
        let trust = self.trust.borrow_and_update();
        let Some(Trust::Configured {
            authority: None,
            control_plane: Some(control_plane),
            accepted,
            extra_names,
        }) = trust.as_ref()
        else {
            return None;
        };
        // Without an address there is nothing that a certificate could be for.
        let names = self.names.borrow_and_update().clone()?;
        if names.addresses.is_empty() {
            return None;
        }
        let (_, subjects) = subjects(&names, extra_names);
        Some(Question {
            control_plane: control_plane.clone(),
            accepted: accepted.clone(),
            names: granted::as_text(&subjects),
            subjects,
        })
    }

    /// Does the next thing and returns the time until the one after it.
    async fn step(&self, question: Question, failures: &mut u32) -> Option<Duration> {
        let authority = question.accepted.first()?;
        let held = self.granted.borrow().clone();
        match granted::next(held.as_ref(), authority, &question.names, SystemTime::now()) {
            // Machines that booted at once do not ask at once half a day later.
            Next::Wait(pause) => Some(with_jitter(pause)),
            Next::Ask => match self.ask(&question).await {
                Ok(()) => {
                    *failures = 0;
                    Some(PAUSES.longest)
                }
                Err(error) => {
                    *failures = failures.saturating_add(1);
                    let pause = with_jitter(PAUSES.after(*failures));
                    // A control plane may have none to give, as that of kubeadm: said now and then.
                    if *failures <= SAID || failures.is_multiple_of(SAID_EVERY) {
                        tracing::warn!(
                            "no certificate from the control plane {}: {error:#}; the next try is in {} s",
                            question.control_plane.host,
                            pause.as_secs()
                        );
                    }
                    Some(pause)
                }
            },
        }
    }

    async fn ask(&self, question: &Question) -> anyhow::Result<()> {
        let mut pinned = self.pinned.borrow().clone();
        let key = pinned.get().context("make the API's key")?;
        self.pinned.send_replace(pinned);
        let request = instar_pki::request_for_server(&key, &question.subjects)?;
        let answer = question.ask_one_of(request).await?;
        let key_der = key.to_der();
        let (authority, certificate) = question.check(&answer, key_der.secret_der())?;
        let fingerprint = instar_pki::public_key_fingerprint(&certificate)?;
        tracing::info!(
            "API certificate from the control plane {}, fingerprint {fingerprint}",
            question.control_plane.host
        );
        self.granted.send_replace(Some(Granted {
            authority,
            certificate,
            key: key.to_pem(),
            asked: question.names.clone(),
            by_hand: false,
        }));
        Ok(())
    }
}

impl Question {
    /// Asks one address after the other.
    async fn ask_one_of(&self, request: String) -> anyhow::Result<CertificateResponse> {
        let message = CertificateRequest {
            csr: request.into_bytes(),
        }
        .encode_to_vec();
        let tls = self.tls()?;
        let mut last = anyhow!("the name has no address");
        for (to, name) in self.ways().await? {
            let call = OneCall {
                to,
                name,
                method: CERTIFICATE_METHOD,
                metadata: &[(TOKEN_KEY, self.control_plane.token.expose())],
                message: &message,
            };
            let answer = tokio::time::timeout(ONE, call.make(&tls)).await;
            match answer.context("no answer in time").flatten() {
                Ok(answer) => return CertificateResponse::decode(answer).context("the answer"),
                Err(error) => last = error.context(to),
            }
        }
        Err(last)
    }

    /// The addresses to ask, each with the names that its certificate may be for: the endpoint's, and the address itself.
    async fn ways(&self) -> anyhow::Result<Vec<(SocketAddr, ServerName<'static>)>> {
        let host = self.control_plane.host.clone();
        let named = ServerName::try_from(host.clone()).context("the endpoint's host")?;
        let lookup = tokio::net::lookup_host((host, CERTIFICATES_PORT));
        let found = tokio::time::timeout(LOOKUP, lookup).await;
        let found = found.context("no answer to the lookup")??;
        let mut ways = Vec::new();
        for to in found.take(MOST_ADDRESSES) {
            let address = ServerName::IpAddress(to.ip().into());
            ways.push((to, named.clone()));
            if named != address {
                ways.push((to, address));
            }
        }
        Ok(ways)
    }

    fn roots(&self) -> anyhow::Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for authority in &self.accepted {
            roots.add(CertificateDer::from(authority.clone()))?;
        }
        Ok(roots)
    }

    fn tls(&self) -> anyhow::Result<TlsConnector> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .with_root_certificates(self.roots()?)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(TlsConnector::from(Arc::new(config)))
    }

    /// Checks that clients can verify the certificate, and returns its authority and it, DER.
    fn check(
        &self,
        answer: &CertificateResponse,
        key: &[u8],
    ) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
        let pem = std::str::from_utf8(&answer.crt).context("the certificate is no text")?;
        let certificate = instar_pki::certificate_from_pem(pem)?;
        IssuedCertificate::from_der(certificate.clone(), key.to_vec())?;
        let issuer = issuer_of(&certificate, &self.accepted)?;
        let issuer = issuer.context("no accepted authority signed the certificate")?;
        Ok((issuer, certificate))
    }
}

/// Up to a quarter more, by chance: a fleet that boots at once does not ask at once again.
fn with_jitter(pause: Duration) -> Duration {
    // The standard library's random numbers, which it makes for its hash tables.
    let random = RandomState::new().hash_one(0_u8) % 256;
    pause + pause.mul_f64(random as f64 / 1024.0)
}
