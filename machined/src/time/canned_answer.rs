//! A time server with a fixed reply, for fuzzers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Mutex;

use futures_util::FutureExt as _;
use sntpc::NtpUdpSocket;

use super::Sample;
use super::query;

/// Parses the packet as the reply to our request. The field that ties the reply to the request is filled in first.
pub(super) fn sample_of(packet: &[u8]) -> Result<Sample, query::NoSample> {
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, query::PORT));
    let canned = Canned {
        packet,
        question: Mutex::default(),
    };
    query::measure(server, &canned)
        .now_or_never()
        .unwrap_or_else(|| Err("it waits for more".to_owned().into()))
}

/// Sends the same packet as the reply to each request.
struct Canned<'a> {
    packet: &'a [u8],
    question: Mutex<Vec<u8>>,
}

/// The request's transmit time, and the field in which the reply repeats it (RFC 5905, 7.3).
const TRANSMITTED: std::ops::Range<usize> = 40..48;
const ORIGINATED: std::ops::Range<usize> = 24..32;

impl NtpUdpSocket for Canned<'_> {
    async fn send_to(&self, buffer: &[u8], _: SocketAddr) -> sntpc::Result<usize> {
        if let Ok(mut question) = self.question.lock() {
            *question = buffer.to_vec();
        }
        Ok(buffer.len())
    }

    async fn recv_from(&self, buffer: &mut [u8]) -> sntpc::Result<(usize, SocketAddr)> {
        let length = self.packet.len().min(buffer.len());
        buffer[..length].copy_from_slice(&self.packet[..length]);
        let question = self.question.lock().map_err(|_| sntpc::Error::Network)?;
        if let (Some(to), Some(from)) = (buffer.get_mut(ORIGINATED), question.get(TRANSMITTED)) {
            to.copy_from_slice(from);
        }
        Ok((length, SocketAddr::from((Ipv4Addr::LOCALHOST, query::PORT))))
    }
}
