//! The node's identity towards its callers: as machined sends it, and as apid uses it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use instar_pki::Role;
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};
use tokio_rustls::TlsAcceptor;

use super::caller::{Caller, Mode, Peer};
use super::node_ref::Other;
use super::peers::Peers;
use super::tls;

/// Certificate, key and the other data that apid needs; binary values in base64.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    /// How callers are authenticated.
    pub mode: Mode,
    certificate: String,
    key: String,
    client_authorities: Vec<String>,
    /// Addresses and names that mean this node when a caller asks for a node.
    pub names: Vec<String>,
    /// The node's identity towards other nodes; none where it may not pass calls on.
    forwarder: Option<Forwarder>,
}

/// A client certificate and its key for calls that are passed on to other nodes.
#[derive(Clone, Serialize, Deserialize)]
struct Forwarder {
    certificate: String,
    key: String,
}

impl Identity {
    /// Made from DER: the node's certificate, its PKCS#8 key, the accepted authorities.
    pub fn new(
        mode: Mode,
        certificate: &[u8],
        key: &[u8],
        client_authorities: &[Vec<u8>],
        names: Vec<String>,
    ) -> Self {
        Identity {
            mode,
            certificate: BASE64.encode(certificate),
            key: BASE64.encode(key),
            client_authorities: client_authorities
                .iter()
                .map(|der| BASE64.encode(der))
                .collect(),
            names,
            forwarder: None,
        }
    }

    /// The fingerprint of the public key that clients can pin (`--cert-fingerprint`).
    pub fn public_key_fingerprint(&self) -> anyhow::Result<String> {
        let certificate = BASE64
            .decode(&self.certificate)
            .context("decode the certificate")?;
        Ok(instar_pki::public_key_fingerprint(&certificate)?)
    }

    /// Adds a client certificate and its PKCS#8 key for calls to other nodes.
    pub fn passing_on(mut self, certificate: &[u8], key: &[u8]) -> Self {
        self.forwarder = Some(Forwarder {
            certificate: BASE64.encode(certificate),
            key: BASE64.encode(key),
        });
        self
    }
}

/// An identity, ready for connections.
pub(super) struct Credentials {
    mode: Mode,
    names: Vec<String>,
    certificate: CertificateDer<'static>,
    config: Arc<ServerConfig>,
    /// Checks client certificates; none where no certificate is asked for.
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    peers: Option<Arc<Peers>>,
}

impl Credentials {
    /// Checks an identity and makes it ready.
    pub(super) fn new(identity: &Identity) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?;
        let mut roots = RootCertStore::empty();
        for authority in &identity.client_authorities {
            let der = BASE64
                .decode(authority)
                .context("decode a client authority")?;
            roots
                .add(CertificateDer::from(der))
                .context("add a client authority")?;
        }
        let peers = match &identity.forwarder {
            Some(Forwarder { certificate, key }) => Some(Arc::new(Peers::new(
                roots.clone(),
                BASE64.decode(certificate)?,
                BASE64.decode(key)?,
            )?)),
            None => None,
        };
        let verifier = match identity.mode {
            Mode::Maintenance | Mode::Closed => None,
            Mode::Normal => Some(tls::clients_of(roots, provider)?),
        };
        let builder = match &verifier {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
        };
        let certificate = BASE64
            .decode(&identity.certificate)
            .context("decode the certificate")?;
        let certificate = CertificateDer::from(certificate);
        let key = BASE64.decode(&identity.key).context("decode the key")?;
        let mut config = builder.with_single_cert(
            vec![certificate.clone()],
            PrivatePkcs8KeyDer::from(key).into(),
        )?;
        without_sessions(&mut config);
        Ok(Credentials {
            mode: identity.mode,
            names: identity.names.clone(),
            certificate,
            config: Arc::new(config),
            verifier,
            peers,
        })
    }

    /// The TLS acceptor for connections to this identity.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.clone())
    }

    /// The TLS acceptor for machines that want a certificate: it shows the same one, and asks for none. Made for each connection, as there
    /// are few.
    pub(super) fn acceptor_of_workers(&self) -> anyhow::Result<TlsAcceptor> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(self.config.cert_resolver.clone());
        without_sessions(&mut config);
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// The TLS acceptor for readers of metrics: as for the API, over HTTP/1.1. Made for each connection, as there are few.
    pub(super) fn acceptor_of_metrics(&self) -> anyhow::Result<TlsAcceptor> {
        let verifier = self.verifier.clone().context("there is no config")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(self.config.cert_resolver.clone());
        without_sessions(&mut config);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// The caller at the other end of an accepted connection.
    pub(super) fn caller(
        &self,
        connection: &ServerConnection,
        peer: SocketAddr,
    ) -> anyhow::Result<Caller> {
        let roles = match self.mode {
            Mode::Maintenance | Mode::Closed => vec![Role::Reader],
            Mode::Normal => tls::roles_of(connection)?,
        };
        let certificates = match self.mode {
            Mode::Maintenance | Mode::Closed => Arc::default(),
            Mode::Normal => tls::certificates_of(connection),
        };
        Ok(Caller {
            roles,
            peer: Peer::Network(peer),
            certificates,
        })
    }

    /// The caller at the other end of a connection over the socket for pods; none while the node has no config.
    pub(super) fn pod(&self) -> Option<Caller> {
        (self.mode == Mode::Normal).then(|| Caller {
            roles: vec![Role::Upgrader],
            peer: Peer::Pods,
            certificates: Arc::default(),
        })
    }

    /// The machine at the other end of a connection that is for certificates; none while the node has no config.
    pub(super) fn worker(&self, address: SocketAddr) -> Option<Caller> {
        (self.mode == Mode::Normal).then(|| Caller {
            roles: Vec::new(),
            peer: Peer::Worker(address),
            certificates: Arc::default(),
        })
    }

    /// Whether this caller would be accepted now.
    pub(super) fn still_lets_in(&self, caller: &Caller) -> bool {
        match caller.peer {
            Peer::Network(_) => self.lets_in(&caller.certificates),
            Peer::Pods | Peer::Worker(_) => self.mode == Mode::Normal,
        }
    }

    /// Whether a caller with these certificates, its own first, would be accepted now.
    fn lets_in(&self, chain: &[CertificateDer<'static>]) -> bool {
        let Some(verifier) = &self.verifier else {
            return true;
        };
        tls::is_clients(verifier.as_ref(), chain)
    }

    /// How callers are authenticated.
    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// The way to other nodes; none where this node may not pass calls on.
    pub(super) fn peers(&self) -> Option<&Arc<Peers>> {
        self.peers.as_ref()
    }

    /// Whether a name that a caller gave means this node. An address of IPv6 can be written in many ways.
    pub(super) fn is_this_node(&self, name: &str) -> bool {
        let is_known = |name: &str| self.names.iter().any(|own| own.eq_ignore_ascii_case(name));
        let address = name.parse::<IpAddr>().ok();
        let address = address.map(|address| address.to_canonical().to_string());
        is_known(name) || address.is_some_and(|address| is_known(&address))
    }

    /// Whether a connection to this address reaches this node.
    pub(super) fn is_own_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_loopback() || self.is_this_node(&address.to_string())
    }

    /// Whether this node's certificate is valid for the name that a caller uses for it, as another node would check it.
    pub(super) fn is_certified_for(&self, name: &Other) -> bool {
        let certificate = ParsedCertificate::try_from(&self.certificate);
        certificate.is_ok_and(|own| verify_server_name(&own, &name.server_name()).is_ok())
    }
}

/// Negotiates HTTP/2, and keeps no sessions: every command is a new connection and no client resumes.
fn without_sessions(config: &mut ServerConfig) {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use instar_pki::{CertificateAuthority, SubjectName};
    use std::time::{Duration, SystemTime};

    #[test]
    fn only_clients_of_accepted_authorities_are_let_in() {
        let (now, lifetime) = (SystemTime::now(), Duration::from_secs(3600));
        let [one, other] = [(); 2].map(|()| CertificateAuthority::generate(now).unwrap());
        let der = |authority: &CertificateAuthority| {
            instar_pki::certificate_from_pem(&authority.certificate_pem()).unwrap()
        };
        let server = one.issue_server(&["node".into()], now, lifetime).unwrap();
        let accepting = |mode, accepted: &[Vec<u8>]| {
            let (certificate, key) = (server.der(), server.key_der());
            let identity = Identity::new(mode, certificate, key, accepted, Vec::new());
            Credentials::new(&identity).unwrap()
        };
        let client = |authority: &CertificateAuthority, from| {
            let issued = authority.issue_client(&[Role::Reader], from, lifetime);
            vec![CertificateDer::from(issued.unwrap().der().to_vec())]
        };
        let long_ago = now - Duration::from_secs(48 * 3600);
        let both = accepting(Mode::Normal, &[der(&one), der(&other)]);
        assert!(both.lets_in(&client(&one, now)) && both.lets_in(&client(&other, now)));
        let first = accepting(Mode::Normal, &[der(&one)]);
        assert!(first.lets_in(&client(&one, now)));
        // The accepted authority's own certificate, which is not a client's.
        let for_servers = vec![CertificateDer::from(server.der().to_vec())];
        for stranger in [
            client(&other, now),
            client(&one, long_ago),
            for_servers,
            Vec::new(),
        ] {
            assert!(!first.lets_in(&stranger));
            assert!(accepting(Mode::Maintenance, &[]).lets_in(&stranger));
        }
    }

    #[test]
    fn what_the_certificate_says_is_what_the_node_is_called() {
        let node = credentials(&["10.0.0.1", "node-1", "*.example.org"], false);
        for name in ["10.0.0.1", "Node-1", "node-1.example.org"] {
            assert!(
                node.is_certified_for(&Other::parse(name).unwrap()),
                "{name}"
            );
        }
        for name in ["10.0.0.2", "node-2", "example.org", "127.0.0.1"] {
            assert!(
                !node.is_certified_for(&Other::parse(name).unwrap()),
                "{name}"
            );
        }
        for (address, own) in [
            ("10.0.0.1", true),
            ("::ffff:10.0.0.1", true),
            ("127.0.1.1", true),
            ("10.0.0.2", false),
        ] {
            assert_eq!(
                node.is_own_address(address.parse().unwrap()),
                own,
                "{address}"
            );
        }
    }

    #[test]
    fn a_node_knows_its_address_however_it_is_written() {
        let node = credentials(&["fd00::5", "10.0.0.1", "node-1"], false);
        for name in ["FD00:0:0::0005", "::ffff:10.0.0.1", "NODE-1"] {
            assert!(node.is_this_node(name), "{name}");
        }
        assert!(!node.is_this_node("fd00::6") && !node.is_this_node("010.0.0.1"));
    }

    /// The credentials of a node with these names.
    pub(crate) fn credentials(names: &[&str], passes_on: bool) -> Credentials {
        let (now, lifetime) = (SystemTime::now(), Duration::from_secs(3600));
        let authority = CertificateAuthority::generate(now).unwrap();
        let subjects: Vec<SubjectName> = names.iter().map(|name| (*name).into()).collect();
        let server = authority.issue_server(&subjects, now, lifetime).unwrap();
        let accepted = instar_pki::certificate_from_pem(&authority.certificate_pem()).unwrap();
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        let identity = Identity::new(
            Mode::Normal,
            server.der(),
            server.key_der(),
            &[accepted],
            names,
        );
        let client = authority
            .issue_client(&[Role::Impersonator], now, lifetime)
            .unwrap();
        let identity = match passes_on {
            true => identity.passing_on(client.der(), client.key_der()),
            false => identity,
        };
        Credentials::new(&identity).unwrap()
    }
}
