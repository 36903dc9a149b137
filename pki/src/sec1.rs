//! `EC PRIVATE KEY` (SEC 1, RFC 5915), which other tools read and write, and the PKCS#8 wrapper around it that ring needs.

use x509_parser::der_parser::ber::BerObjectContent;
use x509_parser::der_parser::der::parse_der;

use crate::der;

/// The key as PKCS#8; `None` if it is not a P-256 or P-384 key that names its curve.
pub(crate) fn to_pkcs8(sec1: &[u8]) -> Option<Vec<u8>> {
    let curve = curve_of(sec1)?;
    let algorithm = der::sequence(&[
        &der::object_id(der::oid::EC_PUBLIC_KEY),
        &der::object_id(curve),
    ]);
    Some(der::sequence(&[
        &der::unsigned(&[0]),
        &algorithm,
        &der::octet_string(sec1),
    ]))
}

/// The P-256 key of a PKCS#8 wrapper, with the name of its curve and its public half added: without the wrapper nothing else names the
/// curve.
pub(crate) fn from_p256_pkcs8(pkcs8: &[u8], public_key: &[u8]) -> Option<Vec<u8>> {
    let (_, wrapper) = parse_der(pkcs8).ok()?;
    let inner = wrapper.as_sequence().ok()?.get(2)?.as_slice().ok()?;
    let (_, key) = parse_der(inner).ok()?;
    let secret = key.as_sequence().ok()?.get(1)?.as_slice().ok()?;
    Some(der::sequence(&[
        &der::unsigned(&[1]),
        &der::octet_string(secret),
        &der::explicit(0, &der::object_id(der::oid::P256)),
        &der::explicit(1, &der::bit_string(public_key)),
    ]))
}

/// `ECPrivateKey ::= SEQUENCE { version, privateKey, [0] parameters, [1] publicKey }`: the curve is the OID in `[0]`.
fn curve_of(sec1: &[u8]) -> Option<&'static [u8]> {
    let (rest, key) = parse_der(sec1).ok()?;
    if !rest.is_empty() {
        return None;
    }
    for part in key.as_sequence().ok()? {
        if part.header.raw_tag() != Some(&[0xa0]) {
            continue;
        }
        let inner = part.as_slice().ok()?;
        let (_, parameters) = parse_der(inner).ok()?;
        let BerObjectContent::OID(oid) = &parameters.content else {
            return None;
        };
        return [der::oid::P256, der::oid::P384]
            .into_iter()
            .find(|curve| oid.as_bytes() == *curve);
    }
    None
}
