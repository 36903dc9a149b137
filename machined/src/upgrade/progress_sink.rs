//! What is told on the way to whoever prepares an upgrade: lines of text, as an installer prints them.

use tokio::sync::mpsc;

/// Lines that wait for a reader who is behind; what comes while so many wait is not told.
const WAITING: usize = 256;

/// Takes lines for one listener; clones tell the same one.
#[derive(Debug, Clone, Default)]
pub struct ProgressSink(Option<mpsc::Sender<String>>);

impl ProgressSink {
    /// One, and what it tells, until the last of its clones is gone.
    pub fn new() -> (Self, mpsc::Receiver<String>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(Some(sender)), receiver)
    }

    /// One that nobody listens to.
    pub fn silent() -> Self {
        Self::default()
    }

    /// Tells a line, without its end. Never waits: an upgrade does not hang on who watches it.
    pub fn say(&self, line: impl Into<String>) {
        if let Some(listener) = &self.0 {
            // A reader who is behind, or gone, misses the line.
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
