//! A client of a beat that measures, by the kernel's clock of the machine that both are on, how long the beat's answers stay away.
//!
//! It asks over one connection, and connects anew when that is lost, for as long as it takes. So the longest time between two answers is the
//! time from the last answer of one process to the first of the next, if the beat is started again meanwhile. Like a beat (`beat.rs`) it
//! answers each byte of its own client with a line: the microseconds of the longest time between two answers since the last line. Its own
//! pause is a part of that time, so the time is never shorter than the beat's silence.

use std::io::{BufRead as _, BufReader, Error, ErrorKind, Result, Write as _};
use std::net::TcpStream;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::beat;

/// The pause between two questions, and between two tries to connect.
const PAUSE: Duration = Duration::from_millis(2);
/// Timeout for one answer. A process that is killed ends its connections at once.
const ANSWER: Duration = Duration::from_secs(5);

/// Asks the beat at this address for ever, and tells on this port.
pub(crate) fn ask(address: String, port: &str) -> Result<()> {
    println!("greeter: asks {address}");
    beat::tell_the_longest(port, move |longest| {
        let mut last_answer = None;
        loop {
            // The connection is lost when the beat ends.
            let _ = ask_on(&address, &mut last_answer, longest);
            std::thread::sleep(PAUSE);
        }
    })
}

/// Asks over one connection until it is lost.
fn ask_on(address: &str, last_answer: &mut Option<Instant>, longest: &AtomicU64) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_nodelay(true)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    loop {
        stream.write_all(b"?")?;
        line.clear();
        if answers.read_line(&mut line)? == 0 {
            return Err(Error::from(ErrorKind::ConnectionReset));
        }
        let now = Instant::now();
        if let Some(last) = last_answer.replace(now) {
            beat::note(longest, now.duration_since(last));
        }
        std::thread::sleep(PAUSE);
    }
}
