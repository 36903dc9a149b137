//! A time server (SNTP, RFC 5905) on 127.0.0.1 whose clock is wrong by a chosen time.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::HOST_FOR_GUEST;

/// Seconds from 1900, the zero of NTP, to 1970.
const NTP_TO_UNIX: u64 = 2_208_988_800;
/// Interval in which the thread checks whether it has to end.
const TICK: Duration = Duration::from_millis(100);

/// The server, until this value is dropped.
#[derive(Debug)]
pub struct WrongTimeServer {
    port: u16,
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WrongTimeServer {
    /// Starts a server whose clock is ahead by this much.
    pub fn start(ahead: Duration) -> Result<Self> {
        let socket = UdpSocket::bind("127.0.0.1:0").context("cannot bind a UDP port")?;
        socket.set_read_timeout(Some(TICK))?;
        let port = socket.local_addr()?.port();
        let end = Arc::new(AtomicBool::new(false));
        let ends = end.clone();
        let thread = std::thread::spawn(move || {
            let mut request = [0; 48];
            while !ends.load(Ordering::Relaxed) {
                if let Ok((48, client)) = socket.recv_from(&mut request) {
                    // A client that has gone asks again.
                    let _ = socket.send_to(&answer(&request, ahead), client);
                }
            }
        });
        Ok(Self {
            port,
            end,
            thread: Some(thread),
        })
    }

    /// The server's address in a guest.
    pub fn host_for_guest(&self) -> String {
        format!("{HOST_FOR_GUEST}:{}", self.port)
    }
}

impl Drop for WrongTimeServer {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed why.
            let _ = thread.join();
        }
    }
}

fn answer(request: &[u8; 48], ahead: Duration) -> [u8; 48] {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default() + ahead;
    let seconds = (now.as_secs() + NTP_TO_UNIX) as u32;
    let fraction = ((u64::from(now.subsec_nanos()) << 32) / 1_000_000_000) as u32;
    let mut answer = [0; 48];
    // No leap second, version 4, a server; second to the reference clock, which is called TEST.
    answer[..4].copy_from_slice(&[0x24, 2, 6, 0xEC]);
    answer[12..16].copy_from_slice(b"TEST");
    // Times of the clock's last setting, of the request's arrival and of the answer's departure; at 24 the client's own
    // stamp.
    for at in [16, 32, 40] {
        answer[at..at + 4].copy_from_slice(&seconds.to_be_bytes());
        answer[at + 4..at + 8].copy_from_slice(&fraction.to_be_bytes());
    }
    answer[24..32].copy_from_slice(&request[40..48]);
    answer
}
