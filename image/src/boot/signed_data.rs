//! PKCS#7 `SignedData` (RFC 2315), the form of signatures that firmware reads: one signer, RSA with SHA-256, no time.

use anyhow::Result;
use ring::digest;
use yasna::{DERWriter, Tag, models::ObjectIdentifier};

use super::signer::Signer;

const SIGNED_DATA: [u64; 7] = [1, 2, 840, 113549, 1, 7, 2];
const DATA: [u64; 7] = [1, 2, 840, 113549, 1, 7, 1];
const CONTENT_TYPE: [u64; 7] = [1, 2, 840, 113549, 1, 9, 3];
const MESSAGE_DIGEST: [u64; 7] = [1, 2, 840, 113549, 1, 9, 4];
const RSA: [u64; 7] = [1, 2, 840, 113549, 1, 1, 1];
const SHA256: [u64; 9] = [2, 16, 840, 1, 101, 3, 4, 2, 1];

/// What is signed.
#[derive(Clone, Copy, Debug)]
pub enum Signed<'a> {
    /// A structure that the signature carries.
    Inside {
        /// Its type.
        kind: &'a [u64],
        /// The structure, in DER.
        content: &'a [u8],
    },
    /// Bytes that are elsewhere.
    Outside(&'a [u8]),
}

/// The signature in a `ContentInfo`, in DER.
///
/// # Errors
/// The key cannot sign.
pub fn sign(signed: &Signed<'_>, signer: &Signer) -> Result<Vec<u8>> {
    let inner = signed_data(signed, signer)?;
    Ok(yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_oid(&oid(&SIGNED_DATA));
            writer
                .next()
                .write_tagged(Tag::context(0), |writer| writer.write_der(&inner));
        });
    }))
}

/// The signature without a `ContentInfo` around it, as authenticated variables have it (UEFI specification 2.10, 8.2.2).
///
/// # Errors
/// The key cannot sign.
pub fn signed_data(signed: &Signed<'_>, signer: &Signer) -> Result<Vec<u8>> {
    // Attributes tie the type to the signature where a structure is inside; bytes outside are signed themselves.
    let attributes = match signed {
        Signed::Inside { kind, content } => Some(attributes(kind, value_of(content))),
        Signed::Outside(_) => None,
    };
    let signature = match (&attributes, signed) {
        (Some(attributes), _) => {
            let set = yasna::construct_der(|writer| write_set(writer, attributes));
            signer.sign(&set)?
        }
        (None, Signed::Outside(bytes)) => signer.sign(bytes)?,
        (None, Signed::Inside { content, .. }) => signer.sign(content)?,
    };
    Ok(yasna::construct_der(|writer| {
        writer.write_sequence(|writer| {
            writer.next().write_u32(1);
            writer.next().write_set(|writer| sha256(writer.next()));
            writer.next().write_sequence(|writer| match signed {
                Signed::Inside { kind, content } => {
                    writer.next().write_oid(&oid(kind));
                    writer
                        .next()
                        .write_tagged(Tag::context(0), |writer| writer.write_der(content));
                }
                Signed::Outside(_) => writer.next().write_oid(&oid(&DATA)),
            });
            writer
                .next()
                .write_tagged_implicit(Tag::context(0), |writer| {
                    writer.write_set(|writer| writer.next().write_der(signer.certificate()));
                });
            writer.next().write_set(|writer| {
                signer_info(writer.next(), signer, attributes.as_deref(), &signature)
            });
        });
    }))
}

fn signer_info(
    writer: DERWriter<'_>,
    signer: &Signer,
    attributes: Option<&[Vec<u8>]>,
    signature: &[u8],
) {
    writer.write_sequence(|writer| {
        writer.next().write_u32(1);
        writer.next().write_sequence(|writer| {
            writer.next().write_der(signer.issuer());
            writer.next().write_bigint_bytes(signer.serial(), true);
        });
        sha256(writer.next());
        if let Some(attributes) = attributes {
            writer
                .next()
                .write_tagged_implicit(Tag::context(0), |writer| write_set(writer, attributes));
        }
        writer.next().write_sequence(|writer| {
            writer.next().write_oid(&oid(&RSA));
            writer.next().write_null();
        });
        writer.next().write_bytes(signature);
    });
}

/// Type and digest of what is signed, each an attribute in DER.
fn attributes(kind: &[u64], value: &[u8]) -> Vec<Vec<u8>> {
    let digest = digest::digest(&digest::SHA256, value);
    let attribute = |name: &[u64], write: &dyn Fn(DERWriter<'_>)| {
        yasna::construct_der(|writer| {
            writer.write_sequence(|writer| {
                writer.next().write_oid(&oid(name));
                writer.next().write_set(|writer| write(writer.next()));
            });
        })
    };
    vec![
        attribute(&CONTENT_TYPE, &|writer| writer.write_oid(&oid(kind))),
        attribute(&MESSAGE_DIGEST, &|writer| {
            writer.write_bytes(digest.as_ref());
        }),
    ]
}

/// A set in the order that DER wants.
fn write_set(writer: DERWriter<'_>, elements: &[Vec<u8>]) {
    writer.write_set_of(|writer| {
        for element in elements {
            writer.next().write_der(element);
        }
    });
}

/// A structure without its tag and length: what PKCS#7 makes the digest of.
fn value_of(der: &[u8]) -> &[u8] {
    let length_bytes = match der.get(1) {
        Some(first) if *first >= 0x80 => usize::from(first & 0x7F),
        _ => 0,
    };
    der.get(2 + length_bytes..).unwrap_or_default()
}

/// The algorithm SHA-256.
pub(super) fn sha256(writer: DERWriter<'_>) {
    writer.write_sequence(|writer| {
        writer.next().write_oid(&oid(&SHA256));
        writer.next().write_null();
    });
}

fn oid(numbers: &[u64]) -> ObjectIdentifier {
    ObjectIdentifier::from_slice(numbers)
}
