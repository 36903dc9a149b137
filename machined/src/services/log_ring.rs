//! The output of one service: the newest bytes, in bounded memory, for reading and following.
//!
//! A slow reader loses the oldest lines and learns how many bytes it lost; it never blocks the service.

use crate::base::lock::Lock as _;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use tokio::sync::watch;

/// Size limit of a ring's content, in bytes, with the line that has not ended.
pub(super) const LONGEST_LOG: usize = CAPACITY + LONGEST_LINE;
/// Bytes of output that are kept per service.
const CAPACITY: usize = 128 * 1024;
/// The longest line that is kept whole; longer ones are cut into pieces of this size.
const LONGEST_LINE: usize = 4096;

/// The newest output of one service; clones share it.
#[derive(Clone)]
pub struct LogRing {
    lines: Arc<Mutex<Lines>>,
    /// Sequence number after the newest line; followers wait for it to change.
    newest: watch::Sender<u64>,
}

#[derive(Default)]
struct Lines {
    kept: VecDeque<Bytes>,
    bytes: usize,
    /// Bytes of lines that were dropped.
    dropped: u64,
    /// Sequence number of the first kept line.
    first: u64,
    /// Sequence number of the first line that was written in this generation.
    own: u64,
    /// The line that has not ended yet.
    partial: Vec<u8>,
}

/// Where a reader starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tail {
    /// With all kept lines.
    All,
    /// With the newest lines, at most this many.
    Lines(usize),
    /// With the lines of this generation.
    Own,
}

/// A reader's request for lines that are no longer in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Older {
    /// Bytes that were in memory and have been dropped.
    pub dropped: u64,
    /// The newest lines, at most this many; None for all.
    pub lines: Option<usize>,
}

/// A position in a ring.
pub struct Reader {
    ring: LogRing,
    next: u64,
    older: Option<Older>,
    lost: bool,
    news: watch::Receiver<u64>,
}

impl Default for LogRing {
    fn default() -> Self {
        LogRing {
            lines: Arc::default(),
            newest: watch::channel(0).0,
        }
    }
}

impl LogRing {
    fn lock(&self) -> MutexGuard<'_, Lines> {
        self.lines.locked()
    }

    /// Adds output as received; lines may begin in one chunk and end in another.
    pub fn write(&self, chunk: &[u8]) {
        let newest = {
            let mut lines = self.lock();
            for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
                lines.add(piece);
            }
            lines.first + lines.kept.len() as u64
        };
        self.newest.send_replace(newest);
    }

    /// Adds output that an earlier generation has left: it is there to be read, and no news ([`Tail::Own`]).
    pub fn inherit(&self, left: &[u8]) {
        self.write(left);
        let mut lines = self.lock();
        lines.own = lines.first + lines.kept.len() as u64;
    }

    /// Returns a question for tests: whether anybody still holds the ring.
    #[cfg(test)]
    pub(super) fn is_held(&self) -> impl Fn() -> bool + use<> {
        let lines = Arc::downgrade(&self.lines);
        move || lines.upgrade().is_some()
    }

    /// Whether this is the same ring.
    pub fn is(&self, other: &LogRing) -> bool {
        Arc::ptr_eq(&self.lines, &other.lines)
    }

    /// Ends a line that has no newline, as at the service's exit.
    pub fn flush(&self) {
        let newest = {
            let mut lines = self.lock();
            if !lines.partial.is_empty() {
                lines.end_line();
            }
            lines.first + lines.kept.len() as u64
        };
        self.newest.send_replace(newest);
    }

    /// Returns the part of a line that has not ended yet.
    pub fn unfinished(&self) -> Vec<u8> {
        self.lock().partial.clone()
    }

    /// Returns all kept lines and the line that has not ended yet: another ring to which this is written continues from here.
    pub fn contents(&self) -> Vec<u8> {
        self.contents_from(0)
    }

    /// Returns the kept lines from this position on, and the line that has not ended yet.
    pub fn contents_from(&self, position: u64) -> Vec<u8> {
        let lines = self.lock();
        let known = position.saturating_sub(lines.first);
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        let mut contents = lines
            .kept
            .iter()
            .skip(known)
            .flatten()
            .copied()
            .collect::<Vec<u8>>();
        contents.extend_from_slice(&lines.partial);
        contents
    }

    /// Returns the position of the next line, for [`last_line_since`](Self::last_line_since).
    pub fn position(&self) -> u64 {
        let lines = self.lock();
        lines.first + lines.kept.len() as u64
    }

    /// Returns the newest non-empty line, without its newline, if it came after `position`.
    pub fn last_line_since(&self, position: u64) -> Option<String> {
        self.flush();
        let lines = self.lock();
        let new = usize::try_from(position.saturating_sub(lines.first)).ok()?;
        lines
            .kept
            .range(new.min(lines.kept.len())..)
            .rev()
            .map(|line| String::from_utf8_lossy(line).trim().to_owned())
            .find(|line| !line.is_empty())
    }

    /// Returns a reader that starts at the given place.
    pub fn read(&self, tail: Tail) -> Reader {
        let lines = self.lock();
        let kept = lines.kept.len();
        let (skipped, wanted) = match tail {
            Tail::All => (0, None),
            Tail::Lines(count) => (kept.saturating_sub(count), Some(count.saturating_sub(kept))),
            Tail::Own => {
                let older = lines.own.saturating_sub(lines.first);
                (usize::try_from(older).unwrap_or(kept).min(kept), Some(0))
            }
        };
        Reader {
            ring: self.clone(),
            next: lines.first + skipped as u64,
            older: (wanted != Some(0)).then_some(Older {
                dropped: lines.dropped,
                lines: wanted,
            }),
            lost: false,
            news: self.newest.subscribe(),
        }
    }
}

impl Lines {
    /// Adds a piece with at most one newline, at its end.
    fn add(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            let room = LONGEST_LINE - self.partial.len();
            let (fits, rest) = piece.split_at(piece.len().min(room));
            self.partial.extend_from_slice(fits);
            if self.partial.ends_with(b"\n") || self.partial.len() == LONGEST_LINE {
                self.end_line();
            }
            piece = rest;
        }
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.partial);
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        self.bytes += line.len();
        self.kept.push_back(line.into());
        while self.bytes > CAPACITY {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.bytes -= oldest.len();
            self.dropped += oldest.len() as u64;
            self.first += 1;
        }
    }
}

impl Reader {
    /// Returns the request for lines before this reader's first line that are not in memory; None if it wants none of them.
    pub fn older(&self) -> Option<Older> {
        self.older
    }

    /// Returns the position of the next line, for [`contents_from`](LogRing::contents_from).
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Whether lines were dropped before they were read.
    pub fn has_lost(&self) -> bool {
        self.lost
    }

    /// Returns the next line if it is there already.
    pub fn next_kept(&mut self) -> Option<Bytes> {
        let lines = self.ring.lock();
        if self.next < lines.first {
            let lost = lines.first - self.next;
            self.next = lines.first;
            self.lost = true;
            return Some(format!("[{lost} older lines were dropped]\n").into());
        }
        let line = lines
            .kept
            .get(usize::try_from(self.next - lines.first).ok()?)?
            .clone();
        self.next += 1;
        Some(line)
    }

    /// Waits for the next line and returns it. Never ends: the ring outlives its service's process.
    pub async fn next(&mut self) -> Bytes {
        loop {
            if let Some(line) = self.next_kept() {
                return line;
            }
            let next = self.next;
            // The sender lives in `self.ring`, so this cannot fail.
            let _ = self.news.wait_for(|newest| *newest > next).await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn all(ring: &LogRing, tail: Tail) -> String {
        let mut reader = ring.read(tail);
        let mut text = String::new();
        while let Some(line) = reader.next_kept() {
            text.push_str(std::str::from_utf8(&line).unwrap());
        }
        text
    }

    #[test]
    fn lines_are_joined_across_chunks() {
        let ring = LogRing::default();
        ring.write(b"one\ntw");
        ring.write(b"o\nthree");
        assert_eq!(all(&ring, Tail::All), "one\ntwo\n");
        ring.flush();
        assert_eq!(all(&ring, Tail::Lines(2)), "two\nthree\n");
    }

    #[test]
    fn another_ring_goes_on_in_the_middle_of_a_line() {
        let before = LogRing::default();
        before.write(b"one\ntw");
        assert_eq!(before.unfinished(), b"tw");
        let after = LogRing::default();
        after.write(&before.contents());
        after.write(b"o\n");
        assert_eq!(all(&after, Tail::All), "one\ntwo\n");
        for _ in 0..2 * CAPACITY / LONGEST_LINE {
            before.write(&[b'x'; LONGEST_LINE - 1]);
        }
        let contents = before.contents().len();
        let nearly_all = CAPACITY - LONGEST_LINE..=LONGEST_LOG;
        assert!(nearly_all.contains(&contents), "{contents}");
    }

    #[test]
    fn what_was_left_is_no_news() {
        let ring = LogRing::default();
        ring.inherit(b"old\nbegun ");
        ring.write(b"and ended\nnew\n");
        assert_eq!(all(&ring, Tail::Own), "begun and ended\nnew\n");
        assert_eq!(all(&ring, Tail::All), "old\nbegun and ended\nnew\n");
        ring.write(&vec![b'x'; 2 * CAPACITY]);
        assert!(all(&ring, Tail::Own).starts_with("xxx"));
        assert!(ring.is(&ring.clone()) && !ring.is(&LogRing::default()));
    }

    #[test]
    fn memory_is_bounded_and_a_slow_reader_is_told() {
        let ring = LogRing::default();
        let mut reader = ring.read(Tail::All);
        for _ in 0..10 {
            ring.write(&vec![b'x'; CAPACITY]);
        }
        assert!(ring.lock().bytes <= CAPACITY);
        let first = reader.next_kept().unwrap();
        assert!(first.starts_with(b"["), "{first:?}");
        assert!(reader.next_kept().unwrap().starts_with(b"xxx"));
    }

    #[test]
    fn a_reader_says_what_memory_does_not_have() {
        let ring = LogRing::default();
        ring.write(b"one\ntwo\n");
        let older = |tail| ring.read(tail).older();
        let dropped = 0;
        assert_eq!(older(Tail::Lines(2)), None);
        let lines = Some(3);
        assert_eq!(older(Tail::Lines(5)), Some(Older { dropped, lines }));
        let lines = None;
        assert_eq!(older(Tail::All), Some(Older { dropped, lines }));
        ring.write(&vec![b'x'; CAPACITY]);
        assert!(older(Tail::All).unwrap().dropped >= 8);
    }

    #[test]
    fn last_words_are_those_of_this_run() {
        let ring = LogRing::default();
        ring.write(b"old\n");
        let position = ring.position();
        assert_eq!(ring.last_line_since(position), None);
        ring.write(b"new\nlast, and without a newline");
        assert_eq!(
            ring.last_line_since(position).as_deref(),
            Some("last, and without a newline")
        );
        ring.write(b"\n \n");
        assert_eq!(
            ring.last_line_since(position).as_deref(),
            Some("last, and without a newline")
        );
    }

    #[tokio::test]
    async fn a_follower_gets_what_comes_later() {
        let ring = LogRing::default();
        let mut reader = ring.read(Tail::All);
        let writer = ring.clone();
        let follower = tokio::spawn(async move { reader.next().await });
        tokio::task::yield_now().await;
        writer.write(b"late\n");
        assert_eq!(follower.await.unwrap(), Bytes::from("late\n"));
    }
}
