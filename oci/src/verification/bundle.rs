//! The newer form of cosign's signatures: a sigstore bundle with an in-toto statement in a DSSE envelope.
//!
//! Of a bundle only the envelope is read. Its certificates, timestamps and log entries are of no use to a rule with a key, and they are not
//! signed by it.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use instar_values::Digest;
use serde::Deserialize;
use serde_json::json;

use super::signature::{Form, NotASignature, Signature, base64_text, shortened};

/// The beginning of the media type of bundles of every version.
pub(super) const MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle";
/// The media type of bundles that are written here.
pub(super) const WRITTEN_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// The beginning of the type of in-toto statements: v0.1 and v1 have the same subjects.
const STATEMENT_TYPE: &str = "https://in-toto.io/Statement/";
/// The type of the statement "this image is mine": cosign's signing. Other statements by the same key (a list of packages, a report of
/// weaknesses) say something about an image, but not that it may run.
const PREDICATE_TYPE: &str = "https://sigstore.dev/cosign/sign/v1";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    media_type: String,
    dsse_envelope: Option<Envelope>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload_type: String,
    #[serde(with = "base64_text")]
    payload: Vec<u8>,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    #[serde(with = "base64_text")]
    sig: Vec<u8>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<Subject>,
    predicate_type: String,
}

#[derive(Deserialize)]
struct Subject {
    digest: SubjectDigest,
}

#[derive(Deserialize)]
struct SubjectDigest {
    sha256: Option<String>,
}

/// A bundle with this payload and its signature, and nothing else.
pub(super) fn written(payload: &[u8], signature: &[u8]) -> Vec<u8> {
    let base64 = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
    let bundle = json!({
        "mediaType": WRITTEN_TYPE,
        "dsseEnvelope": {
            "payload": base64(payload),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{ "sig": base64(signature) }],
        },
    });
    bundle.to_string().into_bytes()
}

fn json<'a, T: Deserialize<'a>>(what: &'static str, bytes: &'a [u8]) -> Result<T, NotASignature> {
    serde_json::from_slice(bytes).map_err(|source| NotASignature::Json { what, source })
}

fn must_begin(what: &'static str, found: &str, wanted: &'static str) -> Result<(), NotASignature> {
    match found.starts_with(wanted) {
        true => Ok(()),
        false => Err(NotASignature::Type {
            what,
            found: shortened(found),
            wanted,
        }),
    }
}

/// The signatures of a bundle. Nothing is verified yet.
pub(crate) fn signatures(bundle: &[u8]) -> Result<Vec<Signature>, NotASignature> {
    let bundle: Bundle = json("bundle", bundle)?;
    must_begin("bundle", &bundle.media_type, MEDIA_TYPE)?;
    let envelope = bundle.dsse_envelope.ok_or(NotASignature::NoEnvelope)?;
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err(NotASignature::Type {
            what: "envelope",
            found: shortened(&envelope.payload_type),
            wanted: PAYLOAD_TYPE,
        });
    }
    // Envelopes of cosign have one signature. More than a few of a large payload would only take memory.
    let signatures = envelope.signatures.into_iter().take(MOST_SIGNATURES);
    let signatures = signatures.map(|EnvelopeSignature { sig }| Signature {
        form: Form::Statement,
        payload: envelope.payload.clone(),
        signature: sig,
    });
    Ok(signatures.collect())
}

/// Limit on the signatures of an envelope that are looked at.
const MOST_SIGNATURES: usize = 4;

/// The bytes that are signed: the payload with its type, in DSSE's pre-authentication encoding.
pub(super) fn signed_bytes(payload: &[u8]) -> Vec<u8> {
    let head = format!(
        "DSSEv1 {} {PAYLOAD_TYPE} {} ",
        PAYLOAD_TYPE.len(),
        payload.len()
    );
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

/// The digests that a statement is about.
pub(super) fn subjects(payload: &[u8]) -> Result<Vec<Digest>, NotASignature> {
    let statement: Statement = json("statement", payload)?;
    must_begin("statement", &statement.kind, STATEMENT_TYPE)?;
    if statement.predicate_type != PREDICATE_TYPE {
        return Err(NotASignature::Type {
            what: "statement's predicate",
            found: shortened(&statement.predicate_type),
            wanted: PREDICATE_TYPE,
        });
    }
    let subjects = statement.subject.iter();
    let subjects = subjects.filter_map(|subject| subject.digest.sha256.as_deref());
    Ok(subjects
        .filter_map(|hex| Digest::from_hex(hex).ok())
        .collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verification::test_signing::{Signer, bundle_of, statement};

    #[test]
    fn the_envelope_of_a_bundle_is_read() {
        let (signer, image) = (Signer::ecdsa(), Digest::of(b"image"));
        let signed = signer.statement(statement(image));
        let found = signatures(&bundle_of(&signed)).unwrap();
        assert_eq!(found, [signed]);
        assert_eq!(found[0].subjects().unwrap(), [image]);
    }

    /// A signature that a flipped bit leaves readable is either not by the key, or unchanged: the bit is in a part that says nothing about the image.
    #[test]
    fn a_flipped_byte_never_makes_another_statement() {
        let (signer, image) = (Signer::ecdsa(), Digest::of(b"image"));
        let signed = signer.statement(statement(image));
        let (key, good) = (signer.public_key(), bundle_of(&signed));
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                for found in signatures(&bad).unwrap_or_default() {
                    assert!(
                        !found.is_by(&key) || found == signed,
                        "byte {at}, bit {bit}"
                    );
                }
            }
        }
    }

    #[test]
    fn statements_of_another_kind_are_refused() {
        let good = String::from_utf8(statement(Digest::of(b"image"))).unwrap();
        for bad in [
            "",
            "{}",
            &good.replace(PREDICATE_TYPE, "https://spdx.dev/Document"),
            &good.replace(STATEMENT_TYPE, "https://other/"),
            &good.replacen("\"subject\"", "\"subject\":[],\"subject\"", 1),
        ] {
            assert!(subjects(bad.as_bytes()).is_err(), "{bad}");
        }
        let none = good.replace("sha256", "sha512");
        assert_eq!(subjects(none.as_bytes()).unwrap(), []);
    }

    #[test]
    fn bundles_of_another_kind_are_refused() {
        let signed = Signer::ecdsa().statement(statement(Digest::of(b"image")));
        let good = String::from_utf8(bundle_of(&signed)).unwrap();
        for bad in [
            "",
            "{}",
            &good.replace("vnd.dev.sigstore.bundle", "vnd.other"),
            &good.replace("dsseEnvelope", "messageSignature"),
            &good.replace("vnd.in-toto+json", "json"),
        ] {
            assert!(signatures(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
