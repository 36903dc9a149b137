//! A client that holds one connection to a container throughout a test.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

/// Timeout for an answer: longer than any swap.
const ANSWER: Duration = Duration::from_secs(20);
/// Pause between two questions, on the host.
const PAUSE: Duration = Duration::from_millis(20);

/// The client's observations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// The longest time that the container was kept from running, by the guest's clock.
    pub pause: Duration,
    /// Number of connections that were lost, or could not be opened again.
    pub lost: u32,
    /// Number of answers.
    pub answers: u32,
}

/// A client at work.
#[derive(Debug)]
pub struct HeldConnection {
    ended: Arc<AtomicBool>,
    client: JoinHandle<Held>,
}

impl HeldConnection {
    /// Connects to a greeter's beat, and asks until it is closed.
    pub fn open(address: String) -> Result<Self> {
        let mut connection = Connection::open(&address)?;
        // The first answer is about the time before the connection.
        connection.ask()?;
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = ended.clone();
        let client = std::thread::Builder::new().spawn(move || {
            let mut held = Held::default();
            while !is_over.load(Ordering::Relaxed) {
                match connection.ask() {
                    Ok(pause) => {
                        held.pause = held.pause.max(pause);
                        held.answers += 1;
                    }
                    Err(_) => {
                        held.lost += 1;
                        if let Ok(another) = Connection::open(&address) {
                            connection = another;
                        }
                    }
                }
                std::thread::sleep(PAUSE);
            }
            held
        })?;
        Ok(Self { ended, client })
    }

    /// Ends the client.
    pub fn close(self) -> Result<Held> {
        self.ended.store(true, Ordering::Relaxed);
        self.client
            .join()
            .map_err(|_| anyhow::anyhow!("the client of the held connection died"))
    }
}

/// Asks a beat, or a greeter that asks one, once. Returns the longest time that it has noted since the last question.
pub fn longest_pause(address: &str) -> Result<Duration> {
    Connection::open(address)?.ask()
}

struct Connection {
    stream: TcpStream,
    answers: BufReader<TcpStream>,
}

impl Connection {
    fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).context("connect to the container")?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_nodelay(true)?;
        let answers = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, answers })
    }

    fn ask(&mut self) -> Result<Duration> {
        self.stream.write_all(b"?")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let microseconds = line.trim_end().parse();
        Ok(Duration::from_micros(
            microseconds.with_context(|| format!("{line:?} is no time"))?,
        ))
    }
}
