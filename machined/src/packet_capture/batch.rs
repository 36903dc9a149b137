//! Collects bytes into few large messages, up to a size limit and a time limit.

use std::time::Duration;

use tokio::time::Instant;

/// Size limit of a message, in bytes. A full one is sent at once.
const PIECE: usize = 64 << 10;
/// Time limit for collecting. It also slows down a capture that captures its own messages.
const PATIENCE: Duration = Duration::from_millis(100);

/// The collected bytes, and the time to send them.
#[derive(Debug)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    /// None if there are no bytes.
    due: Option<Instant>,
}

impl Batch {
    /// Creates a batch with bytes that are due at once.
    pub(super) fn beginning_with(bytes: impl Into<Vec<u8>>, now: Instant) -> Self {
        Self {
            bytes: bytes.into(),
            due: Some(now),
        }
    }

    /// Lets `append` add bytes at the end.
    pub(super) fn add(&mut self, now: Instant, append: impl FnOnce(&mut Vec<u8>)) {
        append(&mut self.bytes);
        self.due.get_or_insert(now + PATIENCE);
    }

    /// Returns the latest time to send the bytes.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns whether it is time to send.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.bytes.len() >= PIECE || self.due.is_some_and(|due| due <= now)
    }

    /// Takes the first message. Bytes that are left stay due.
    pub(super) fn take(&mut self) -> Vec<u8> {
        let rest = self.bytes.split_off(self.bytes.len().min(PIECE));
        if rest.is_empty() {
            self.due = None;
        }
        std::mem::replace(&mut self.bytes, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_goes_at_once() {
        let now = Instant::now();
        let mut batch = Batch::beginning_with(*b"header", now);
        assert!(batch.is_due(now));
        assert_eq!(batch.take(), b"header");
        assert!(!batch.is_due(now) && batch.due().is_none());
        assert!(batch.take().is_empty());
    }

    #[test]
    fn the_first_of_a_batch_says_when_it_goes() {
        let now = Instant::now();
        let mut batch = Batch::beginning_with([], now);
        batch.take();
        batch.add(now, |bytes| bytes.push(1));
        let later = now + PATIENCE / 2;
        batch.add(later, |bytes| bytes.push(2));
        assert_eq!(batch.due(), Some(now + PATIENCE));
        assert!(!batch.is_due(later));
        assert!(batch.is_due(now + PATIENCE));
        assert_eq!(batch.take(), [1, 2]);
        batch.add(later, |bytes| bytes.push(3));
        assert_eq!(batch.due(), Some(later + PATIENCE));
    }

    #[test]
    fn much_goes_at_once_in_pieces() {
        let now = Instant::now();
        let mut batch = Batch::beginning_with([], now);
        batch.take();
        batch.add(now, |bytes| bytes.resize(2 * PIECE + 1, 0));
        assert!(batch.is_due(now));
        let pieces: Vec<usize> = (0..3).map(|_| batch.take().len()).collect();
        assert_eq!(pieces, [PIECE, PIECE, 1]);
        assert!(batch.take().is_empty());
    }
}
