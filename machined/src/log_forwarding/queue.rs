//! The lines that wait for one receiver, in bounded memory: while the receiver is away, the oldest are dropped and counted.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::base::lock::Lock as _;

/// Limit on the bytes that wait.
const LARGEST: usize = 256 << 10;
/// Interval between two lines of the log about dropped lines.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// A queue; clones share it.
#[derive(Clone, Default)]
pub(super) struct Queue {
    waiting: Arc<Mutex<Waiting>>,
    news: Arc<Notify>,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    dropped: u64,
    said: Option<Instant>,
}

impl Queue {
    /// Adds a line; never waits.
    pub(super) fn push(&self, line: Vec<u8>) {
        {
            let mut waiting = self.waiting.locked();
            waiting.bytes += line.len();
            waiting.lines.push_back(line);
            while waiting.bytes > LARGEST
                && let Some(oldest) = waiting.lines.pop_front()
            {
                waiting.bytes -= oldest.len();
                waiting.dropped += 1;
            }
        }
        self.news.notify_one();
    }

    /// Waits for the oldest line and takes it.
    pub(super) async fn pop(&self) -> Vec<u8> {
        loop {
            {
                let mut waiting = self.waiting.locked();
                if let Some(line) = waiting.lines.pop_front() {
                    waiting.bytes -= line.len();
                    return line;
                }
            }
            self.news.notified().await;
        }
    }

    /// Puts a line back that was taken and not sent: it is the oldest one.
    pub(super) fn put_back(&self, line: Vec<u8>) {
        let mut waiting = self.waiting.locked();
        waiting.bytes += line.len();
        waiting.lines.push_front(line);
    }

    /// Counts a line that was taken and is lost.
    pub(super) fn note_lost(&self) {
        self.waiting.locked().dropped += 1;
    }

    /// Returns how many lines were dropped since the last report, if it is time for one.
    pub(super) fn report(&self, now: Instant) -> Option<u64> {
        let mut waiting = self.waiting.locked();
        let is_early = waiting.said.is_some_and(|said| now < said + SAID_EVERY);
        if waiting.dropped == 0 || is_early {
            return None;
        }
        waiting.said = Some(now);
        Some(std::mem::take(&mut waiting.dropped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_in_their_order() {
        let queue = Queue::default();
        for line in [b"one".to_vec(), b"two".to_vec()] {
            queue.push(line);
        }
        assert_eq!(queue.pop().await, b"one");
        queue.put_back(b"one".to_vec());
        assert_eq!(queue.pop().await, b"one");
        assert_eq!(queue.pop().await, b"two");
        let later = queue.clone();
        let waiting = tokio::spawn(async move { later.pop().await });
        tokio::task::yield_now().await;
        queue.push(b"three".to_vec());
        assert_eq!(waiting.await.ok(), Some(b"three".to_vec()));
    }

    #[tokio::test]
    async fn memory_is_bounded_and_what_is_dropped_is_said_once_a_minute() {
        let (queue, now) = (Queue::default(), Instant::now());
        assert_eq!(queue.report(now), None);
        for number in 0..1024_u32 {
            let mut line = vec![b'x'; 1020];
            line.extend(number.to_be_bytes());
            queue.push(line);
        }
        assert!(queue.waiting.locked().bytes <= LARGEST);
        assert_eq!(queue.report(now), Some(768));
        assert_eq!(queue.pop().await[1020..], 768_u32.to_be_bytes());
        queue.note_lost();
        assert_eq!(queue.report(now + Duration::from_secs(59)), None);
        assert_eq!(queue.report(now + SAID_EVERY), Some(1));
        assert_eq!(queue.report(now + 2 * SAID_EVERY), None);
    }
}
