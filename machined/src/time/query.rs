//! Queries one time server (SNTP, RFC 5905).

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::{Duration, SystemTime},
};

use sntpc::{KissOfDeathCode, NtpContext, NtpTimestampGenerator, NtpUdpSocket};
use tokio::net::UdpSocket;

use super::Sample;
use crate::base::address_order::by_turns;

/// The port of NTP.
pub(super) const PORT: u16 = 123;
/// Time limit for a name's lookup and for a reply, each.
const PATIENCE: Duration = Duration::from_secs(5);
/// Limit on addresses of a name that are tried.
const MOST_ADDRESSES: usize = 4;
/// Rest of a server that denies its service to this machine: it may have changed its mind by then.
const DENIED: Duration = Duration::from_secs(3600);
/// Rest of a server that is asked too often.
const TOO_OFTEN: Duration = Duration::from_secs(128);

/// Why a server gave no time.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The name has no address.
    #[error("cannot resolve the time server {server}: {reason}")]
    Resolve {
        /// The name.
        server: String,
        /// Why.
        reason: String,
    },
    /// The server gave no reply, or an invalid one.
    #[error("the time server {server} gives no time: {reason}")]
    Answer {
        /// The name.
        server: String,
        /// Why.
        reason: String,
    },
    /// The server wants to be asked no more, or less often (RFC 5905, 7.4).
    #[error("the time server {server} refuses this machine, and is left alone for {} s: {reason}", rest.as_secs())]
    Unwelcome {
        /// The name.
        server: String,
        /// Its word.
        reason: String,
        /// The time in which it must not be asked.
        rest: Duration,
    },
}

/// Why an address gave no time.
#[derive(Debug)]
pub(super) struct NoSample {
    /// The reason.
    pub(super) reason: String,
    /// The time in which it must not be asked, if it said so.
    pub(super) rest: Option<Duration>,
}

impl From<String> for NoSample {
    fn from(reason: String) -> Self {
        NoSample { reason, rest: None }
    }
}

/// Measures once against `server`: a name or address, with or without a port. `held` is dropped when the lookup of the name has ended: its
/// thread goes on even if no caller waits for it.
pub(super) async fn query(server: &str, held: impl Send + 'static) -> Result<Sample, QueryError> {
    let addresses = resolve(server, held)
        .await
        .map_err(|reason| QueryError::Resolve {
            server: server.to_owned(),
            reason,
        })?;
    let mut why = NoSample::from("the name has no addresses".to_owned());
    for address in to_ask(addresses) {
        let no_sample = match tokio::time::timeout(PATIENCE, ask(address)).await {
            Ok(Ok(sample)) => return Ok(sample),
            Ok(Err(no_sample)) => no_sample,
            Err(_) => NoSample::from(format!(
                "{address} does not answer within {} s",
                PATIENCE.as_secs()
            )),
        };
        // A word of the server counts more than the silence of its other addresses.
        if no_sample.rest.is_some() || why.rest.is_none() {
            why = no_sample;
        }
    }
    let (server, reason) = (server.to_owned(), why.reason);
    Err(match why.rest {
        None => QueryError::Answer { server, reason },
        Some(rest) => QueryError::Unwelcome {
            server,
            reason,
            rest,
        },
    })
}

/// Returns the addresses of a name that are asked: of both families, if it has them. A route of IPv6 may lead nowhere.
fn to_ask(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut all = by_turns(addresses);
    all.truncate(MOST_ADDRESSES);
    all
}

async fn resolve(server: &str, held: impl Send + 'static) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = server.parse::<SocketAddr>() {
        return Ok(vec![address]);
    }
    if let Ok(ip) = server.parse() {
        return Ok(vec![SocketAddr::new(ip, PORT)]);
    }
    let named = if server.contains(':') {
        server.to_owned()
    } else {
        format!("{server}:{PORT}")
    };
    let looked_up = crate::base::task::spawn(async move {
        let found = tokio::net::lookup_host(named).await;
        drop(held);
        found.map(Iterator::collect)
    });
    match tokio::time::timeout(PATIENCE, looked_up).await {
        Ok(Ok(Ok(addresses))) => Ok(addresses),
        Ok(Ok(Err(error))) => Err(error.to_string()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

async fn ask(address: SocketAddr) -> Result<Sample, NoSample> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)
        .await
        .map_err(|error| error.to_string())?;
    // Connected, so that a closed port is an error at once instead of a timeout.
    socket
        .connect(address)
        .await
        .map_err(|error| format!("{address}: {error}"))?;
    let socket = Socket {
        socket,
        peer: address,
    };
    measure(address, &socket).await
}

/// Sends the request, and reads the reply.
pub(super) async fn measure(
    address: SocketAddr,
    socket: &impl NtpUdpSocket,
) -> Result<Sample, NoSample> {
    let context = NtpContext::new(Clock::default());
    let answer = sntpc::get_time(address, socket, context).await;
    let answer = answer.map_err(|error| NoSample {
        reason: format!("{address}: {error:?}"),
        rest: match error {
            sntpc::Error::KissOfDeath(KissOfDeathCode::Deny | KissOfDeathCode::Rstr) => {
                Some(DENIED)
            }
            sntpc::Error::KissOfDeath(KissOfDeathCode::Rate) => Some(TOO_OFTEN),
            _ => None,
        },
    })?;
    Ok(Sample {
        offset_us: answer.offset(),
        roundtrip_us: answer.roundtrip(),
        stratum: answer.stratum(),
        unsynchronized: answer.leap_indicator() == 3,
    })
}

struct Socket {
    socket: UdpSocket,
    peer: SocketAddr,
}

impl NtpUdpSocket for Socket {
    async fn send_to(&self, buffer: &[u8], _: SocketAddr) -> sntpc::Result<usize> {
        self.socket.send(buffer).await.map_err(network)
    }

    async fn recv_from(&self, buffer: &mut [u8]) -> sntpc::Result<(usize, SocketAddr)> {
        let length = self.socket.recv(buffer).await.map_err(network)?;
        Ok((length, self.peer))
    }
}

fn network(_: io::Error) -> sntpc::Error {
    sntpc::Error::Network
}

/// The machine's clock, in the form that sntpc needs.
#[derive(Copy, Clone, Default)]
struct Clock {
    now: Duration,
}

impl NtpTimestampGenerator for Clock {
    fn init(&mut self) {
        self.now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
    }

    fn timestamp_sec(&self) -> u64 {
        self.now.as_secs()
    }

    fn timestamp_subsec_micros(&self) -> u32 {
        self.now.subsec_micros()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{ClockSpec, LeftAlone, SampleFilter, attempt};
    use super::*;

    /// Starts a server on 127.0.0.1 that replies to one request with `reply`.
    async fn server(reply: impl Fn(&[u8]) -> Vec<u8> + Send + 'static) -> String {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let mut request = [0; 64];
            let (length, from) = socket.recv_from(&mut request).await.unwrap();
            socket
                .send_to(&reply(&request[..length]), from)
                .await
                .unwrap();
        });
        address
    }

    /// Returns a valid reply, `ahead` seconds ahead of the machine's clock.
    fn answer(request: &[u8], ahead: u64) -> Vec<u8> {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap();
        let seconds = u32::try_from((now.as_secs() + ahead + 2_208_988_800) & 0xffff_ffff).unwrap();
        let fraction =
            u32::try_from((u64::from(now.subsec_nanos()) << 32) / 1_000_000_000).unwrap();
        let stamp = [seconds.to_be_bytes(), fraction.to_be_bytes()].concat();
        let mut reply = vec![0; 48];
        reply[0] = (4 << 3) | 4;
        reply[1] = 2;
        reply[16..24].copy_from_slice(&stamp);
        reply[24..32].copy_from_slice(&request[40..48]);
        reply[32..40].copy_from_slice(&stamp);
        reply[40..48].copy_from_slice(&stamp);
        reply
    }

    /// A name of a pool has four addresses of each family, those of IPv6 first.
    #[test]
    fn both_families_of_a_name_are_asked() {
        let of = |number: u8| SocketAddr::new([192, 0, 2, number].into(), PORT);
        let six = |number: u16| SocketAddr::new([0xfd00, 0, 0, 0, 0, 0, 0, number].into(), PORT);
        let pool: Vec<_> = (1..5).map(six).chain((1..5).map(of)).collect();
        assert_eq!(to_ask(pool), [six(1), of(1), six(2), of(2)]);
    }

    #[tokio::test]
    async fn a_server_is_measured() {
        let address = server(|request| answer(request, 3600)).await;
        let sample = query(&address, ()).await.unwrap();
        assert!(
            sample.offset_us.abs_diff(3_600_000_000) < 500_000,
            "{sample:?}"
        );
        assert_eq!((sample.stratum, sample.unsynchronized), (2, false));
    }

    #[tokio::test]
    async fn bad_answers_are_errors() {
        let forged = server(|request| {
            let mut reply = answer(request, 0);
            reply[24] ^= 1;
            reply
        })
        .await;
        assert!(
            query(&forged, ())
                .await
                .unwrap_err()
                .to_string()
                .contains(&forged)
        );
        let short = server(|_| vec![0; 10]).await;
        assert!(query(&short, ()).await.is_err());
    }

    /// A server that refuses to serve, with this word.
    async fn kiss(code: &'static [u8; 4]) -> String {
        server(move |request| {
            let mut reply = answer(request, 0);
            reply[1] = 0;
            reply[12..16].copy_from_slice(code);
            reply
        })
        .await
    }

    #[tokio::test]
    async fn a_server_says_for_how_long_it_wants_to_be_left_alone() {
        for (code, expected) in [(b"DENY", DENIED), (b"RSTR", DENIED), (b"RATE", TOO_OFTEN)] {
            let refused = query(&kiss(code).await, ()).await.unwrap_err();
            let text = refused.to_string();
            let QueryError::Unwelcome { rest, .. } = refused else {
                panic!("{text}");
            };
            assert_eq!(rest, expected, "{text}");
        }
        let other = query(&kiss(b"INIT").await, ()).await.unwrap_err();
        assert!(matches!(other, QueryError::Answer { .. }), "{other}");
    }

    /// The server's port is closed after its word.
    #[tokio::test]
    async fn a_server_that_refuses_is_not_asked_again_until_its_rest_is_over() {
        let spec = ClockSpec {
            enabled: true,
            servers: vec![kiss(b"DENY").await],
        };
        let (mut judge, mut left_alone) = (SampleFilter::new(0), LeftAlone::default());
        let first = attempt(&spec, &mut judge, &mut left_alone).await.err();
        assert!(first.unwrap().contains("left alone for 3600 s"));
        let second = attempt(&spec, &mut judge, &mut left_alone).await.err();
        let second = second.unwrap();
        assert!(second.contains("has refused this machine"), "{second}");
    }

    #[tokio::test]
    async fn nobody_there_is_an_error_at_once() {
        let closed = UdpSocket::bind("127.0.0.1:0")
            .await
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let start = std::time::Instant::now();
        assert!(query(&closed, ()).await.is_err());
        assert!(
            start.elapsed() < Duration::from_secs(4),
            "a closed port is no time-out"
        );
    }
}
