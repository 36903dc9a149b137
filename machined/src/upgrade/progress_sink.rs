//! Progress of an upgrade's preparation for the client that asked for it: lines of text, as an installer prints them.

use tokio::sync::mpsc;

/// Lines that are kept for a slow reader; further ones are dropped.
const WAITING: usize = 256;

/// Sends lines to one listener; clones send to the same one.
#[derive(Debug, Clone, Default)]
pub struct ProgressSink(Option<mpsc::Sender<String>>);

impl ProgressSink {
    /// Returns a sink and the receiver of its lines, which ends when the last clone of the sink is gone.
    pub fn new() -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(Some(sender)), receiver)
    }

    /// Returns a sink without a listener.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Sends a line, without its newline. Never waits: an upgrade does not depend on its listener.
    pub fn say(&self, line: impl Into<String>) {
        if let Some(listener) = &self.0 {
            // A reader who is too slow, or gone, misses the line.
            let _ = listener.try_send(line.into());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn who_does_not_listen_misses_lines_and_holds_nobody_up() {
        ProgressSink::silent().say("into the void");
        let (progress, mut lines) = ProgressSink::new();
        for number in 0..WAITING + 10 {
            progress.say(number.to_string());
        }
        drop(progress);
        let mut heard = 0;
        while lines.recv().await.is_some() {
            heard += 1;
        }
        assert_eq!(heard, WAITING);
    }
}
