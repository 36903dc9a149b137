//! machined's own log: each line goes to the kernel's log, and so to the console, and to a ring that the API reads.
//!
//! A line that the kernel does not accept is dropped there; the log never blocks.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt as _};

use crate::base::printable::printable;
use crate::services::LogRing;

/// Limit on a record, in bytes: the kernel cuts longer ones (`PRINTKRB_RECORD_MAX`).
const LONGEST_RECORD: usize = 976;
/// syslog's facility "daemon" in a record's prefix: facility times eight plus priority.
const DAEMON: u8 = 3 << 3;

/// Sends this process's log to the kernel's log and to the ring. Only the first call has an effect.
pub fn start(ring: LogRing) {
    let kernel = File::options().write(true).open("/dev/kmsg").ok();
    let subscriber = tracing_subscriber::registry().with(Lines { ring, kernel });
    // An error says that logging was started before.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

struct Lines {
    ring: LogRing,
    kernel: Option<File>,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        // Libraries log at debug level; the node's log is about the node.
        *metadata.level() <= Level::INFO
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let line = harmless(&text.0);
        let level = *event.metadata().level();
        self.ring
            .write(format!("{} {line}\n", level.as_str()).as_bytes());
        if let Some(mut kernel) = self.kernel.as_ref() {
            let mut record = format!("<{}>machined: {line}", DAEMON | priority(level));
            let mut end = record.len().min(LONGEST_RECORD - 1);
            while !record.is_char_boundary(end) {
                end -= 1;
            }
            record.truncate(end);
            // Without the newline, readers and the console get the record only when the next one comes.
            record.push('\n');
            // One write is one record. A failure cannot be handled here, least of all logged.
            let _ = kernel.write_all(record.as_bytes());
        }
    }
}

/// A message for the log: the kernel prints it on consoles as it is, and some of its words may be a stranger's. Further lines are indented, so
/// that none passes for another message.
fn harmless(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(printable).collect();
    lines.join("\n  ")
}

/// syslog's priorities (syslog(3)).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}

/// An event's message, followed by its fields.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Tail;

    #[test]
    fn lines_reach_the_ring_without_the_noise_of_libraries() {
        let ring = LogRing::default();
        let subscriber = tracing_subscriber::registry().with(Lines {
            ring: ring.clone(),
            kernel: None,
        });
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(disk = "vda", "found");
            tracing::debug!("noise");
            tracing::warn!("hot");
        });
        let mut reader = ring.read(Tail::All);
        let lines: Vec<_> = std::iter::from_fn(|| reader.next_kept()).collect();
        assert_eq!(lines, ["INFO found disk=\"vda\"\n", "WARN hot\n"]);
    }

    #[test]
    fn words_of_strangers_are_no_other_message_and_move_no_cursor() {
        for (text, logged) in [
            ("one\nERROR two\r\nthree\n", "one\n  ERROR two\n  three"),
            ("a label: \u{1b}[2Jx", "a label: \\x1b[2Jx"),
            ("", ""),
        ] {
            assert_eq!(harmless(text), logged);
        }
    }
}
