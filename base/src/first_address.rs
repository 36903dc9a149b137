//! The first of a name's addresses that answers ("Happy Eyeballs", RFC 8305).
//!
//! A network may announce IPv6 and lead nowhere, and a name may stand for machines of which one is off: attempts get no answer there, not even
//! a refusal. One after the other they would use up all the time before another address has its turn.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::address_order::by_turns;

/// Pause before the next address is tried beside those before (section 8: "Connection Attempt Delay").
const BESIDE: Duration = Duration::from_millis(250);
/// Limit on the addresses that are tried.
const MOST_ADDRESSES: usize = 16;

/// Connects to the first address that answers; each attempt has `limit`.
///
/// # Errors
/// That of the attempt that failed last.
pub async fn first_that_answers(
    addresses: Vec<SocketAddr>,
    limit: Duration,
) -> io::Result<(TcpStream, SocketAddr)> {
    let waiting = by_turns(addresses).into_iter();
    let mut waiting = waiting.take(MOST_ADDRESSES).peekable();
    let mut attempts = JoinSet::new();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        if let Some(address) = waiting.next() {
            attempts.spawn(attempt(address, limit));
        }
        let are_more = waiting.peek().is_some();
        let pause = async {
            match are_more {
                true => sleep(BESIDE).await,
                false => pending().await,
            }
        };
        tokio::select! {
            ended = attempts.join_next() => match ended {
                None => return Err(last),
                Some(Ok(Ok(connected))) => return Ok(connected),
                Some(Ok(Err(error))) => last = error,
                Some(Err(interrupted)) => last = io::Error::other(interrupted),
            },
            () = pause => {}
        }
    }
}

async fn attempt(address: SocketAddr, limit: Duration) -> io::Result<(TcpStream, SocketAddr)> {
    let connected = timeout(limit, TcpStream::connect(address)).await;
    let stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok((stream, address))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::net::{TcpListener, TcpSocket};

    fn any_port() -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    /// A socket whose queue is full, so that it answers no attempt, and what fills its queue.
    async fn silent() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(any_port()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut held = Vec::new();
        let patience = Duration::from_millis(300);
        while let Ok(connected) = timeout(patience, TcpStream::connect(address)).await {
            held.push(connected.unwrap());
            assert!(held.len() < 16, "the queue has no end");
        }
        (listener, held)
    }

    #[tokio::test]
    async fn an_address_without_an_answer_holds_nobody_up() {
        let (silent, _held) = silent().await;
        let open = TcpListener::bind(any_port()).await.unwrap();
        let addresses = [&silent, &open].map(|listener| listener.local_addr().unwrap());
        let connecting = first_that_answers(addresses.to_vec(), Duration::from_secs(60));
        let connected = timeout(Duration::from_secs(20), connecting).await;
        assert_eq!(connected.unwrap().unwrap().1, addresses[1]);
    }

    #[tokio::test]
    async fn the_last_failure_is_told_once_all_have_failed() {
        let closed = TcpListener::bind(any_port()).await.unwrap();
        let address = closed.local_addr().unwrap();
        drop(closed);
        let limit = Duration::from_secs(60);
        let refused = first_that_answers(vec![address; 3], limit).await;
        assert_eq!(
            refused.unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        let nothing = first_that_answers(Vec::new(), limit).await;
        assert_eq!(nothing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
