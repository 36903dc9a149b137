//! A client that holds one connection to a beat, and ends when it is lost.

use std::io::{BufRead as _, BufReader, Result, Write as _};
use std::net::TcpStream;
use std::time::Duration;

/// The pause between two questions.
const PAUSE: Duration = Duration::from_millis(20);
/// Timeout for one answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Asks the beat at this address for ever over one connection; returns when an answer fails to come.
pub(crate) fn hold(address: &str) -> Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_nodelay(true)?;
    let mut answers = BufReader::new(stream.try_clone()?);
    println!("greeter: holds a connection to {address}");
    let mut line = String::new();
    loop {
        stream.write_all(b"?")?;
        line.clear();
        if answers.read_line(&mut line)? == 0 {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
}
