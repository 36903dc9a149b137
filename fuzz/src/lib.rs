//! The decoders that face the network: those of the API's server and its clients, of registries, of time and DHCP servers, of
//! images. Each takes any bytes and returns; what it must not do is in its assertions.
//!
//! `make fuzz` lets libFuzzer look for bytes that break one. The tests here go some thousand steps from the same seeds, each run the
//! same ones.
//!
//! The decision: decoders are a list that both libFuzzer and a plain test run, on stable Rust. cargo-fuzz's targets were the other choice: a
//! program per decoder, on a nightly compiler, and nothing of it in the tests that everybody runs.

mod bundle;
mod layer;
mod seeds;

use machined::decoders;

/// A decoder and its seeds.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    /// The decoder's name in `make fuzz`.
    pub name: &'static str,
    /// Decodes any bytes.
    pub decode: fn(&[u8]),
    /// Bytes that the decoder accepts.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All decoders.
pub const DECODERS: [Decoder; 16] = [
    decoder("api-request", decoders::api_request, seeds::api_requests),
    decoder(
        "machine-config",
        decoders::machine_config,
        seeds::machine_configs,
    ),
    decoder(
        "image-manifest",
        decoders::image_manifest,
        seeds::image_manifests,
    ),
    decoder(
        "image-reference",
        decoders::image_reference,
        seeds::image_references,
    ),
    decoder(
        "image-signature",
        decoders::image_signature,
        seeds::image_signatures,
    ),
    decoder("image-layer", layer::decode, seeds::image_layers),
    decoder("bundle", bundle::decode, bundle::seeds),
    decoder(
        "registry-challenge",
        decoders::registry_challenge,
        seeds::registry_challenges,
    ),
    decoder(
        "certificate-request",
        decoders::certificate_request,
        seeds::certificate_requests,
    ),
    decoder("dhcp-offer", decoders::dhcp_offer, seeds::dhcp_offers),
    decoder("time-answer", decoders::time_answer, seeds::time_answers),
    decoder(
        "forwarded-answer",
        decoders::forwarded_answer,
        seeds::forwarded_answers,
    ),
    decoder(
        "client-certificate",
        client_certificate,
        seeds::client_certificates,
    ),
    decoder(
        "etcd-snapshot",
        decoders::etcd_snapshot,
        seeds::etcd_snapshots,
    ),
    decoder("uki", uki, seeds::ukis),
    decoder("event", event, seeds::events),
];

const fn decoder(name: &'static str, decode: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Decoder {
    Decoder {
        name,
        decode,
        seeds,
    }
}

/// Returns the decoder of this name.
pub fn named(name: &str) -> Option<&'static Decoder> {
    DECODERS.iter().find(|decoder| decoder.name == name)
}

/// Decodes a client's certificate as apid does after TLS has accepted it.
fn client_certificate(bytes: &[u8]) {
    // Any result is right: only a panic would be wrong.
    let _ = instar_pki::client_roles(bytes);
    let _ = instar_pki::public_key_fingerprint(bytes);
}

/// Decodes a UKI of an installer image.
fn uki(bytes: &[u8]) {
    if let Ok(layout) = instar_pe::Layout::read(bytes) {
        for section in &layout.sections {
            assert!(bytes.get(section.file.clone()).is_some());
        }
    }
}

/// Decodes a node's event as clients do.
fn event(bytes: &[u8]) {
    use instar_api::events::EventPayload;
    use prost::Message as _;
    let Ok(event) = instar_api::machine::Event::decode(bytes) else {
        return;
    };
    let Some(data) = event.data else { return };
    if let Ok(Some(payload)) = EventPayload::unpack(&data) {
        let again = EventPayload::unpack(&payload.pack());
        assert!(again.is_ok_and(|again| again.is_some_and(|again| again.name() == payload.name())));
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// Number of steps from every seed.
    const STEPS: usize = 400;

    /// Changes, removes, repeats or cuts bytes.
    fn mutate(bytes: &mut Vec<u8>, dice: &mut Rng) {
        let at = dice.usize(..bytes.len().max(1));
        match dice.u8(..6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << dice.u8(..8),
            1 if !bytes.is_empty() => bytes[at] = [0, 0x7f, 0x80, 0xff][dice.usize(..4)],
            2 if !bytes.is_empty() => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            4 => {
                let length = dice.usize(..=bytes.len() - at).min(64);
                let piece = bytes[at..at + length].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => bytes.insert(at, dice.u8(..)),
        }
    }

    #[test]
    fn seeds_and_what_is_near_them_do_no_harm() {
        for decoder in DECODERS {
            // A constant seed, so that each run is the same.
            let mut dice = Rng::with_seed(0x1257_4a12);
            for seed in (decoder.seeds)() {
                (decoder.decode)(&seed);
                let mut bytes = seed.clone();
                for step in 0..STEPS {
                    // Start from the seed again now and then: bytes with many defects are refused early.
                    if step % 8 == 0 {
                        bytes.clone_from(&seed);
                    }
                    mutate(&mut bytes, &mut dice);
                    (decoder.decode)(&bytes);
                }
            }
        }
    }

    #[test]
    fn requests_are_decoded_and_nothing_else_of_the_api() {
        use instar_api::{instar, machine};
        assert!(decoders::api_request_input(&machine::UpgradeRequest::default()).is_some());
        assert!(decoders::api_request_input(&instar::UpgradePlanRequest::default()).is_some());
        assert!(decoders::api_request_input(&machine::UpgradeResponse::default()).is_none());
    }

    #[test]
    fn every_decoder_has_its_name_and_seeds() {
        for decoder in DECODERS {
            assert!(named(decoder.name).is_some());
            assert!(!(decoder.seeds)().is_empty(), "{}", decoder.name);
        }
    }
}
