//! The node's certificate and the client's.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use instar_pki::certificates_from_pem;
use instar_tests::{End, Node, Outcome, TlsClient, chapters, roots};
use rustls::Error::InvalidCertificate;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, CertificateError as Bad};
use x509_parser::oid_registry::{OID_KEY_TYPE_EC_PUBLIC_KEY, OID_SIG_ED25519};
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::X509Certificate;

use super::HOSTNAME;
use super::handshake::{refused, works};
use crate::PATIENCE;

/// The guest's address in QEMU's user network.
const ADDRESS: &str = "10.0.2.15";

const SECOND: Duration = Duration::from_secs(1);

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate is valid from hours before it is made, for clients whose clock is behind.
const TOLERANCE: Duration = Duration::from_secs(12 * 3600);

pub(super) async fn certificates_are_as_clients_want_them(
    node: &Node,
    usual: &TlsClient,
) -> Outcome {
    chapters![
        the_nodes_certificate_satisfies_strict_clients(node, usual),
        the_usual_client_has_a_certificate_of_its_kind(usual),
        whoever_has_a_certificate_is_let_in_and_nobody_else(node, usual),
    ]
    .await
}

/// The node's certificate satisfies strict clients.
async fn the_nodes_certificate_satisfies_strict_clients(node: &Node, usual: &TlsClient) -> Outcome {
    let leaf = certificate_with_all_names(node, usual).await?;
    let (_, certificate) = parse_x509_certificate(&leaf)?;
    let clock = node.clock().await?;
    println!("the node's certificate: {}", certificate.subject());
    chapters![
        the_certificate_is_believed_under_each_name_of_the_node(&leaf, usual, clock),
        the_certificate_is_believed_under_no_other_name(&leaf, usual, clock),
        the_certificate_is_valid_for_a_day(&certificate, clock),
        the_certificate_is_believed_in_its_time_alone(&leaf, usual),
        the_certificate_is_for_servers_alone(&certificate),
        the_certificates_key_is_an_ecdsa_key(&certificate),
    ]
    .await
}

/// The certificate gets its names and addresses within moments of each other.
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

async fn the_certificate_is_believed_under_each_name_of_the_node(
    leaf: &CertificateDer<'_>,
    usual: &TlsClient,
    clock: SystemTime,
) -> Outcome {
    for name in ["127.0.0.1", ADDRESS, HOSTNAME] {
        believed(leaf, usual, name, clock).with_context(|| name.to_owned())?;
    }
    Ok(())
}

/// A name in the CN alone does not count.
async fn the_certificate_is_believed_under_no_other_name(
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

async fn the_certificate_is_valid_for_a_day(
    certificate: &X509Certificate<'_>,
    clock: SystemTime,
) -> Outcome {
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

async fn the_certificate_is_believed_in_its_time_alone(
    leaf: &CertificateDer<'_>,
    usual: &TlsClient,
) -> Outcome {
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

async fn the_certificate_is_for_servers_alone(certificate: &X509Certificate<'_>) -> Outcome {
    let purposes = certificate.extended_key_usage()?.context("no EKU")?.value;
    ensure!(purposes.server_auth, "{purposes:?}");
    ensure!(!purposes.client_auth && !purposes.any, "{purposes:?}");
    signs_and_does_nothing_else(certificate)
}

async fn the_certificates_key_is_an_ecdsa_key(certificate: &X509Certificate<'_>) -> Outcome {
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
    // Exactly one of nine bits is set.
    ensure!(
        usage.digital_signature() && usage.flags.count_ones() == 1,
        "{usage}"
    );
    Ok(())
}

/// Verifies a server's certificate under one name at a time, as a client that trusts the authorities of `client`. As in
/// Go, only names of the SANs count.
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

/// Clients are refused as early as the protocol allows.
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
