//! Sends the lines of one queue to their receiver, for as long as the config names it. A receiver that is away, or that does not read, costs
//! nothing but its queue.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use instar_http_client::{Trust, client_config};
use rustls_pki_types::ServerName;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use super::queue::Queue;
use crate::base::back_off::BackOff;
use crate::base::first_address::first_that_answers;
use crate::values::{LogEndpoint, LogTransport};

/// Timeout for a connection: lookup, TCP and TLS.
const CONNECT: Duration = Duration::from_secs(10);
/// Timeout for one line. A receiver that takes none for so long is cut off.
const WRITE: Duration = Duration::from_secs(30);
/// A connection that its receiver ends sooner is a failure: a proxy takes connections also for a receiver that is away.
const STEADY: Duration = Duration::from_secs(5);
/// Time that a new connection has to end in, after a failure, before it gets a line. The line would be lost.
const SETTLE: Duration = Duration::from_secs(1);
/// Pauses between tries to connect.
const PAUSES: BackOff = BackOff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};

/// A way to a receiver, of one type for all transports.
enum Way {
    Stream(Pin<Box<dyn Stream>>),
    Datagrams(UdpSocket),
}

/// A connection, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Send {}

impl<T: AsyncRead + AsyncWrite + Send> Stream for T {}

/// Sends for as long as it is polled. `trust` has the authorities for TLS.
pub(super) async fn deliver(endpoint: LogEndpoint, trust: Trust, queue: Queue) {
    let mut failures = 0;
    loop {
        let connecting = tokio::time::timeout(CONNECT, connect(&endpoint, &trust));
        let connected = connecting.await.context("no answer in time").flatten();
        let sent = match connected {
            Ok(way) => send(way, &queue, &mut failures).await,
            Err(error) => Err(error),
        };
        let Err(error) = sent else {
            // At its restart, or after a while without lines. If it does not come back, the next connection says so; a line about the end
            // alone would be one to send, and might end the next connection too.
            failures = 0;
            tokio::time::sleep(PAUSES.after(failures)).await;
            continue;
        };
        failures += 1;
        // The first failure is said, and then the drops that follow from it.
        if failures == 1 {
            tracing::warn!("logs do not get to {endpoint}: {error:#}; they wait");
        }
        if let Some(dropped) = queue.report(Instant::now()) {
            tracing::warn!("logs do not get to {endpoint}: {error:#}; {dropped} lines are lost");
        }
        tokio::time::sleep(PAUSES.after(failures)).await;
    }
}

/// Sends lines until the receiver ends the connection, or one fails.
async fn send(mut way: Way, queue: &Queue, failures: &mut u32) -> anyhow::Result<()> {
    let begun = Instant::now();
    if *failures > 0
        && matches!(way, Way::Stream(_))
        && let Ok(ended) = tokio::time::timeout(SETTLE, way.ended()).await
    {
        return judge_end(ended, begun.elapsed());
    }
    loop {
        // The end counts first: the kernel would take a line for a receiver that is gone, and the line would be lost.
        let line = tokio::select! {
            biased;
            ended = way.ended() => return judge_end(ended, begun.elapsed()),
            line = queue.pop() => line,
        };
        let sent = tokio::time::timeout(WRITE, way.send(&line)).await;
        match sent
            .context("it takes no lines")
            .map(|sent| sent.map_err(anyhow::Error::from))
        {
            Ok(Ok(())) if begun.elapsed() >= STEADY => *failures = 0,
            // The kernel has it. Whether there is a receiver behind the connection, only time tells.
            Ok(Ok(())) => {}
            Ok(Err(error)) | Err(error) => {
                match way {
                    // A line that a connection did not take as a whole goes to the next one.
                    Way::Stream(_) => queue.put_back(line),
                    Way::Datagrams(_) => queue.note_lost(),
                }
                return Err(error);
            }
        }
        if let Some(dropped) = queue.report(Instant::now()) {
            tracing::warn!("a receiver of logs is too slow: {dropped} lines are lost");
        }
    }
}

/// Decides about the end of a connection that lived for so long: in order, at the receiver's restart or after a while without lines; or a
/// failure.
fn judge_end(ended: io::Result<()>, lived: Duration) -> anyhow::Result<()> {
    ended.context("it has ended the connection")?;
    ensure!(
        lived >= STEADY,
        "it takes connections and ends them at once, as a proxy does whose receiver is away"
    );
    Ok(())
}

impl Way {
    async fn send(&mut self, line: &[u8]) -> io::Result<()> {
        match self {
            Way::Stream(stream) => {
                stream.write_all(line).await?;
                stream.flush().await
            }
            Way::Datagrams(socket) => socket.send(line).await.map(drop),
        }
    }

    /// Waits until the receiver ends the connection. What it says is of no use.
    async fn ended(&mut self) -> io::Result<()> {
        let Way::Stream(stream) = self else {
            return std::future::pending().await;
        };
        let mut said = [0; 256];
        loop {
            match stream.read(&mut said).await {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // The end of a connection with TLS whose receiver did not say goodbye.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

async fn connect(endpoint: &LogEndpoint, trust: &Trust) -> anyhow::Result<Way> {
    let found = tokio::net::lookup_host((endpoint.host(), endpoint.port()));
    let found = found.await.context("look up the receiver")?;
    connect_to_one_of(found.collect(), endpoint, trust).await
}

async fn connect_to_one_of(
    mut addresses: Vec<SocketAddr>,
    endpoint: &LogEndpoint,
    trust: &Trust,
) -> anyhow::Result<Way> {
    if endpoint.transport == LogTransport::Udp {
        return datagrams_to_one_of(&addresses).await;
    }
    loop {
        // One that does not answer must not use up the time of the others.
        let connected = first_that_answers(addresses.clone(), CONNECT).await;
        let (stream, address) = connected.context("connect to the receiver")?;
        match stream_to(stream, endpoint, trust).await {
            Ok(way) => return Ok(way),
            Err(error) => {
                addresses.retain(|other| *other != address);
                if addresses.is_empty() {
                    return Err(error.context(address));
                }
            }
        }
    }
}

/// Sends to the first address that the machine has a route to; nobody answers a datagram.
async fn datagrams_to_one_of(addresses: &[SocketAddr]) -> anyhow::Result<Way> {
    let mut last = anyhow::anyhow!("the name has no address");
    for address in addresses {
        match datagrams_to(*address).await {
            Ok(way) => return Ok(way),
            Err(error) => last = error.context(*address),
        }
    }
    Err(last)
}

async fn datagrams_to(address: SocketAddr) -> anyhow::Result<Way> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await.context("open a socket")?;
    // Connected, so that a closed port is an error of a later line.
    socket.connect(address).await?;
    Ok(Way::Datagrams(socket))
}

async fn stream_to(
    stream: TcpStream,
    endpoint: &LogEndpoint,
    trust: &Trust,
) -> anyhow::Result<Way> {
    // A receiver that lost its power is noticed, and its lines wait for it.
    SockRef::from(&stream).set_tcp_user_timeout(Some(WRITE))?;
    if endpoint.transport == LogTransport::Tcp {
        return Ok(Way::Stream(Box::pin(stream)));
    }
    let config = client_config(trust, endpoint.address.as_str())?;
    let name = ServerName::try_from(endpoint.host().to_owned())?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream);
    Ok(Way::Stream(Box::pin(stream.await.context("TLS")?)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncBufReadExt as _, BufReader};
    use tokio::net::{TcpListener, TcpSocket};

    fn endpoint(transport: &str, address: SocketAddr) -> LogEndpoint {
        format!("{transport}://{address}").parse().unwrap()
    }

    #[tokio::test]
    async fn lines_go_on_with_the_next_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = endpoint("tcp", listener.local_addr().unwrap());
        let queue = Queue::default();
        let task = tokio::spawn(deliver(to, Trust::default(), queue.clone()));
        queue.push(b"one\n".to_vec());
        let (stream, _) = listener.accept().await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "one");
        // Closed with a reset, which the next write meets.
        let stream = lines.into_inner().into_inner();
        SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(stream);
        tokio::time::sleep(Duration::from_millis(50)).await;
        queue.push(b"two\n".to_vec());
        queue.push(b"three\n".to_vec());
        let (stream, _) = listener.accept().await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "two");
        assert_eq!(lines.next_line().await.unwrap().unwrap(), "three");
        task.abort();
    }

    /// The queue of the first one is full: it answers nobody.
    #[tokio::test]
    async fn a_receiver_that_is_away_keeps_no_line_from_the_one_beside_it() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let full = socket.listen(1).unwrap();
        let away = full.local_addr().unwrap();
        let mut held = Vec::new();
        let patience = Duration::from_millis(300);
        while let Ok(taken) = tokio::time::timeout(patience, TcpStream::connect(away)).await {
            held.push(taken.unwrap());
            assert!(held.len() < 16, "the queue has no end");
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let there = listener.local_addr().unwrap();
        let to = endpoint("tcp", there);
        let trust = Trust::default();
        let connecting = connect_to_one_of(vec![away, there], &to, &trust);
        let connected = tokio::time::timeout(CONNECT, connecting).await;
        assert!(connected.unwrap().is_ok());
    }

    #[tokio::test]
    async fn no_line_is_lost_when_an_idle_receiver_starts_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = endpoint("tcp", listener.local_addr().unwrap());
        let queue = Queue::default();
        let task = tokio::spawn(deliver(to, Trust::default(), queue.clone()));
        for expected in ["one", "two", "three"] {
            queue.push(format!("{expected}\n").into_bytes());
            let accepted = tokio::time::timeout(CONNECT, listener.accept()).await;
            let (stream, _) = accepted.unwrap().unwrap();
            let mut lines = BufReader::new(stream).lines();
            let line = lines.next_line().await.unwrap().unwrap();
            assert_eq!(line, expected);
            // It says something, and closes the connection in order, without a reset.
            let mut stream = lines.into_inner().into_inner();
            stream.write_all(b"goodbye\n").await.unwrap();
            drop(stream);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        task.abort();
    }

    /// It takes each connection and what comes on it, and ends it, until its receiver is back.
    #[tokio::test]
    async fn a_proxy_whose_receiver_is_away_swallows_no_more_than_the_first_line() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = endpoint("tcp", listener.local_addr().unwrap());
        let queue = Queue::default();
        let task = tokio::spawn(deliver(to, Trust::default(), queue.clone()));
        for line in ["first\n", "second\n"] {
            queue.push(line.as_bytes().to_vec());
            let accepted = tokio::time::timeout(CONNECT, listener.accept()).await;
            drop(accepted.unwrap().unwrap());
        }
        let accepted = tokio::time::timeout(CONNECT, listener.accept()).await;
        let mut lines = BufReader::new(accepted.unwrap().unwrap().0).lines();
        let mut next = async || {
            let line = tokio::time::timeout(CONNECT, lines.next_line()).await;
            line.unwrap().unwrap().unwrap()
        };
        let line = next().await;
        // The first one is there too if the connection ended before it was written.
        let line = if line == "first" { next().await } else { line };
        assert_eq!(line, "second");
        task.abort();
    }

    #[test]
    fn an_end_soon_after_the_begin_is_a_failure() {
        assert!(judge_end(Ok(()), STEADY).is_ok());
        let soon = judge_end(Ok(()), Duration::from_millis(10)).unwrap_err();
        assert!(soon.to_string().contains("a proxy"), "{soon}");
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert!(judge_end(Err(reset), STEADY).is_err());
    }

    #[tokio::test]
    async fn datagrams_hold_a_line_each() {
        let receiver = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let to = endpoint("udp", receiver.local_addr().unwrap());
        let queue = Queue::default();
        let task = tokio::spawn(deliver(to, Trust::default(), queue.clone()));
        queue.push(b"one\n".to_vec());
        queue.push(b"two\n".to_vec());
        let mut buffer = [0; 100];
        for expected in [b"one\n", b"two\n"] {
            let length = receiver.recv(&mut buffer).await.unwrap();
            assert_eq!(&buffer[..length], expected);
        }
        task.abort();
    }
}
