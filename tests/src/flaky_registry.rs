//! A proxy to a registry that causes trouble on order, and otherwise passes requests and answers on.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;
use instar_base::lock::Lock as _;
use rustix::net::sockopt::set_socket_linger;

use crate::local_server::LocalServer;
use crate::registry::Registry;

/// Timeout for a client's request, and for a part of the registry's answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Interval between two checks whether the trouble is over.
const TICK: Duration = Duration::from_millis(100);
/// Number of bytes passed on per tick while the registry is slow.
const SLOW_PART: usize = 256;

/// The trouble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// No trouble.
    None,
    /// A few bytes arrive ten times a second.
    Slow,
    /// No bytes arrive.
    Hang,
    /// The connection is reset in the middle of an answer.
    Reset,
    /// Each answer is this status.
    Status(u16),
    /// Some bytes of each answer's content are wrong.
    WrongBytes,
}

/// The proxy, until this value is dropped.
#[derive(Debug)]
pub struct FlakyRegistry {
    server: LocalServer,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    registry: String,
    trouble: Mutex<Trouble>,
}

impl Shared {
    fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.trouble.locked()
    }
}

impl FlakyRegistry {
    /// Starts a proxy to this registry, without trouble.
    pub fn before(registry: &Registry) -> Result<Self> {
        let shared = Arc::new(Shared {
            registry: registry.address(),
            trouble: Mutex::new(Trouble::None),
        });
        let asked = shared.clone();
        let server = LocalServer::start(move |client| answer(client, &asked))?;
        Ok(Self { server, shared })
    }

    /// Sets the trouble from now on, also for answers that are under way.
    pub fn set(&self, trouble: Trouble) {
        *self.shared.trouble() = trouble;
    }

    /// The proxy's address in a guest: `10.0.2.2:PORT`.
    pub fn host_for_guest(&self) -> String {
        self.server.host_for_guest()
    }
}

/// Ends the trouble, so that no client waits any longer.
impl Drop for FlakyRegistry {
    fn drop(&mut self) {
        self.set(Trouble::None);
    }
}

/// Passes on one request and one answer, and ends the connection.
fn answer(mut client: &TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let mut request = String::new();
    let mut lines = BufReader::new(client);
    while lines.read_line(&mut request)? > 2 {}
    while *shared.trouble() == Trouble::Hang {
        std::thread::sleep(TICK);
    }
    let trouble = *shared.trouble();
    if let Trouble::Status(status) = trouble {
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
        let slow = *shared.trouble() == Trouble::Slow;
        let most = if slow { SLOW_PART } else { part.len() };
        let length = answer.read(&mut part[..most])?;
        if length == 0 {
            return Ok(());
        }
        let trouble = *shared.trouble();
        match trouble {
            Trouble::Slow | Trouble::Hang => std::thread::sleep(TICK),
            Trouble::Reset => {
                client.write_all(&part[..length / 2])?;
                // Unsent bytes are dropped, and the client gets a reset.
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
        let address = format!("127.0.0.1:{}", flaky.server.port());
        let path = format!("/v2/some/image/blobs/{digest}");
        let get = || http(&address, "GET", &path, &[], &[]);
        assert_eq!(get().unwrap().body, content);
        flaky.set(Trouble::Status(429));
        assert_eq!(get().unwrap().status, 429);
        flaky.set(Trouble::WrongBytes);
        let wrong = get().unwrap().body;
        assert!(wrong.len() == content.len() && wrong != content);
        flaky.set(Trouble::Reset);
        // The client may return the bytes from before the reset.
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
