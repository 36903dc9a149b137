//! The TLS of the API, property by property, as the clients of this interface were found to need it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use instar_api::machine::VersionResponse;
use instar_pki::certificates_from_pem;
use instar_tests::{
    Calls, End, Identity, ImageUnderTest, Instarctl, MachineConfig, Node, Outcome, Scratch, Test,
    TlsClient, roots, tests,
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
    ProtocolVersion,
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
    without_a_config_the_fingerprint_is_what_counts(&node, &scratch).await?;
    bring(&node, &scratch, &config).await?;
    node.wait_for_api(PATIENCE).await?;

    let usual = TlsClient::of(node.identity());
    versions(&node, &usual).await?;
    protocols(&node, &usual).await?;
    groups_and_suites(&node, &usual).await?;
    sessions(&node, &usual).await?;
    the_nodes_certificate(&node, &usual).await?;
    the_clients_certificate(&node, &usual).await?;
    authority_with_an_ecdsa_key(&node, &usual).await
}

/// `instarctl --insecure` shows no certificate, takes whichever the node shows, and can be told its fingerprint.
async fn without_a_config_the_fingerprint_is_what_counts(
    node: &Node,
    scratch: &Scratch,
) -> Outcome {
    node.wait_for_line("machined: the API answers on port", PATIENCE)?;
    // Whoever comes before it has an address waits for QEMU to ask it again.
    let lease = node.vm().wait_for_line("machined: DHCP lease", PATIENCE)?;
    let certified = "machined: API certificate for";
    node.vm()
        .wait_for_line_after(lease.end, certified, PATIENCE)?;
    let client = Instarctl::of(node, scratch)?;
    let address = node.endpoint()?;
    let version = ["version", "--insecure", "-n", &address];
    let said = client.run(&version).await?;
    ensure!(said.code == Some(0), "without a pin: {said:?}");

    let pin = node.fingerprint_on_console()?;
    let digest = BASE64_STANDARD.decode(&pin);
    ensure!(
        digest.is_ok_and(|digest| digest.len() == 32),
        "{pin} is no digest"
    );
    let other = BASE64_STANDARD.encode([0; 32]);
    let pinned = async |pins: &[&str]| {
        let pins = pins.iter().flat_map(|pin| ["--cert-fingerprint", pin]);
        let words: Vec<&str> = version.into_iter().chain(pins).collect();
        client.run(&words).await
    };
    for pins in [&[pin.as_str()][..], &[&other, &pin]] {
        let said = pinned(pins).await?;
        ensure!(said.code == Some(0), "{pins:?}: {said:?}");
    }
    let said = pinned(&[&other]).await?;
    ensure!(
        said.code == Some(NOT_AUTHORIZED) && said.complaint.contains("another key"),
        "another pin: {said:?}"
    );
    println!("--insecure: passes, with the pin {pin} too; another: {said:?}");
    Ok(())
}

/// Ends the time without a config.
async fn bring(node: &Node, scratch: &Scratch, config: &MachineConfig) -> Outcome {
    let file = scratch.write("config.yaml", config.to_yaml())?;
    let (file, address) = (file.display().to_string(), node.endpoint()?);
    let apply = ["apply-config", "--insecure", "-n", &address, "-f", &file];
    let said = Instarctl::of(node, scratch)?.run(&apply).await?;
    ensure!(said.code == Some(0), "{said:?}");
    Ok(())
}

async fn versions(node: &Node, usual: &TlsClient) -> Outcome {
    let agreed = works(node, "TLS 1.2 alone", &usual.in_version(&TLS12)).await?;
    ensure!(agreed.version == ProtocolVersion::TLSv1_2, "{agreed:?}");
    let both = TlsClient {
        versions: vec![&TLS12, &TLS13],
        ..usual.clone()
    };
    let agreed = works(node, "TLS 1.2 and 1.3", &both).await?;
    ensure!(agreed.version == ProtocolVersion::TLSv1_3, "{agreed:?}");

    // A client that is held to 1.1 but speaks as one of 1.2, and one that knows nothing later.
    let alert = alert_to(node, &hello_of_tls11(true)).await?;
    println!("TLS 1.1 by a later client: refused by {alert:?}");
    ensure!(alert == AlertDescription::ProtocolVersion, "{alert:?}");
    let alert = alert_to(node, &hello_of_tls11(false)).await?;
    println!("TLS 1.1: refused by {alert:?}");
    Ok(())
}

/// What is spoken inside, and how the node is called on the way there.
async fn protocols(node: &Node, usual: &TlsClient) -> Outcome {
    ensure!(usual.protocols == ["h2"], "{:?}", usual.protocols);
    let agreed = works(node, "ALPN h2, and no SNI for an address", usual).await?;
    ensure!(agreed.protocol.as_deref() == Some("h2"), "{agreed:?}");
    let silent = TlsClient {
        protocols: Vec::new(),
        ..usual.clone()
    };
    let agreed = works(node, "no ALPN", &silent).await?;
    ensure!(agreed.protocol.is_none(), "{agreed:?}");
    let other = TlsClient {
        protocols: vec!["http/1.1"],
        ..usual.clone()
    };
    let end = refused(node, "ALPN http/1.1", &other).await?;
    let wanted = End::Alert(AlertDescription::NoApplicationProtocol);
    ensure!(end == wanted, "{end}");
    let by_name = TlsClient {
        name: HOSTNAME.to_owned(),
        ..usual.clone()
    };
    works(node, "SNI with the node's name", &by_name).await?;
    Ok(())
}

async fn groups_and_suites(node: &Node, usual: &TlsClient) -> Outcome {
    let x25519: &dyn SupportedKxGroup = kx_group::X25519;
    let p256: &dyn SupportedKxGroup = kx_group::SECP256R1;
    for (what, groups, wanted) in [
        (
            "X25519MLKEM768 first",
            vec![&Hybrid, x25519, p256],
            NamedGroup::X25519,
        ),
        ("X25519 alone", vec![x25519], NamedGroup::X25519),
        ("P-256 alone", vec![p256], NamedGroup::secp256r1),
    ] {
        let client = TlsClient {
            groups,
            ..usual.clone()
        };
        let agreed = works(node, what, &client).await?;
        // At the first attempt: the share that came with the hello was one that the node takes.
        ensure!(
            agreed.group == wanted && agreed.handshake == HandshakeKind::Full,
            "{what}: {agreed:?}"
        );
    }

    let aes128 = TlsClient {
        suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..usual.in_version(&TLS13)
    };
    let aes128_first = TlsClient {
        suites: vec![
            cipher_suite::TLS13_AES_128_GCM_SHA256,
            cipher_suite::TLS13_AES_256_GCM_SHA384,
            cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ],
        ..aes128.clone()
    };
    for (what, client) in [
        ("AES-128-GCM alone", aes128),
        ("AES-128-GCM first", aes128_first),
    ] {
        let agreed = works(node, what, &client).await?;
        let wanted = CipherSuite::TLS13_AES_128_GCM_SHA256;
        ensure!(agreed.suite == wanted, "{what}: {agreed:?}");
    }
    let older = TlsClient {
        suites: vec![cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256],
        ..usual.in_version(&TLS12)
    };
    works(node, "AES-128-GCM of TLS 1.2", &older).await?;
    Ok(())
}

/// A client that would resume a session has none to resume. All the others here take no tickets at all.
async fn sessions(node: &Node, usual: &TlsClient) -> Outcome {
    for version in [&TLS13, &TLS12] {
        let client = usual.in_version(version);
        let mut config = client.config()?;
        config.resumption = Resumption::in_memory_sessions(8);
        let config = Arc::new(config);
        for _ in 0..2 {
            let stream = client
                .connect_by(config.clone(), &node.endpoint()?)
                .await
                .context("a client that takes tickets")?;
            let what = "a client that takes tickets";
            let agreed = answers(what, stream).await?;
            ensure!(agreed.handshake == HandshakeKind::Full, "{agreed:?}");
        }
    }
    Ok(())
}

/// What the node shows satisfies clients that refuse what does not.
async fn the_nodes_certificate(node: &Node, usual: &TlsClient) -> Outcome {
    // Names and addresses come within moments of each other.
    let leaf = node
        .wait_until("the certificate has all names", PATIENCE, async || {
            let leaf = works(node, "whichever certificate", usual).await?.leaf;
            let clock = SystemTime::now();
            for name in [HOSTNAME, ADDRESS] {
                believed(&leaf, usual, name, clock).with_context(|| name.to_owned())?;
            }
            Ok(leaf)
        })
        .await?;
    let (_, certificate) = parse_x509_certificate(&leaf)?;
    let clock = node.clock().await?;

    for name in ["127.0.0.1", ADDRESS, HOSTNAME] {
        believed(&leaf, usual, name, clock).with_context(|| name.to_owned())?;
    }
    let common_name = certificate.subject().iter_common_name().next();
    let common_name = common_name.context("no CN")?.as_str()?;
    // A name in the CN alone is none.
    for name in ["127.0.0.2", "10.0.2.16", "10.0.2.2", "other", common_name] {
        let judged = believed(&leaf, usual, name, clock);
        println!("as {name}: {judged:?}");
        ensure!(
            matches!(
                judged,
                Err(InvalidCertificate(Bad::NotValidForNameContext { .. }))
            ),
            "as {name}: {judged:?}"
        );
    }
    valid_for_a_day(&certificate, clock)?;
    let (from, until) = validity(&certificate)?;
    let (early, late) = (from - SECOND, until + SECOND);
    let [early, late] = [early, late].map(|at| believed(&leaf, usual, ADDRESS, at));
    ensure!(
        matches!(
            early,
            Err(InvalidCertificate(Bad::NotValidYetContext { .. }))
        ) && matches!(late, Err(InvalidCertificate(Bad::ExpiredContext { .. }))),
        "before its time: {early:?}, after it: {late:?}"
    );

    let purposes = certificate.extended_key_usage()?.context("no EKU")?.value;
    ensure!(
        purposes.server_auth && !purposes.client_auth && !purposes.any,
        "{purposes:?}"
    );
    signs_and_does_nothing_else(&certificate)?;
    let kind = &certificate.public_key().algorithm.algorithm;
    ensure!(*kind == OID_KEY_TYPE_EC_PUBLIC_KEY, "a key of kind {kind}");
    println!("the node's certificate: {}", certificate.subject());
    Ok(())
}

fn valid_for_a_day(certificate: &X509Certificate<'_>, clock: SystemTime) -> Outcome {
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

fn validity(certificate: &X509Certificate<'_>) -> Result<(SystemTime, SystemTime)> {
    let validity = certificate.validity();
    let time =
        |seconds| Ok::<_, anyhow::Error>(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds)?));
    Ok((
        time(validity.not_before.timestamp())?,
        time(validity.not_after.timestamp())?,
    ))
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

/// Whoever comes with the usual certificate is let in, and nobody without one, as early as that can be said.
async fn the_clients_certificate(node: &Node, usual: &TlsClient) -> Outcome {
    let (pem, _) = usual.certificate.as_ref().context("no certificate")?;
    let chain = certificates_from_pem(pem)?;
    ensure!(chain.len() == 1, "a chain of {}", chain.len());
    let (_, certificate) = parse_x509_certificate(&chain[0])?;
    let kind = &certificate.public_key().algorithm.algorithm;
    ensure!(*kind == OID_SIG_ED25519, "a key of kind {kind}");
    let subject = certificate.subject().to_string();
    ensure!(subject == "O=os:admin", "{subject}");
    let purposes = certificate.extended_key_usage()?.context("no EKU")?.value;
    ensure!(
        purposes.client_auth && !purposes.server_auth && !purposes.any,
        "{purposes:?}"
    );
    signs_and_does_nothing_else(&certificate)?;
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
async fn authority_with_an_ecdsa_key(node: &Node, usual: &TlsClient) -> Outcome {
    ensure!(kind_of_authority(node.identity())? == OID_SIG_ED25519.to_id_string());
    let new = Identity::administrator_by_p256()?;
    let kind = kind_of_authority(&new)?;
    ensure!(kind == OID_KEY_TYPE_EC_PUBLIC_KEY.to_id_string(), "{kind}");
    ensure!(
        new.authority_key()
            .starts_with("-----BEGIN EC PRIVATE KEY-----\n")
    );
    let config = MachineConfig::new(&new).hostname(HOSTNAME);
    node.apply_as(node.identity(), config.to_yaml()).await?;
    let client = TlsClient::of(&new);
    node.wait_until("its authority has an ECDSA key", PATIENCE, async || {
        works(node, "an authority with an ECDSA key", &client).await
    })
    .await?;
    let stranger = TlsClient {
        authorities: client.authorities.clone(),
        ..usual.clone()
    };
    refused(node, "the authority of before", &stranger).await?;
    Ok(())
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
    let Agreed {
        version,
        suite,
        group,
        protocol,
        handshake,
        ..
    } = &agreed;
    println!("{what}: {version:?} {suite:?} {group:?} {protocol:?} {handshake:?}");
    let version = "/machine.MachineService/Version".to_owned();
    let calls = Calls::of(stream, &[version], &[]).await?;
    let Some(Ok(answer)) = calls.answers.first() else {
        bail!("{what}: {calls:?}");
    };
    let message = answer.body.get(5..).context("no message")?;
    let version = VersionResponse::decode(message)?;
    let version = version.messages[0].version.as_ref();
    ensure!(
        version.is_some_and(|version| version.tag == "v0.1.0"),
        "{what}: {version:?}"
    );
    Ok(agreed)
}

/// The client is turned away before anything was said inside; it says nothing itself.
async fn refused(node: &Node, what: &str, client: &TlsClient) -> Result<End> {
    let ended = match client.connect(&node.endpoint()?).await {
        Err(error) => Err(error),
        Ok(mut stream) => {
            let mut said = Vec::new();
            let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await;
            let read = read.with_context(|| format!("{what} stays"))?;
            ensure!(said.is_empty(), "{what} is told {said:?}");
            read
        }
    };
    let end = match ended {
        Ok(_) => End::Leave,
        Err(error) => End::of(&error).with_context(|| format!("{what}: {error}"))?,
    };
    println!("{what}: {end}");
    Ok(end)
}

/// The first words of a client that knows nothing later than TLS 1.1 (RFC 4346, 7.4.1.2); with the signature algorithms, without
/// which a later version cannot be spoken, or without.
fn hello_of_tls11(signature_algorithms: bool) -> Vec<u8> {
    const VERSION: [u8; 2] = [3, 2];
    let groups = [0, 0x0a, 0, 6, 0, 4, 0, 0x1d, 0, 0x17];
    let point_formats = [0, 0x0b, 0, 2, 1, 0];
    // ECDSA and RSA with SHA-256.
    let signatures = [0, 0x0d, 0, 6, 0, 4, 4, 3, 4, 1];
    let mut extensions = [&groups[..], &point_formats].concat();
    if signature_algorithms {
        extensions.extend(signatures);
    }
    let random = [0x5a; 32];
    // ECDHE with ECDSA and with RSA, both with AES-128-CBC.
    let suites = [0, 4, 0xc0, 0x09, 0xc0, 0x13];
    let (no_session, no_compression) = ([0], [1, 0]);
    let body = [
        &VERSION[..],
        &random,
        &no_session,
        &suites,
        &no_compression,
        &length(extensions.len()),
        &extensions,
    ]
    .concat();
    let message = [&[1, 0][..], &length(body.len()), &body].concat();
    [&[0x16, 3, 1][..], &length(message.len()), &message].concat()
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
