//! The end of a program's output, without the rest.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Bytes that are read without a pause.
const FREE: usize = 64 * 1024;
/// Pause after each further piece: a program that writes that much must not keep machined's only thread busy.
const PAUSE: Duration = Duration::from_millis(10);
const PIECE: usize = 4096;

/// The last bytes of an output.
#[derive(Debug)]
pub struct Tail {
    bytes: VecDeque<u8>,
    most: usize,
    /// Bytes left until the first pause.
    free: usize,
}

impl Tail {
    /// Creates an empty tail that keeps at most `most` bytes.
    pub fn of(most: usize) -> Self {
        Tail {
            bytes: VecDeque::with_capacity(most),
            most,
            free: FREE,
        }
    }

    /// Ends the pauses: the program has ended, and only the rest in the pipe is to be read.
    pub fn hurry(&mut self) {
        self.free = usize::MAX;
    }

    /// Reads the output to its end. The future may be dropped, and the call repeated.
    pub async fn follow(&mut self, output: &mut (impl AsyncRead + Unpin)) {
        let mut piece = [0; PIECE];
        while let Ok(length @ 1..) = output.read(&mut piece).await {
            self.push(&piece[..length]);
            if self.free == 0 {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    fn push(&mut self, piece: &[u8]) {
        self.free = self.free.saturating_sub(piece.len());
        let new = &piece[piece.len().saturating_sub(self.most)..];
        let too_many = (self.bytes.len() + new.len()).saturating_sub(self.most);
        self.bytes.drain(..too_many);
        self.bytes.extend(new);
    }

    /// Returns the bytes that are kept.
    pub fn bytes(&mut self) -> &[u8] {
        self.bytes.make_contiguous()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let mut tail = Tail::of(4);
        for (piece, kept) in [
            ("ab", "ab"),
            ("c", "abc"),
            ("de", "bcde"),
            ("", "bcde"),
            ("fghijk", "hijk"),
        ] {
            tail.push(piece.as_bytes());
            assert_eq!(tail.bytes(), kept.as_bytes());
        }
        assert_eq!(tail.bytes.capacity(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_is_read_slowly() {
        let flood = vec![b'x'; FREE + 100 * PIECE];
        let begun = tokio::time::Instant::now();
        let mut tail = Tail::of(10);
        tail.follow(&mut flood.as_slice()).await;
        assert_eq!(tail.bytes(), [b'x'; 10]);
        assert!(begun.elapsed() >= 100 * PAUSE);
        let (slow, begun) = (begun.elapsed(), tokio::time::Instant::now());
        tail.hurry();
        tail.follow(&mut flood.as_slice()).await;
        assert!(begun.elapsed() < slow);
    }
}
