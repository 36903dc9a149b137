//! A way to a registry on which everything goes wrong that can, on order: it passes on what is right otherwise.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use instar_qemu::{PortLease, lease_port};
use rustix::net::sockopt::set_socket_linger;

use crate::HOST_FOR_GUEST;
use crate::registry::Registry;

/// How long a client may take for its request, and the registry for a part of its answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks whether the trouble is over.
const TICK: Duration = Duration::from_millis(100);
/// So much of an answer comes with each of these while it is slow.
const SLOW_PART: usize = 256;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Some bytes come ten times a second.
    Slow,
    /// Nothing comes.
    Hang,
    /// The connection is reset in the middle of an answer.
    Reset,
    /// Each answer is this status.
    Status(u16),
    /// Bytes of each answer's content are others than the registry's.
    WrongBytes,
}

/// It lives as long as this value.
#[derive(Debug)]
pub struct FlakyRegistry {
    lease: PortLease,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    registry: String,
    trouble: Mutex<Trouble>,
    stopped: AtomicBool,
}

impl Shared {
    /// What is wrong now; nothing once it has stopped.
    fn trouble(&self) -> Trouble {
        match self.stopped.load(Ordering::Acquire) {
            true => Trouble::None,
            false => *self.trouble.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl FlakyRegistry {
    /// A way to this registry, without trouble.
    pub fn before(registry: &Registry) -> Result<Self> {
        let lease = lease_port()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, lease.port()))
            .with_context(|| format!("cannot listen on port {}", lease.port()))?;
        let shared = Arc::new(Shared {
            registry: registry.address(),
            trouble: Mutex::new(Trouble::None),
            stopped: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let listener = std::thread::spawn(move || {
            for connection in listener.incoming() {
                if accepting.stopped.load(Ordering::Acquire) {
                    return;
                }
                let Ok(connection) = connection else { continue };
                let shared = Arc::clone(&accepting);
                // A client that goes away in the middle is its own affair.
                std::thread::spawn(move || drop(answer(&connection, &shared)));
            }
        });
        Ok(Self {
            lease,
            shared,
            listener: Some(listener),
        })
    }

    /// What goes wrong from now on, also with answers that are under way.
    pub fn set(&self, trouble: Trouble) {
        let mut now = self
            .shared
            .trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *now = trouble;
    }

    /// How a guest names it: `10.0.2.2:PORT`.
    pub fn host_for_guest(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.lease.port())
    }
}

impl Drop for FlakyRegistry {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Release);
        // Wakes the listener, which then sees that it is over.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.lease.port()));
        if let Some(listener) = self.listener.take() {
            // If it has panicked, its own words are on the screen.
            let _ = listener.join();
        }
    }
}

/// One request, one answer, and the end of the connection.
fn answer(mut client: &TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    let mut lines = BufReader::new(client);
    while lines.read_line(&mut request)? > 2 {}
    while shared.trouble() == Trouble::Hang {
        std::thread::sleep(TICK);
    }
    if let Trouble::Status(status) = shared.trouble() {
        let head =
            format!("HTTP/1.1 {status} Trouble\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return client.write_all(head.as_bytes());
    }
    let mut registry = TcpStream::connect(&shared.registry)?;
    registry.set_read_timeout(Some(PATIENCE))?;
    let (line, headers) = request.split_once("\r\n").unwrap_or((&request, "\r\n"));
    let kept = headers
        .lines()
        .filter(|header| !header.to_ascii_lowercase().starts_with("connection:"))
        .map(|header| format!("{header}\r\n"));
    let request = format!(
        "{line}\r\nConnection: close\r\n{}",
        kept.collect::<String>()
    );
    registry.write_all(request.as_bytes())?;
    let mut answer = BufReader::new(registry);
    let mut head = String::new();
    while answer.read_line(&mut head)? > 2 {}
    client.write_all(head.as_bytes())?;
    pass_content(answer, client, shared)
}

fn pass_content(
    mut answer: BufReader<TcpStream>,
    mut client: &TcpStream,
    shared: &Shared,
) -> io::Result<()> {
    let mut part = vec![0; 64 << 10];
    loop {
        let slow = shared.trouble() == Trouble::Slow;
        let most = if slow { SLOW_PART } else { part.len() };
        let length = answer.read(&mut part[..most])?;
        if length == 0 {
            return Ok(());
        }
        match shared.trouble() {
            Trouble::Slow | Trouble::Hang => std::thread::sleep(TICK),
            Trouble::Reset => {
                client.write_all(&part[..length / 2])?;
                // What was not sent is thrown away, and the other side gets a reset.
                return Ok(set_socket_linger(client, Some(Duration::ZERO))?);
            }
            Trouble::WrongBytes => part[0] ^= 0xFF,
            Trouble::None | Trouble::Status(_) => {}
        }
        client.write_all(&part[..length])?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http_client::http;
    use crate::scratch::Scratch;

    #[test]
    fn each_trouble_is_what_it_is_called() {
        let scratch = Scratch::make("flaky-registry").unwrap();
        let registry = Registry::start(&scratch).unwrap();
        let content = vec![7; 100_000];
        let digest = registry.put_blob("some/image", &content).unwrap();
        let flaky = FlakyRegistry::before(&registry).unwrap();
        let address = format!("127.0.0.1:{}", flaky.lease.port());
        let path = format!("/v2/some/image/blobs/{digest}");
        let get = || http(&address, "GET", &path, &[], &[]);
        assert_eq!(get().unwrap().body, content);
        flaky.set(Trouble::Status(429));
        assert_eq!(get().unwrap().status, 429);
        flaky.set(Trouble::WrongBytes);
        let wrong = get().unwrap().body;
        assert!(wrong.len() == content.len() && wrong != content);
        flaky.set(Trouble::Reset);
        // The client takes what came before.
        assert!(!get().is_ok_and(|answer| answer.body.len() >= content.len()));
        flaky.set(Trouble::Hang);
        let waiting = std::thread::scope(|scope| {
            let asking = scope.spawn(get);
            std::thread::sleep(3 * TICK);
            let waited = !asking.is_finished();
            flaky.set(Trouble::None);
            (waited, asking.join().unwrap())
        });
        assert!(waiting.0);
        assert_eq!(waiting.1.unwrap().body, content);
        scratch.remove().unwrap();
    }
}
