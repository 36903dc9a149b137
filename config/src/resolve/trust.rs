//! Certificates and keys.

use base64::{Engine, prelude::BASE64_STANDARD};
use instar_pki::with_standard_label;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use super::{
    super::{
        model::{EndpointUrl, PublicKey, Secret, Trust, TrustedRoots},
        section::Section,
    },
    Documents,
};

pub(super) fn trust(documents: &Documents<'_>) -> Option<Trust> {
    let machine = documents.machine.as_ref()?;
    let ca_section = machine.section("ca")?;
    let ca = certificate(&ca_section, "crt");
    if ca_section.text("crt").is_none() {
        ca_section.wrong_field("crt", "this field must not be empty");
    }
    let accepted_cas = machine
        .sections("acceptedCAs")
        .iter()
        .filter_map(|(_, accepted)| certificate(accepted, "crt"))
        .collect();
    Some(Trust {
        ca_key: key(&ca_section, "key"),
        accepted_cas,
        cert_sans: machine.list("certSANs").unwrap_or_default(),
        ca: ca?,
    })
}

/// The host of the cluster's endpoint. A machine of a cluster without an endpoint still boots; it asks nobody for a certificate.
pub(super) fn control_plane_host(documents: &Documents<'_>) -> Option<String> {
    let cluster = documents.cluster.as_ref();
    let large = cluster.and_then(|cluster| cluster.section("controlPlane"));
    let document = documents.one("KubeClusterConfig");
    let endpoint = large
        .and_then(|plane| plane.text("endpoint"))
        .or_else(|| document.and_then(|document| document.text("endpoint")))?;
    let endpoint: EndpointUrl = endpoint.parse().ok()?;
    endpoint.host().map(str::to_owned)
}

pub(super) fn trusted_roots(documents: &Documents<'_>) -> Vec<TrustedRoots> {
    documents
        .of("TrustedRootsConfig")
        .filter_map(|document| {
            let certificates = document.text("certificates")?;
            check_certificates(&document, "certificates", certificates)?;
            Some(TrustedRoots {
                name: document.owned("name")?,
                certificates: certificates.to_owned(),
            })
        })
        .collect()
}

/// A field with the base64 of PEM certificates, or with PEM itself as the newer documents have it.
pub(super) fn certificate(section: &Section<'_>, field: &str) -> Option<String> {
    let pem = pem(section, field)?;
    check_certificates(section, field, &pem)?;
    Some(pem)
}

/// A list of PEM certificates, joined.
pub(super) fn certificates(section: &Section<'_>, field: &str) -> Option<String> {
    let given = section.list(field).filter(|given| !given.is_empty())?;
    let all = given.join("\n");
    check_certificates(section, field, &all)?;
    Some(all)
}

/// A field with the base64 of a PEM private key, or with PEM itself.
pub(super) fn key(section: &Section<'_>, field: &str) -> Option<Secret> {
    let pem = pem(section, field)?;
    let standard = with_standard_label(&pem);
    if PrivateKeyDer::from_pem_slice(standard.as_bytes()).is_err() {
        section.wrong_field(field, "this holds no private key in PEM");
        return None;
    }
    Some(Secret::new(standard))
}

fn pem(section: &Section<'_>, field: &str) -> Option<String> {
    let text = section.text(field)?;
    if text.trim_start().starts_with("-----BEGIN ") {
        return Some(text.to_owned());
    }
    let bare: String = text.split_ascii_whitespace().collect();
    let decoded = BASE64_STANDARD
        .decode(bare)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok());
    if decoded.is_none() {
        section.wrong_field(field, "this must be the base64 of a PEM file");
    }
    decoded
}

/// The keys for root filesystems of upgrades. A document without a key would demand a signature that nobody can make.
pub(super) fn upgrade_keys(documents: &Documents<'_>) -> Vec<PublicKey> {
    let Some(document) = documents.one("UpgradeTrustConfig") else {
        return Vec::new();
    };
    if document.texts("keys").is_empty() {
        document.wrong_field(
            "keys",
            "at least one key; without the document, no signature is demanded",
        );
    }
    document.parsed_list("keys")
}

fn check_certificates(section: &Section<'_>, field: &str, pem: &str) -> Option<()> {
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        let well_formed =
            certificate.is_ok_and(|der| x509_parser::parse_x509_certificate(&der).is_ok());
        if !well_formed {
            section.wrong_field(field, "this holds a certificate that can't be read");
            return None;
        }
        count += 1;
    }
    if count == 0 {
        section.wrong_field(field, "this holds no certificate in PEM");
        return None;
    }
    Some(())
}
