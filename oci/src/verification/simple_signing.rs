//! The older form of cosign's signatures: a payload in the format "simple signing", with the signature beside it.

use instar_values::Digest;
use serde::Deserialize;

use super::signature::{Form, NotASignature, Signature, shortened};
use base64::{Engine as _, prelude::BASE64_STANDARD};

/// The type of the payloads that cosign writes.
const TYPE: &str = "cosign container image signature";
/// The media type of a layer that holds a payload.
pub(super) const LAYER_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The layer's annotation with the signature, in base64.
pub(super) const ANNOTATION: &str = "dev.cosignproject.cosign/signature";

#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: Digest,
}

/// Combines a payload with the text of its annotation.
pub(super) fn signature(payload: Vec<u8>, annotation: &str) -> Result<Signature, NotASignature> {
    let signature = BASE64_STANDARD.decode(annotation.trim());
    Ok(Signature {
        form: Form::SimpleSigning,
        payload,
        signature: signature.map_err(|_| NotASignature::Bare)?,
    })
}

/// The text of the annotation with a signature.
pub(super) fn annotation(signature: &[u8]) -> String {
    BASE64_STANDARD.encode(signature)
}

/// The digest that a payload is about. The name in it (`docker-reference`) does not count: images are copied to other registries.
pub(super) fn subject(payload: &[u8]) -> Result<Digest, NotASignature> {
    let payload: Payload =
        serde_json::from_slice(payload).map_err(|source| NotASignature::Json {
            what: "payload",
            source,
        })?;
    if payload.critical.kind != TYPE {
        return Err(NotASignature::Type {
            what: "payload",
            found: shortened(&payload.critical.kind),
            wanted: TYPE,
        });
    }
    Ok(payload.critical.image.digest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::verification::test_signing::payload;

    #[test]
    fn the_payload_of_cosign_is_read() {
        let image = Digest::of(b"image");
        assert_eq!(subject(&payload(image)).unwrap(), image);
    }

    #[test]
    fn other_payloads_are_refused() {
        let good = String::from_utf8(payload(Digest::of(b"image"))).unwrap();
        let twice = good.replacen(
            "\"image\"",
            "\"image\":{\"docker-manifest-digest\":\"x\"},\"image\"",
            1,
        );
        for bad in [
            "",
            "{}",
            "[]",
            "{\"critical\":null}",
            twice.as_str(),
            &good.replace(TYPE, "atomic container signature"),
            &good.replace("sha256:", "sha512:"),
            &good.replace("docker-manifest-digest", "digest"),
            &good[..good.len() - 1],
        ] {
            assert!(subject(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
