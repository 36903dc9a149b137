//! Everything in machined that decodes bytes from the network, as functions of bytes: for the crate `fuzz`, which feeds them anything.
//!
//! Whatever comes in, they return; an assertion that fails is a defect of the decoder. Products are built without this file (feature
//! `fuzzing`).

use mozim::{DhcpV4ClasslessRoute, DhcpV4Lease};
use prost::Message;

use crate::config;
use crate::network::Lease;
use crate::oci::decoders::{answer_challenge, image};
use crate::time::judge_answer;
use crate::upgrade::Candidate;
use crate::values::ImageReference;

/// A request to the API: the first byte says which message it is.
pub fn api_request(bytes: &[u8]) {
    use instar_api::{cluster, cosi::resource, machine, storage, time};
    let Some((which, bytes)) = bytes.split_first() else {
        return;
    };
    macro_rules! one_of {
        ($($message:ty),+ $(,)?) => {{
            let decoders: &[fn(&[u8])] = &[$(roundtrip::<$message>),+];
            if let Some(decode) = decoders.get(usize::from(*which) % decoders.len()) {
                decode(bytes);
            }
        }};
    }
    one_of![
        machine::ApplyConfigurationRequest,
        machine::UpgradeRequest,
        machine::RebootRequest,
        machine::ResetRequest,
        machine::ShutdownRequest,
        machine::EventsRequest,
        machine::LogsRequest,
        machine::DmesgRequest,
        machine::ReadRequest,
        machine::ListRequest,
        machine::CopyRequest,
        machine::DiskUsageRequest,
        machine::NetstatRequest,
        machine::ServiceStartRequest,
        machine::MetaWriteRequest,
        machine::GenerateClientConfigurationRequest,
        machine::ContainersRequest,
        machine::ImageServicePullRequest,
        storage::BlockDeviceWipeRequest,
        time::TimeRequest,
        cluster::HealthCheckRequest,
        resource::GetRequest,
        resource::ListRequest,
        resource::WatchRequest,
        machine::PacketCaptureRequest,
    ];
}

fn roundtrip<M: Message + Default + PartialEq>(bytes: &[u8]) {
    if let Ok(message) = M::decode(bytes) {
        let again = M::decode(message.encode_to_vec().as_slice());
        // NaN, which no request has, would be the one exception.
        assert!(again.is_ok_and(|again| again == message));
    }
}

/// A machine config, from a URL or by ApplyConfiguration.
pub fn machine_config(bytes: &[u8]) {
    match config::parse(bytes) {
        Ok(parsed) => parsed.warnings.iter().for_each(say),
        Err(errors) => say(&errors),
    }
}

/// What a registry says of an image: a manifest, a line feed, and the image's config.
pub fn image_manifest(bytes: &[u8]) {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    let (manifest, config) = bytes.split_at(end.unwrap_or(bytes.len()));
    match image(manifest, config) {
        Ok(None) => {}
        Ok(Some((config, layers))) => {
            assert!(layers.len() <= 256);
            // Any answer will do.
            let _ = Candidate::from_labels(&config.labels).inspect_err(say);
        }
        Err(refusal) => say(&refusal),
    }
}

/// The name of an image, from a request or a machine config.
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

/// The headers by which a registry asks who we are.
pub fn registry_challenge(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        answer_challenge(text);
    }
}

/// What a DHCP server offers: four bytes each of address, server, mask, times and a route, and a name.
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
            // Any answer will do.
            let _ = (lease.routes(), lease.remaining(u64::MAX), lease.is_over(0));
        }
        Err(refusal) => say(&refusal),
    }
}

/// What another node answers to a call that was passed on to it.
pub fn forwarded_answer(bytes: &[u8]) {
    crate::apid::decode_answer_of_another_node(bytes);
}

/// What a time server answers.
pub fn time_answer(bytes: &[u8]) {
    judge_answer(bytes);
}

/// Errors are told to people: their words must be there too.
fn say(error: &impl std::fmt::Display) {
    assert!(!error.to_string().is_empty());
}
