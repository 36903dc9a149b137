//! Authorities of all kinds, and the certificates that they sign, read by an independent parser.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use instar_pki::{
    AuthorityError, CertificateAuthority, IssuedCertificate, KeyError, PeerError, PrivateKey, Role,
    SubjectName, certificates_from_pem, client_roles, private_key_from_pem, public_key_fingerprint,
    validity,
};
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::parse_x509_certificate;
use x509_parser::prelude::X509Certificate;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn now() -> SystemTime {
    // 2026-11-21T12:00:00Z
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_262_400)
}

macro_rules! data {
    ($name:literal) => {
        include_str!(concat!("data/", $name))
    };
}

fn parsed(identity: &IssuedCertificate) -> X509Certificate<'_> {
    let (rest, certificate) = parse_x509_certificate(identity.der()).unwrap();
    assert!(rest.is_empty());
    certificate
}

fn names(certificate: &X509Certificate<'_>) -> Vec<String> {
    certificate
        .subject_alternative_name()
        .unwrap()
        .map_or_else(Vec::new, |names| {
            names
                .value
                .general_names
                .iter()
                .map(|name| match name {
                    GeneralName::DNSName(name) => (*name).to_owned(),
                    GeneralName::IPAddress(bytes) => match bytes.len() {
                        4 => IpAddr::from(<[u8; 4]>::try_from(*bytes).unwrap()).to_string(),
                        _ => IpAddr::from(<[u8; 16]>::try_from(*bytes).unwrap()).to_string(),
                    },
                    other => panic!("unexpected name {other:?}"),
                })
                .collect()
        })
}

/// Other tools only read such a key if it names its curve; reading it back proves that it signs.
#[test]
fn new_authority_of_kubernetes_has_the_older_form_of_key() {
    let etcd = CertificateAuthority::generate_p256(&["etcd"], None, now()).unwrap();
    let (_, certificate) = parse_x509_certificate(etcd.certificate()).unwrap();
    assert_eq!(certificate.subject().to_string(), "O=etcd");
    assert!(certificate.is_ca());
    certificate.verify_signature(None).unwrap();
    let key = etcd.key_pem();
    assert!(key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"), "{key}");
    let read = CertificateAuthority::from_pem(&etcd.certificate_pem(), &key).unwrap();
    read.issue_client(&[Role::Admin], now(), DAY).unwrap();
    let front = CertificateAuthority::generate_p256(&[], Some("front-proxy"), now()).unwrap();
    let (_, certificate) = parse_x509_certificate(front.certificate()).unwrap();
    assert_eq!(certificate.subject().to_string(), "CN=front-proxy");
    assert!(PrivateKey::from_pem(&PrivateKey::generate_p256_sec1().unwrap().to_pem()).is_ok());
}

#[test]
fn new_authority_says_what_others_expect() {
    let authority = CertificateAuthority::generate(now()).unwrap();
    let (_, certificate) = parse_x509_certificate(authority.certificate()).unwrap();
    assert_eq!(certificate.subject().to_string(), "O=talos");
    assert_eq!(certificate.issuer(), certificate.subject());
    assert!(certificate.is_ca());
    let usage = certificate.key_usage().unwrap().unwrap().value;
    assert!(usage.key_cert_sign() && usage.digital_signature() && !usage.crl_sign());
    let extended = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.server_auth && extended.client_auth && !extended.any);
    assert!(certificate.extensions().iter().any(|extension| {
        matches!(extension.parsed_extension(), ParsedExtension::SubjectKeyIdentifier(id) if id.0.len() == 20)
    }));
    let days = (certificate.validity().not_after.timestamp()
        - certificate.validity().not_before.timestamp())
        / 86_400;
    assert_eq!(days, 3650);
    assert!(
        authority
            .key_pem()
            .starts_with("-----BEGIN ED25519 PRIVATE KEY-----\n")
    );
    certificate.verify_signature(None).unwrap();
}

#[test]
fn authority_comes_back_from_its_text() {
    let first = CertificateAuthority::generate(now()).unwrap();
    let again = CertificateAuthority::from_pem(&first.certificate_pem(), &first.key_pem()).unwrap();
    let identity = again.issue_client(&[Role::Reader], now(), DAY).unwrap();
    let (_, issuer) = parse_x509_certificate(first.certificate()).unwrap();
    parsed(&identity)
        .verify_signature(Some(issuer.public_key()))
        .unwrap();
}

#[test]
fn every_kind_of_authority_signs() {
    for (certificate, key) in [
        (data!("machine-ca-1.13.crt"), data!("machine-ca-1.13.key")),
        (data!("machine-ca-1.14.crt"), data!("machine-ca-1.14.key")),
        (data!("etcd-ca-1.14.crt"), data!("etcd-ca-1.14.key")),
        (data!("p384-ca.crt"), data!("p384-ca.key")),
        (data!("rsa-ca.crt"), data!("rsa-ca.key")),
        (data!("rsa-ca.crt"), data!("rsa-ca-pkcs1.key")),
    ] {
        let authority = CertificateAuthority::from_pem(certificate, key).unwrap();
        let identity = authority
            .issue_server(&["127.0.0.1".into()], now(), DAY)
            .unwrap();
        let (_, issuer) = parse_x509_certificate(authority.certificate()).unwrap();
        let leaf = parsed(&identity);
        leaf.verify_signature(Some(issuer.public_key())).unwrap();
        assert_eq!(leaf.issuer().as_raw(), issuer.subject().as_raw());
        // The key is written as it was read.
        assert_eq!(authority.key_pem(), key);
        assert_eq!(authority.certificate_pem(), certificate);
    }
}

#[test]
fn client_certificate_carries_its_roles_in_order() {
    let authority = CertificateAuthority::generate(now()).unwrap();
    let roles = [Role::Reader, Role::MetaWriter, Role::from("team:blue")];
    let identity = authority.issue_client(&roles, now(), DAY).unwrap();
    let certificate = parsed(&identity);
    let organizations: Vec<_> = certificate
        .subject()
        .iter_organization()
        .map(|value| value.as_str().unwrap())
        .collect();
    assert_eq!(organizations, ["os:reader", "os:meta:writer", "team:blue"]);
    assert_eq!(certificate.subject().iter_common_name().count(), 0);
    assert!(!certificate.is_ca());
    let usage = certificate.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && !usage.key_cert_sign());
    assert_eq!(client_roles(identity.der()).unwrap(), roles);
    assert_eq!(
        certificate.validity().not_after.timestamp(),
        1_795_262_400 + 86_400
    );
    assert_eq!(
        certificate.validity().not_before.timestamp(),
        1_795_262_400 - 12 * 3600
    );
}

/// A node makes its certificate by its own clock, and a client has one from another computer. Both are valid there as well.
#[test]
fn certificates_are_valid_by_clocks_that_are_hours_apart() {
    let authority = CertificateAuthority::generate(now()).unwrap();
    let (ahead, behind) = (3 * HOUR, 5 * HOUR);
    let of_node = authority.issue_server(&["node-1".into()], now() + ahead, DAY);
    let of_client = authority.issue_client(&[Role::Reader], now(), DAY);
    let of_late_node = authority.issue_server(&["node-2".into()], now() - behind, DAY);
    for (issued, by_the_other_clock) in [
        (of_node, now()),
        (of_client, now() - behind),
        (of_late_node, now()),
    ] {
        let (begin, end) = validity(issued.unwrap().der()).unwrap();
        assert!(begin <= by_the_other_clock && by_the_other_clock < end);
    }
    // A machine without a clock goes by when the authority was made.
    let (made, _) = validity(authority.certificate()).unwrap();
    assert_eq!(made, now() - Duration::from_secs(600));
}

#[test]
fn server_certificate_names_all_addresses() {
    let authority = CertificateAuthority::generate(now()).unwrap();
    let wanted: Vec<SubjectName> = ["127.0.0.1", "::1", "node-1.example.org", "10.0.2.15"]
        .into_iter()
        .map(SubjectName::from)
        .collect();
    let identity = authority.issue_server(&wanted, now(), DAY).unwrap();
    assert_eq!(
        names(&parsed(&identity)),
        ["127.0.0.1", "::1", "node-1.example.org", "10.0.2.15"]
    );
    assert!(matches!(
        client_roles(identity.der()),
        Err(PeerError::NotForClients)
    ));
}

#[test]
fn server_certificate_for_nobody_or_nonsense_is_refused() {
    let authority = CertificateAuthority::generate(now()).unwrap();
    assert!(matches!(
        authority.issue_server(&[], now(), DAY),
        Err(AuthorityError::NoNames)
    ));
    for bad in ["", "with space", "käse"] {
        let names = [SubjectName::Dns(bad.into())];
        assert!(
            matches!(
                authority.issue_server(&names, now(), DAY),
                Err(AuthorityError::BadName(_))
            ),
            "{bad:?}"
        );
    }
}

#[test]
fn an_authority_is_not_a_client() {
    let authority = CertificateAuthority::generate(now()).unwrap();
    assert!(matches!(
        client_roles(authority.certificate()),
        Err(PeerError::NotForClients)
    ));
    let no_usage = certificates_from_pem(data!("rsa-ca.crt"))
        .unwrap()
        .remove(0);
    assert!(matches!(
        client_roles(&no_usage),
        Err(PeerError::NotForClients)
    ));
}

#[test]
fn wrong_pairs_are_refused() {
    let one = CertificateAuthority::generate(now()).unwrap();
    let two = CertificateAuthority::generate(now()).unwrap();
    let mixed = CertificateAuthority::from_pem(&one.certificate_pem(), &two.key_pem());
    assert!(matches!(mixed, Err(AuthorityError::KeyMismatch)));
    let leaf = one.issue_client(&[Role::Admin], now(), DAY).unwrap();
    let leaf = CertificateAuthority::from_pem(&leaf.pem(), &leaf.key_pem());
    assert!(matches!(leaf, Err(AuthorityError::NotAnAuthority)));
}

#[test]
fn hostile_text_and_bytes_are_errors() {
    let authority = CertificateAuthority::generate(now()).unwrap();
    let der = authority.certificate();
    for end in 0..der.len() {
        assert!(client_roles(&der[..end]).is_err());
        assert!(public_key_fingerprint(&der[..end]).is_err());
    }
    let mut longer = der.to_vec();
    longer.push(0);
    assert!(matches!(
        client_roles(&longer),
        Err(PeerError::Malformed(_))
    ));
    for text in [
        "",
        "-----BEGIN PRIVATE KEY-----\n",
        "-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n",
    ] {
        assert!(private_key_from_pem(text).is_err(), "{text:?}");
        assert!(certificates_from_pem(text).is_err(), "{text:?}");
    }
    let garbage = "-----BEGIN EC PRIVATE KEY-----\nMAMCAQE=\n-----END EC PRIVATE KEY-----\n";
    assert!(matches!(
        PrivateKey::from_pem(garbage),
        Err(KeyError::Unsupported)
    ));
}

#[test]
fn fingerprint_is_that_of_the_public_key() {
    // openssl x509 -pubkey | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64
    let certificate = certificates_from_pem(data!("rsa-ca.crt"))
        .unwrap()
        .remove(0);
    assert_eq!(
        public_key_fingerprint(&certificate).unwrap(),
        data!("rsa-ca.fingerprint").trim()
    );
}

#[test]
fn debug_shows_no_secret() {
    let authority = CertificateAuthority::generate(now()).unwrap();
    let identity = authority.issue_client(&[Role::Admin], now(), DAY).unwrap();
    assert!(format!("{identity:?}").contains("PrivateKey(Ed25519)"));
}

#[test]
fn fingerprint_of_what_was_issued_is_the_same_read_back() {
    let authority = CertificateAuthority::generate(now()).unwrap();
    let identity = authority.issue_server(&["::1".into()], now(), DAY).unwrap();
    assert_eq!(
        identity.fingerprint(),
        public_key_fingerprint(identity.der()).unwrap()
    );
}
