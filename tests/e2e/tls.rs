//! The TLS of the API, property by property, as the clients of this interface were found to need it.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use instar_api::machine::VersionResponse;
use instar_pki::certificates_from_pem;
use instar_tests::{
    Calls, End, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome, Said, Scratch,
    Test, TlsClient, chapters, roots, tests,
};
use prost::Message as _;
use rustls::Error::InvalidCertificate;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::ring::{cipher_suite, default_provider, kx_group};
use rustls::crypto::{ActiveKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    AlertDescription, CertificateError as Bad, CipherSuite, HandshakeKind, NamedGroup,
    ProtocolVersion, SupportedCipherSuite,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use x509_parser::oid_registry::{OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ED25519};
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::X509Certificate;

use crate::PATIENCE;

/// The guest's address in QEMU's user network.
const ADDRESS: &str = "10.0.2.15";
const HOSTNAME: &str = "lamp";
/// `instarctl`'s exit code.
const NOT_AUTHORIZED: i32 = 4;
const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// A certificate counts from a little before it is made, for clients whose clock is behind.
const TOLERANCE: Duration = Duration::from_secs(600);

pub(crate) fn tests() -> Vec<Test> {
    tests![tls_is_what_clients_of_every_kind_need]
}

async fn tls_is_what_clients_of_every_kind_need(scratch: Scratch) -> Outcome {
    let identity = Identity::administrator()?;
    let config = MachineConfig::new(&identity).hostname(HOSTNAME);
    let node = Node::plan(&scratch, &ImageUnderTest::first()?)
        .without_config(identity)
        .start()?;
    let usual = TlsClient::of(node.identity());
    chapters![
        without_a_config_the_fingerprint_is_what_counts(&node, &scratch),
        a_config_is_brought(&node, &scratch, &config),
        what_clients_offer_is_agreed_on(&node, &usual),
        certificates_are_as_clients_want_them(&node, &usual),
        an_authority_may_have_an_ecdsa_key(&node, &usual),
    ]
    .await
}

async fn what_clients_offer_is_agreed_on(node: &Node, usual: &TlsClient) -> Outcome {
    chapters![
        later_versions_than_1_1_are_spoken(node, usual),
        tls_1_1_is_refused(node),
        http2_is_spoken_and_nothing_else(node, usual),
        the_node_may_be_called_by_its_name(node, usual),
        key_exchanges_need_no_second_attempt(node, usual),
        suites_with_aes_128_are_spoken(node, usual),
        no_session_is_resumed(node, usual),
    ]
    .await
}

async fn certificates_are_as_clients_want_them(node: &Node, usual: &TlsClient) -> Outcome {
    chapters![
        the_nodes_certificate_satisfies_strict_clients(node, usual),
        the_usual_client_has_a_certificate_of_its_kind(usual),
        whoever_has_a_certificate_is_let_in_and_nobody_else(node, usual),
    ]
    .await
}

/// `instarctl --insecure` shows no certificate, takes whichever the node shows, and can be told its fingerprint.
async fn without_a_config_the_fingerprint_is_what_counts(
    node: &Node,
    scratch: &Scratch,
) -> Outcome {
    until_it_has_an_address_and_a_certificate(node)?;
    let stranger = Stranger {
        instarctl: Instarctl::of(node, scratch)?,
        address: node.endpoint()?,
    };
    let pin = node.fingerprint_on_console()?;
    chapters![
        the_fingerprint_is_a_digest(&pin),
        the_right_pin_or_none_is_answered(&stranger, &pin),
        another_pin_is_an_error(&stranger),
    ]
    .await
}

/// The digest of no certificate.
fn other_pin() -> String {
    BASE64_STANDARD.encode([0; 32])
}

fn until_it_has_an_address_and_a_certificate(node: &Node) -> Outcome {
    node.wait_for_line("machined: the API answers on port", PATIENCE)?;
    // Whoever comes before it has an address waits for QEMU to ask it again.
    let lease = node.vm().wait_for_line("machined: DHCP lease", PATIENCE)?;
    let certified = "machined: API certificate for";
    node.vm()
        .wait_for_line_after(lease.end, certified, PATIENCE)?;
    Ok(())
}

/// Somebody without a certificate.
struct Stranger {
    instarctl: Instarctl,
    address: String,
}

impl Stranger {
    async fn asks(&self, pins: &[&str]) -> Result<Said> {
        let version = ["version", "--insecure", "-n", &self.address];
        let pins = pins.iter().flat_map(|pin| ["--cert-fingerprint", pin]);
        let words: Vec<&str> = version.into_iter().chain(pins).collect();
        self.instarctl.run(&words).await
    }
}

async fn the_fingerprint_is_a_digest(pin: &str) -> Outcome {
    let digest = BASE64_STANDARD.decode(pin);
    let is_digest = digest.is_ok_and(|digest| digest.len() == 32);
    ensure!(is_digest, "{pin} is no digest");
    Ok(())
}

async fn the_right_pin_or_none_is_answered(stranger: &Stranger, pin: &str) -> Outcome {
    for pins in [&[][..], &[pin], &[&other_pin(), pin]] {
        let said = stranger.asks(pins).await?;
        ensure!(said.code == Some(0), "with the pins {pins:?}: {said:?}");
    }
    println!("--insecure: passes, with the pin {pin} too");
    Ok(())
}

async fn another_pin_is_an_error(stranger: &Stranger) -> Outcome {
    let said = stranger.asks(&[&other_pin()]).await?;
    ensure!(said.code == Some(NOT_AUTHORIZED), "{said:?}");
    ensure!(said.complaint.contains("another key"), "{said:?}");
    println!("--insecure, with another pin: {said:?}");
    Ok(())
}

/// Ends the time without a config.
async fn a_config_is_brought(node: &Node, scratch: &Scratch, config: &MachineConfig) -> Outcome {
    let file = scratch.write("config.yaml", config.to_yaml())?;
    let (file, address) = (file.display().to_string(), node.endpoint()?);
    let apply = ["apply-config", "--insecure", "-n", &address, "-f", &file];
    let said = Instarctl::of(node, scratch)?.run(&apply).await?;
    ensure!(said.code == Some(0), "{said:?}");
    node.wait_for_api(PATIENCE).await?;
    Ok(())
}

async fn later_versions_than_1_1_are_spoken(node: &Node, usual: &TlsClient) -> Outcome {
    let agreed = works(node, "TLS 1.2 alone", &usual.in_version(&TLS12)).await?;
    ensure!(agreed.version == ProtocolVersion::TLSv1_2, "{agreed:?}");
    let both = TlsClient {
        versions: vec![&TLS12, &TLS13],
        ..usual.clone()
    };
    let agreed = works(node, "TLS 1.2 and 1.3", &both).await?;
    ensure!(agreed.version == ProtocolVersion::TLSv1_3, "{agreed:?}");
    Ok(())
}

/// To a client that is held to it but speaks as one of 1.2, and to one that knows nothing later.
async fn tls_1_1_is_refused(node: &Node) -> Outcome {
    let alert = alert_to(node, &hello_of_tls11(true)).await?;
    println!("TLS 1.1 by a later client: refused by {alert:?}");
    ensure!(alert == AlertDescription::ProtocolVersion, "{alert:?}");
    let alert = alert_to(node, &hello_of_tls11(false)).await?;
    println!("TLS 1.1: refused by {alert:?}");
    Ok(())
}

/// Whether the client says what it wants to speak inside (ALPN) or not.
async fn http2_is_spoken_and_nothing_else(node: &Node, usual: &TlsClient) -> Outcome {
    ensure!(usual.protocols == ["h2"], "{:?}", usual.protocols);
    let agreed = works(node, "ALPN h2, and no SNI for an address", usual).await?;
    ensure!(agreed.protocol.as_deref() == Some("h2"), "{agreed:?}");
    let silent = speaking(Vec::new(), usual);
    let agreed = works(node, "no ALPN", &silent).await?;
    ensure!(agreed.protocol.is_none(), "{agreed:?}");
    let other = speaking(vec!["http/1.1"], usual);
    let end = refused(node, "ALPN http/1.1", &other).await?;
    let wanted = End::Alert(AlertDescription::NoApplicationProtocol);
    ensure!(end == wanted, "{end}");
    Ok(())
}

fn speaking(protocols: Vec<&'static str>, usual: &TlsClient) -> TlsClient {
    TlsClient {
        protocols,
        ..usual.clone()
    }
}

async fn the_node_may_be_called_by_its_name(node: &Node, usual: &TlsClient) -> Outcome {
    let by_name = TlsClient {
        name: HOSTNAME.to_owned(),
        ..usual.clone()
    };
    let agreed = works(node, "SNI with the node's name", &by_name).await;
    agreed.map(drop)
}

/// The share that comes with the hello is one that the node takes.
async fn key_exchanges_need_no_second_attempt(node: &Node, usual: &TlsClient) -> Outcome {
    let x25519: &dyn SupportedKxGroup = kx_group::X25519;
    let p256: &dyn SupportedKxGroup = kx_group::SECP256R1;
    let hybrid_first = vec![&Hybrid, x25519, p256];
    for (what, groups, wanted) in [
        ("X25519MLKEM768 first", hybrid_first, NamedGroup::X25519),
        ("X25519 alone", vec![x25519], NamedGroup::X25519),
        ("P-256 alone", vec![p256], NamedGroup::secp256r1),
    ] {
        let agreed = works(node, what, &by_groups(groups, usual)).await?;
        ensure!(agreed.group == wanted, "{what}: {agreed:?}");
        let is_at_once = agreed.handshake == HandshakeKind::Full;
        ensure!(is_at_once, "{what}: {agreed:?}");
    }
    Ok(())
}

fn by_groups(groups: Vec<&'static dyn SupportedKxGroup>, usual: &TlsClient) -> TlsClient {
    TlsClient {
        groups,
        ..usual.clone()
    }
}

/// AES-128-GCM alone, AES-128-GCM first, and that of TLS 1.2.
async fn suites_with_aes_128_are_spoken(node: &Node, usual: &TlsClient) -> Outcome {
    let aes128 = cipher_suite::TLS13_AES_128_GCM_SHA256;
    let aes256 = cipher_suite::TLS13_AES_256_GCM_SHA384;
    let chacha20 = cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
    let older = cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256;
    for (version, suites) in [
        (&TLS13, vec![aes128]),
        (&TLS13, vec![aes128, aes256, chacha20]),
        (&TLS12, vec![older]),
    ] {
        let what = format!("{suites:?}");
        let first = suites[0].suite();
        let agreed = works(node, &what, &by_suites(suites, &usual.in_version(version))).await?;
        ensure!(agreed.suite == first, "{what}: {agreed:?}");
    }
    Ok(())
}

fn by_suites(suites: Vec<SupportedCipherSuite>, usual: &TlsClient) -> TlsClient {
    TlsClient {
        suites,
        ..usual.clone()
    }
}

/// A client that would resume a session has none to resume. All the others here take no tickets at all.
async fn no_session_is_resumed(node: &Node, usual: &TlsClient) -> Outcome {
    let what = "a client that takes tickets";
    for version in [&TLS13, &TLS12] {
        let client = usual.in_version(version);
        let mut config = client.config()?;
        config.resumption = Resumption::in_memory_sessions(8);
        let config = Arc::new(config);
        for _ in 0..2 {
            let stream = client.connect_by(config.clone(), &node.endpoint()?).await;
            let agreed = answers(what, stream.context(what)?).await?;
            ensure!(agreed.handshake == HandshakeKind::Full, "{agreed:?}");
        }
    }
    Ok(())
}

/// What the node shows satisfies clients that refuse what does not.
async fn the_nodes_certificate_satisfies_strict_clients(node: &Node, usual: &TlsClient) -> Outcome {
    let leaf = certificate_with_all_names(node, usual).await?;
    let (_, certificate) = parse_x509_certificate(&leaf)?;
    let clock = node.clock().await?;
    println!("the node's certificate: {}", certificate.subject());
    chapters![
        it_is_believed_under_each_name_of_the_node(&leaf, usual, clock),
        it_is_believed_under_no_other_name(&leaf, usual, clock),
        it_is_valid_for_a_day(&certificate, clock),
        it_is_believed_in_its_time_alone(&leaf, usual),
        it_is_for_servers_alone(&certificate),
        its_key_is_an_ecdsa_key(&certificate),
    ]
    .await
}

/// Names and addresses come within moments of each other.
async fn certificate_with_all_names(
    node: &Node,
    usual: &TlsClient,
) -> Result<CertificateDer<'static>> {
    node.wait_until("the certificate has all names", PATIENCE, async || {
        let leaf = works(node, "whichever certificate", usual).await?.leaf;
        let clock = SystemTime::now();
        for name in [HOSTNAME, ADDRESS] {
            believed(&leaf, usual, name, clock).with_context(|| name.to_owned())?;
        }
        Ok(leaf)
    })
    .await
}

async fn it_is_believed_under_each_name_of_the_node(
    leaf: &CertificateDer<'_>,
    usual: &TlsClient,
    clock: SystemTime,
) -> Outcome {
    for name in ["127.0.0.1", ADDRESS, HOSTNAME] {
        believed(leaf, usual, name, clock).with_context(|| name.to_owned())?;
    }
    Ok(())
}

/// A name in the CN alone is none.
async fn it_is_believed_under_no_other_name(
    leaf: &CertificateDer<'_>,
    usual: &TlsClient,
    clock: SystemTime,
) -> Outcome {
    let (_, certificate) = parse_x509_certificate(leaf)?;
    let common_name = certificate.subject().iter_common_name().next();
    let common_name = common_name.context("no CN")?.as_str()?;
    for name in ["127.0.0.2", "10.0.2.16", "10.0.2.2", "other", common_name] {
        let judged = believed(leaf, usual, name, clock);
        println!("as {name}: {judged:?}");
        let is_other = matches!(
            judged,
            Err(InvalidCertificate(Bad::NotValidForNameContext { .. }))
        );
        ensure!(is_other, "as {name}: {judged:?}");
    }
    Ok(())
}

async fn it_is_valid_for_a_day(certificate: &X509Certificate<'_>, clock: SystemTime) -> Outcome {
    let (from, until) = validity(certificate)?;
    ensure!(
        from <= clock && clock < until,
        "{from:?} to {until:?}, and the node's clock says {clock:?}"
    );
    let lifetime = until.duration_since(from)?;
    println!("valid for {lifetime:?}");
    ensure!(lifetime == DAY + TOLERANCE, "{lifetime:?}");
    Ok(())
}

async fn it_is_believed_in_its_time_alone(leaf: &CertificateDer<'_>, usual: &TlsClient) -> Outcome {
    let (_, certificate) = parse_x509_certificate(leaf)?;
    let (from, until) = validity(&certificate)?;
    let early = believed(leaf, usual, ADDRESS, from - SECOND);
    ensure!(
        matches!(
            early,
            Err(InvalidCertificate(Bad::NotValidYetContext { .. }))
        ),
        "before its time: {early:?}"
    );
    let late = believed(leaf, usual, ADDRESS, until + SECOND);
    let has_expired = matches!(late, Err(InvalidCertificate(Bad::ExpiredContext { .. })));
    ensure!(has_expired, "after its time: {late:?}");
    Ok(())
}

async fn it_is_for_servers_alone(certificate: &X509Certificate<'_>) -> Outcome {
    let purposes = certificate.extended_key_usage()?.context("no EKU")?.value;
    ensure!(purposes.server_auth, "{purposes:?}");
    ensure!(!purposes.client_auth && !purposes.any, "{purposes:?}");
    signs_and_does_nothing_else(certificate)
}

async fn its_key_is_an_ecdsa_key(certificate: &X509Certificate<'_>) -> Outcome {
    let kind = &certificate.public_key().algorithm.algorithm;
    ensure!(*kind == OID_KEY_TYPE_EC_PUBLIC_KEY, "a key of kind {kind}");
    Ok(())
}

fn validity(certificate: &X509Certificate<'_>) -> Result<(SystemTime, SystemTime)> {
    let validity = certificate.validity();
    let (from, until) = (validity.not_before, validity.not_after);
    Ok((time(from.timestamp())?, time(until.timestamp())?))
}

fn time(seconds: i64) -> Result<SystemTime> {
    Ok(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds)?))
}

fn signs_and_does_nothing_else(certificate: &X509Certificate<'_>) -> Outcome {
    let usage = certificate.key_usage()?.context("no KU")?.value;
    // One bit of nine.
    ensure!(
        usage.digital_signature() && usage.flags.count_ones() == 1,
        "{usage}"
    );
    Ok(())
}

/// What a client that believes the authorities of `client` makes of a server's certificate under a name at a time. As in Go, names are
/// those of the SANs.
fn believed(
    leaf: &CertificateDer<'_>,
    client: &TlsClient,
    name: &str,
    at: SystemTime,
) -> Result<(), rustls::Error> {
    let verifier = WebPkiServerVerifier::builder_with_provider(
        Arc::new(roots(&client.authorities).unwrap()),
        Arc::new(default_provider()),
    );
    let since = at.duration_since(UNIX_EPOCH).unwrap();
    let verified = verifier.build().unwrap().verify_server_cert(
        leaf,
        &[],
        &ServerName::try_from(name).unwrap(),
        &[],
        UnixTime::since_unix_epoch(since),
    );
    verified.map(drop)
}

async fn the_usual_client_has_a_certificate_of_its_kind(usual: &TlsClient) -> Outcome {
    let (pem, _) = usual.certificate.as_ref().context("no certificate")?;
    let chain = certificates_from_pem(pem)?;
    ensure!(chain.len() == 1, "a chain of {}", chain.len());
    let (_, certificate) = parse_x509_certificate(&chain[0])?;
    let kind = &certificate.public_key().algorithm.algorithm;
    ensure!(*kind == OID_SIG_ED25519, "a key of kind {kind}");
    let subject = certificate.subject().to_string();
    ensure!(subject == "O=os:admin", "{subject}");
    let purposes = certificate.extended_key_usage()?.context("no EKU")?.value;
    ensure!(purposes.client_auth, "{purposes:?}");
    ensure!(!purposes.server_auth && !purposes.any, "{purposes:?}");
    signs_and_does_nothing_else(&certificate)
}

/// As early as that can be said.
async fn whoever_has_a_certificate_is_let_in_and_nobody_else(
    node: &Node,
    usual: &TlsClient,
) -> Outcome {
    works(node, "the usual client's certificate", usual).await?;
    let nobody = usual.clone().without_certificate();
    for version in [&TLS13, &TLS12] {
        let client = nobody.in_version(version);
        let what = format!("no certificate, {:?}", version.version);
        let end = refused(node, &what, &client).await?;
        let wanted = End::Alert(AlertDescription::CertificateRequired);
        ensure!(end == wanted, "{end}");
    }
    Ok(())
}

/// An authority of the other usual kind takes the place of the first one.
async fn an_authority_may_have_an_ecdsa_key(node: &Node, usual: &TlsClient) -> Outcome {
    let kind = kind_of_authority(node.identity())?;
    ensure!(kind == OID_SIG_ED25519.to_id_string(), "{kind}");
    let new = administrator_by_ecdsa()?;
    let config = MachineConfig::new(&new).hostname(HOSTNAME);
    node.apply_as(node.identity(), config.to_yaml()).await?;
    let client = TlsClient::of(&new);
    let what = "an authority with an ECDSA key";
    node.wait_until(what, PATIENCE, || works(node, what, &client))
        .await?;
    let stranger = TlsClient {
        authorities: client.authorities.clone(),
        ..usual.clone()
    };
    let end = refused(node, "the authority of before", &stranger).await;
    end.map(drop)
}

fn administrator_by_ecdsa() -> Result<Identity> {
    let new = Identity::administrator_by_p256()?;
    let kind = kind_of_authority(&new)?;
    ensure!(kind == OID_KEY_TYPE_EC_PUBLIC_KEY.to_id_string(), "{kind}");
    let key = new.authority_key();
    ensure!(key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
    Ok(new)
}

fn kind_of_authority(identity: &Identity) -> Result<String> {
    let pem = identity.authority_certificate();
    let der = instar_pki::certificate_from_pem(&pem)?;
    let (_, certificate) = parse_x509_certificate(&der)?;
    Ok(certificate.public_key().algorithm.algorithm.to_id_string())
}

/// What a client and the node agreed on.
#[derive(Debug)]
struct Agreed {
    version: ProtocolVersion,
    suite: CipherSuite,
    group: NamedGroup,
    protocol: Option<String>,
    handshake: HandshakeKind,
    /// The node's certificate.
    leaf: CertificateDer<'static>,
}

impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, suite, group) = (self.version, self.suite, self.group);
        write!(f, "{version:?} {suite:?} {group:?} ")?;
        write!(f, "{:?} {:?}", self.protocol, self.handshake)
    }
}

impl Agreed {
    fn on(stream: &TlsStream<TcpStream>) -> Option<Self> {
        let (_, agreed) = stream.get_ref();
        let protocol = agreed.alpn_protocol();
        Some(Self {
            version: agreed.protocol_version()?,
            suite: agreed.negotiated_cipher_suite()?.suite(),
            group: agreed.negotiated_key_exchange_group()?.name(),
            protocol: protocol.map(|name| String::from_utf8_lossy(name).into_owned()),
            handshake: agreed.handshake_kind()?,
            leaf: agreed.peer_certificates()?.first()?.clone().into_owned(),
        })
    }
}

/// The client is let in and answered.
async fn works(node: &Node, what: &str, client: &TlsClient) -> Result<Agreed> {
    let stream = client.connect(&node.endpoint()?).await;
    answers(what, stream.with_context(|| what.to_owned())?).await
}

/// The other end of the connection is the node, and does what it is for.
async fn answers(what: &str, stream: TlsStream<TcpStream>) -> Result<Agreed> {
    let agreed = Agreed::on(&stream).context("nothing was agreed on")?;
    println!("{what}: {agreed}");
    let version = "/machine.MachineService/Version".to_owned();
    let calls = Calls::of(stream, &[version], &[]).await?;
    let Some(Ok(answer)) = calls.answers.first() else {
        bail!("{what}: {calls:?}");
    };
    let message = answer.body.get(5..).context("no message")?;
    let version = VersionResponse::decode(message)?;
    let version = version.messages[0].version.as_ref();
    let is_node = version.is_some_and(|version| version.tag == "v0.1.0");
    ensure!(is_node, "{what}: {version:?}");
    Ok(agreed)
}

/// The client is turned away before anything was said inside; it says nothing itself.
async fn refused(node: &Node, what: &str, client: &TlsClient) -> Result<End> {
    let ended = match client.connect(&node.endpoint()?).await {
        Err(error) => Err(error),
        Ok(stream) => hears_nothing(what, stream).await?,
    };
    let end = match ended {
        Ok(()) => End::Leave,
        Err(error) => End::of(&error).with_context(|| format!("{what}: {error}"))?,
    };
    println!("{what}: {end}");
    Ok(end)
}

/// How the stream ends.
async fn hears_nothing(what: &str, mut stream: TlsStream<TcpStream>) -> Result<io::Result<()>> {
    let mut said = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
    let read = read.with_context(|| format!("{what} stays"))?;
    ensure!(said.is_empty(), "{what} is told {said:?}");
    Ok(read.map(drop))
}

/// The first words of a client that knows nothing later than TLS 1.1 (RFC 4346, 7.4.1.2); with the signature algorithms, without
/// which a later version cannot be spoken, or without.
fn hello_of_tls11(signature_algorithms: bool) -> Vec<u8> {
    // ECDHE with ECDSA and with RSA, both with AES-128-CBC.
    let suites = [0, 4, 0xc0, 0x09, 0xc0, 0x13];
    let (version, random) = ([3, 2], [0x5a; 32]);
    let (no_session, no_compression) = ([0], [1, 0]);
    let mut body = [&version[..], &random, &no_session, &suites].concat();
    body.extend(no_compression);
    let extensions = extensions_of_tls11(signature_algorithms);
    body.extend(length(extensions.len()));
    body.extend(extensions);
    let message = [&[1, 0][..], &length(body.len()), &body].concat();
    [&[0x16, 3, 1][..], &length(message.len()), &message].concat()
}

fn extensions_of_tls11(signature_algorithms: bool) -> Vec<u8> {
    let groups = [0, 0x0a, 0, 6, 0, 4, 0, 0x1d, 0, 0x17];
    let point_formats = [0, 0x0b, 0, 2, 1, 0];
    // ECDSA and RSA with SHA-256.
    let signatures = [0, 0x0d, 0, 6, 0, 4, 4, 3, 4, 1];
    let mut extensions = [&groups[..], &point_formats].concat();
    if signature_algorithms {
        extensions.extend(signatures);
    }
    extensions
}

fn length(of: usize) -> [u8; 2] {
    u16::try_from(of).unwrap().to_be_bytes()
}

/// The node's only answer to these bytes: that it will not go on.
async fn alert_to(node: &Node, bytes: &[u8]) -> Result<AlertDescription> {
    let mut stream = TcpStream::connect(node.endpoint()?).await?;
    stream.write_all(bytes).await?;
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
    let _: io::Result<_> = read.context("the connection stays open")?;
    // A record of two bytes: fatal, and why.
    match answer[..] {
        [0x15, 3, _, 0, 2, 2, why] => Ok(AlertDescription::from(why)),
        _ => bail!("no alert but {answer:?}"),
    }
}

/// X25519MLKEM768 as clients offer it before anything else, with its share and that of X25519. They find no node that takes it, so what
/// would be of use only then is noise.
#[derive(Debug)]
struct Hybrid;

impl SupportedKxGroup for Hybrid {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, rustls::Error> {
        let classical = kx_group::X25519.start()?;
        let noise = [0x5a; 1184];
        Ok(Box::new(HybridShare {
            share: [&noise[..], classical.pub_key()].concat(),
            classical,
        }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

struct HybridShare {
    share: Vec<u8>,
    classical: Box<dyn ActiveKeyExchange>,
}

impl ActiveKeyExchange for HybridShare {
    fn complete(self: Box<Self>, _peer: &[u8]) -> Result<SharedSecret, rustls::Error> {
        let why = "the node takes X25519MLKEM768, which this client only offers";
        Err(rustls::Error::General(why.to_owned()))
    }

    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        Some((self.classical.group(), self.classical.pub_key()))
    }

    fn complete_hybrid_component(
        self: Box<Self>,
        peer: &[u8],
    ) -> Result<SharedSecret, rustls::Error> {
        self.classical.complete(peer)
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }
}
