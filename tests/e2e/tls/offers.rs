//! Clients' offers, and the node's choices.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use instar_tests::{End, Node, Outcome, TlsClient, chapters};
use rustls::client::Resumption;
use rustls::crypto::SupportedKxGroup;
use rustls::crypto::ring::{cipher_suite, kx_group};
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, HandshakeKind, NamedGroup, ProtocolVersion, SupportedCipherSuite};

use super::HOSTNAME;
use super::handshake::{answers, refused, works};
use super::hybrid::Hybrid;
use super::old_hello::{alert_to, hello_of_tls11};

pub(super) async fn what_clients_offer_is_agreed_on(node: &Node, usual: &TlsClient) -> Outcome {
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

/// Refused are a client that is limited to TLS 1.1 but sends a hello of 1.2, and one that knows nothing later.
async fn tls_1_1_is_refused(node: &Node) -> Outcome {
    let alert = alert_to(node, &hello_of_tls11(true)).await?;
    println!("TLS 1.1 by a later client: refused by {alert:?}");
    ensure!(alert == AlertDescription::ProtocolVersion, "{alert:?}");
    let alert = alert_to(node, &hello_of_tls11(false)).await?;
    println!("TLS 1.1: refused by {alert:?}");
    Ok(())
}

/// With and without ALPN in the client's hello.
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

/// The key share in the hello is one that the node takes.
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

/// Clients with AES-128-GCM alone, with AES-128-GCM first, and with that of TLS 1.2.
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

/// A client that would resume a session gets none to resume. The clients of the other tests take no tickets.
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
