//! The functions of machined that decode bytes from the network, for the crate `fuzz`, which calls them with arbitrary input.
//!
//! They return for any input; a failed assertion is a defect of the decoder. Products are built without this file (feature `fuzzing`).

use std::any::TypeId;
use std::io::Cursor;

use mozim::{DhcpV4ClasslessRoute, DhcpV4Lease};
use prost::Message;

use crate::config;
use crate::kubernetes::control_plane::snapshot_file::{check, smallest};
use crate::network::Lease;
use crate::oci::decoders::{answer_challenge, image, signature};
use crate::time::judge_answer;
use crate::upgrade::Candidate;
use crate::values::{ImageReference, PublicKey};

/// Decodes a request to the API: the first byte selects the message.
pub fn api_request(bytes: &[u8]) {
    let Some((number, bytes)) = bytes.split_first() else {
        return;
    };
    let messages = request_messages();
    if let Some((_, decode)) = messages.get(usize::from(*number) % messages.len()) {
        decode(bytes);
    }
}

/// The number of messages that [`api_request`] knows.
pub fn api_request_messages() -> u8 {
    u8::try_from(request_messages().len()).unwrap_or(u8::MAX)
}

/// The input from which [`api_request`] decodes this message; None for a message that is no request.
pub fn api_request_input<M: Message + 'static>(message: &M) -> Option<Vec<u8>> {
    let of_message = |(known, _): &RequestMessage| *known == TypeId::of::<M>();
    let number = request_messages().iter().position(of_message)?;
    let number = u8::try_from(number).ok()?;
    Some([vec![number], message.encode_to_vec()].concat())
}

/// The type of a message, and its decoder.
type RequestMessage = (TypeId, fn(&[u8]));

/// The messages of all requests in the API's `.proto` files, so that none can be forgotten.
fn request_messages() -> Vec<RequestMessage> {
    macro_rules! messages {
        ($($message:ty),+) => {
            vec![$((TypeId::of::<$message>(), roundtrip::<$message>)),+]
        };
    }
    instar_api::with_all_requests!(messages)
}

/// Checks a file that should be a snapshot of etcd.
pub fn etcd_snapshot(bytes: &[u8]) {
    for with_digest in [true, false] {
        match check(&mut Cursor::new(bytes), with_digest) {
            Ok(size) => assert!(size <= bytes.len() as u64),
            Err(refusal) => say(&refusal),
        }
    }
}

/// A snapshot of etcd that is accepted.
pub fn smallest_etcd_snapshot() -> Vec<u8> {
    smallest()
}

/// Reads a request for a certificate, which anybody with the token may send.
pub fn certificate_request(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        drop(instar_pki::ServerRequest::from_pem(text));
    }
}

fn roundtrip<M: Message + Default + PartialEq>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        let again = M::decode(message.encode_to_vec().as_slice());
        // NaN would be the one exception, but no request has it.
        assert!(again.is_ok_and(|again| again == message));
    }
}

/// Decodes a machine config, from a URL or from ApplyConfiguration.
pub fn machine_config(bytes: &[u8]) {
    match config::parse(bytes) {
        Ok(parsed) => parsed.warnings.iter().for_each(say),
        Err(errors) => say(&errors),
    }
}

/// Decodes a registry's description of an image: a manifest, a line feed, and the image's config.
pub fn image_manifest(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (manifest, config) = bytes.split_at(end.unwrap_or(bytes.len()));
    match image(manifest, config) {
        Ok(None) => {}
        Ok(Some((config, layers))) => {
            assert!(layers.len() <= 256);
            // Any result is fine.
            let _ = Candidate::from_labels(&config.labels).inspect_err(say);
        }
        Err(refusal) => say(&refusal),
    }
}

/// Decodes the name of an image, from a request or a machine config.
pub fn image_reference(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match text.parse::<ImageReference>() {
        Ok(reference) => {
            let again = reference.to_string().parse::<ImageReference>();
            assert!(again.is_ok_and(|again| again == reference));
        }
        Err(refusal) => say(&refusal),
    }
}

/// Decodes a document of signatures, and a public key.
pub fn image_signature(bytes: &[u8]) {
    signature(bytes);
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(key) = text.parse::<PublicKey>()
    {
        assert!(key.pem() == text);
    }
}

/// Decodes the headers in which a registry asks for authentication.
pub fn registry_challenge(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        answer_challenge(text);
    }
}

/// Decodes a DHCP server's offer: four bytes each of address, server, mask, times and a route, and a name.
pub fn dhcp_offer(bytes: &[u8]) {
    let mut words = bytes.chunks_exact(4).map(|word| {
        let mut four = [0; 4];
        four.copy_from_slice(word);
        u32::from_be_bytes(four)
    });
    let mut next = || words.next().unwrap_or_default();
    let mut reply = DhcpV4Lease::default();
    reply.yiaddr = next().into();
    reply.srv_id = next().into();
    reply.subnet_mask = next().into();
    reply.t1_sec = next();
    reply.t2_sec = next();
    reply.lease_time_sec = next();
    reply.gateways = Some(vec![next().into()]);
    reply.classless_routes = Some(vec![DhcpV4ClasslessRoute {
        destination: next().into(),
        prefix_length: next().to_be_bytes()[3],
        router: next().into(),
    }]);
    reply.host_name = Some(String::from_utf8_lossy(bytes).into_owned());
    match Lease::from_reply("eth0", "02:00:00:00:00:01", &reply, u64::from(next())) {
        Ok(lease) => {
            // Any result is fine.
            let _ = (lease.routes(), lease.remaining(u64::MAX), lease.is_over(0));
        }
        Err(refusal) => say(&refusal),
    }
}

/// Decodes another node's reply to a call that was forwarded to it.
pub fn forwarded_answer(bytes: &[u8]) {
    crate::apid::decode_answer_of_another_node(bytes);
}

/// Decodes a time server's reply.
pub fn time_answer(bytes: &[u8]) {
    judge_answer(bytes);
}

/// Checks that an error has a text, because operators read it.
fn say(error: &impl std::fmt::Display) {
    assert!(!error.to_string().is_empty());
}
