//! PKCS#7 `SignedData` (RFC 2315), the form of signatures that firmware reads: one signer, RSA with SHA-256, no time.

use anyhow::Result;
use instar_pki::der::{
    explicit, implicit_set_of, null, object_id, octet_string, oid, sequence, set_of, unsigned,
};
use ring::digest;

use super::signer::Signer;

/// 1.2.840.113549.1.7.2
const SIGNED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x02];
/// 1.2.840.113549.1.7.1
const DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
/// 1.2.840.113549.1.9.3
const CONTENT_TYPE: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x03];
/// 1.2.840.113549.1.9.4
const MESSAGE_DIGEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x04];
/// 2.16.840.1.101.3.4.2.1
const SHA256: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, 0x01];

/// The signed content.
#[derive(Clone, Copy, Debug)]
pub enum Signed<'a> {
    /// A structure inside the signature.
    Inside {
        /// The structure's type, an encoded object identifier.
        kind: &'a [u8],
        /// The structure, in DER.
        content: &'a [u8],
    },
    /// Bytes outside the signature.
    Outside(&'a [u8]),
}

/// Returns the signature in a `ContentInfo`, in DER.
///
/// # Errors
/// The key cannot sign.
pub fn sign(signed: &Signed<'_>, signer: &Signer) -> Result<Vec<u8>> {
    let inner = signed_data(signed, signer)?;
    Ok(sequence(&[&object_id(SIGNED_DATA), &explicit(0, &inner)]))
}

/// Returns the signature without a `ContentInfo`, as in authenticated variables (UEFI specification 2.10, 8.2.2).
///
/// # Errors
/// The key cannot sign.
pub fn signed_data(signed: &Signed<'_>, signer: &Signer) -> Result<Vec<u8>> {
    // Attributes tie the type to the signature of a structure inside; bytes outside are signed themselves.
    let (content_info, attributes, signature) = match signed {
        Signed::Inside { kind, content } => {
            let attributes = attributes(kind, value_of(content));
            let signature = signer.sign(&set_of(&attributes))?;
            let info = sequence(&[&object_id(kind), &explicit(0, content)]);
            (info, Some(attributes), signature)
        }
        Signed::Outside(bytes) => (sequence(&[&object_id(DATA)]), None, signer.sign(bytes)?),
    };
    Ok(sequence(&[
        &unsigned(&[1]),
        &set_of(&[sha256()]),
        &content_info,
        &implicit_set_of(0, &[signer.certificate()]),
        &set_of(&[signer_info(signer, attributes.as_deref(), &signature)]),
    ]))
}

fn signer_info(signer: &Signer, attributes: Option<&[Vec<u8>]>, signature: &[u8]) -> Vec<u8> {
    let attributes = attributes.map(|attributes| implicit_set_of(0, attributes));
    sequence(&[
        &unsigned(&[1]),
        &sequence(&[signer.issuer(), &unsigned(signer.serial())]),
        &sha256(),
        attributes.as_deref().unwrap_or_default(),
        &sequence(&[&object_id(oid::RSA), &null()]),
        &octet_string(signature),
    ])
}

/// Returns type and digest of the content, each as an attribute in DER.
fn attributes(kind: &[u8], value: &[u8]) -> Vec<Vec<u8>> {
    let digest = digest::digest(&digest::SHA256, value);
    let attribute = |name, value| sequence(&[&object_id(name), &set_of(&[value])]);
    vec![
        attribute(CONTENT_TYPE, object_id(kind)),
        attribute(MESSAGE_DIGEST, octet_string(digest.as_ref())),
    ]
}

/// Returns a structure without its tag and length: PKCS#7 takes the digest of that.
fn value_of(der: &[u8]) -> &[u8] {
    let length_bytes = match der.get(1) {
        Some(first) if *first >= 0x80 => usize::from(first & 0x7F),
        _ => 0,
    };
    der.get(2 + length_bytes..).unwrap_or_default()
}

/// Returns the algorithm identifier of SHA-256.
pub(super) fn sha256() -> Vec<u8> {
    sequence(&[&object_id(SHA256), &null()])
}
