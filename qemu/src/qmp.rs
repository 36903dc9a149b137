//! QEMU's control protocol: one JSON object per line over a unix socket.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Timeout for a command. Generous, as a busy host starves the thread that answers.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// The socket failed.
    #[error("QMP socket: {0}")]
    Socket(#[from] io::Error),
    /// QEMU closed the socket, as it does when it ends.
    #[error("QEMU closed the QMP socket")]
    Closed,
    /// The timeout expired.
    #[error("no {what} from QEMU within {} s", .within.as_secs())]
    TooLate {
        /// The answer or event that the wait was for.
        what: String,
        /// The timeout.
        within: Duration,
    },
    /// The peer does not send JSON.
    #[error("QEMU sent something that is not QMP: {text}")]
    NotQmp {
        /// The line.
        text: String,
    },
    /// QEMU refused a command.
    #[error("QEMU refuses {command}: {text}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's message.
        text: String,
    },
}

/// An event of the machine, e.g. `GUEST_PANICKED`, `RESET`, `SHUTDOWN`, `WATCHDOG`.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The event's name.
    pub name: String,
    /// The event's data.
    pub data: Value,
}

/// A connection, ready for commands.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    /// Bytes of a line that is not complete yet.
    partial: Vec<u8>,
    events: VecDeque<Event>,
}

impl Qmp {
    /// Connects and leaves the negotiation mode.
    pub fn connect(socket: &Path) -> Result<Self, QmpError> {
        Self::over(UnixStream::connect(socket)?)
    }

    fn over(stream: UnixStream) -> Result<Self, QmpError> {
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut qmp = Self {
            stream,
            partial: Vec::new(),
            events: VecDeque::new(),
        };
        let greeting = qmp.read_message("greeting", PATIENCE)?;
        if greeting.get("QMP").is_none() {
            return Err(QmpError::NotQmp {
                text: greeting.to_string(),
            });
        }
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Runs a command and returns its result.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let mut line = json!({ "execute": command, "arguments": arguments }).to_string();
        line.push('\n');
        self.stream.write_all(line.as_bytes()).map_err(closed)?;
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut message = self.read_message(command, left)?;
            if let Some(event) = event(&mut message) {
                self.events.push_back(event);
            } else if let Some(value) = message.get_mut("return") {
                return Ok(value.take());
            } else if let Some(error) = message.get("error") {
                let text = error
                    .get("desc")
                    .and_then(Value::as_str)
                    .unwrap_or("no reason given");
                return Err(QmpError::Refused {
                    command: command.to_owned(),
                    text: text.to_owned(),
                });
            } else {
                return Err(QmpError::NotQmp {
                    text: message.to_string(),
                });
            }
        }
    }

    /// Runs a command of the human monitor and returns its text.
    pub fn human(&mut self, command: &str) -> Result<String, QmpError> {
        let answer = self.execute("human-monitor-command", json!({ "command-line": command }))?;
        Ok(answer.as_str().unwrap_or_default().to_owned())
    }

    /// Waits for an event; earlier ones count as well. Events of other names stay for later calls.
    pub fn wait_event(&mut self, name: &str, within: Duration) -> Result<Event, QmpError> {
        let until = Instant::now() + within;
        loop {
            if let Some(at) = self.events.iter().position(|event| event.name == name)
                && let Some(event) = self.events.remove(at)
            {
                return Ok(event);
            }
            let left = until.saturating_duration_since(Instant::now());
            let mut message = self.read_message(name, left)?;
            self.events.extend(event(&mut message));
        }
    }

    /// Reads the next message. The timeout may expire in the middle of a line: its bytes are kept for the next call.
    fn read_message(&mut self, what: &str, within: Duration) -> Result<Value, QmpError> {
        let until = Instant::now() + within;
        loop {
            if let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.partial.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|_| QmpError::NotQmp {
                    text: String::from_utf8_lossy(&line).trim().to_owned(),
                });
            }
            let left = until.saturating_duration_since(Instant::now());
            let late = || QmpError::TooLate {
                what: what.to_owned(),
                within,
            };
            if left.is_zero() {
                return Err(late());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(QmpError::Closed),
                Ok(count) => self.partial.extend(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(closed(error)),
            }
        }
    }
}

/// Turns each of the kernel's errors for a lost peer into [`QmpError::Closed`].
fn closed(error: io::Error) -> QmpError {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => QmpError::Closed,
        _ => QmpError::Socket(error),
    }
}

fn event(message: &mut Value) -> Option<Event> {
    let name = message.get("event")?.as_str()?.to_owned();
    let data = message.get_mut("data").map_or(Value::Null, Value::take);
    Some(Event { name, data })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{BufRead, BufReader};

    use super::*;

    const GREETING: &str = "{\"QMP\": {\"version\": {}, \"capabilities\": []}}\n";

    /// Plays QEMU: sends the greeting, then for each line received the next of the answers.
    fn qemu(answers: &'static [&'static str]) -> Result<Qmp, QmpError> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut writer = theirs.try_clone().unwrap();
            writer.write_all(GREETING.as_bytes()).unwrap();
            let mut lines = BufReader::new(theirs).lines();
            for answer in answers {
                lines.next();
                writer.write_all(answer.as_bytes()).unwrap();
            }
        });
        Qmp::over(ours)
    }

    #[test]
    fn events_between_command_and_answer_are_kept() {
        let mut qmp = qemu(&[
            "{\"return\": {}}\n",
            "{\"event\": \"RESET\", \"data\": {\"guest\": true}}\n{\"return\": 7}\n",
        ])
        .unwrap();
        assert_eq!(qmp.execute("system_reset", json!({})).unwrap(), json!(7));
        let event = qmp.wait_event("RESET", Duration::ZERO).unwrap();
        assert_eq!(event.data, json!({ "guest": true }));
    }

    #[test]
    fn a_refusal_says_what_and_why() {
        let mut qmp = qemu(&[
            "{\"return\": {}}\n",
            "{\"error\": {\"class\": \"X\", \"desc\": \"no such thing\"}}\n",
        ])
        .unwrap();
        let error = qmp.execute("fly", json!({})).unwrap_err();
        assert_eq!(error.to_string(), "QEMU refuses fly: no such thing");
    }

    #[test]
    fn the_end_of_qemu_is_told_apart() {
        let mut qmp = qemu(&["{\"return\": {}}\n"]).unwrap();
        assert!(matches!(
            qmp.execute("quit", json!({})),
            Err(QmpError::Closed)
        ));
    }

    #[test]
    fn rubbish_is_quoted_and_silence_ends() {
        assert!(
            matches!(qemu(&["nonsense\n"]), Err(QmpError::NotQmp { text }) if text == "nonsense")
        );
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut silent = Qmp {
            stream: ours,
            partial: b"{\"half".to_vec(),
            events: VecDeque::new(),
        };
        let error = silent
            .wait_event("RESET", Duration::from_millis(10))
            .unwrap_err();
        assert!(matches!(error, QmpError::TooLate { .. }));
        assert_eq!(silent.partial, b"{\"half");
    }
}
