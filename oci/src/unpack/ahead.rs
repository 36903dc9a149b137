//! A bounded pipe between the thread that decodes a layer and the one that unpacks it, so that both cores of a machine work.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Number of decoded pieces that may wait. With the pieces at both ends, less than 1 MiB.
const PIECES: usize = 4;
/// Bytes of a piece.
const PIECE: usize = 128 * 1024;

/// The end that is written to.
pub(super) struct Writer {
    pieces: SyncSender<io::Result<Vec<u8>>>,
    /// Buffers that come back from the reader.
    spare: Receiver<Vec<u8>>,
}

/// The end that is read from. If it is dropped before the end, the writer ends at its next piece.
pub(super) struct Reader {
    pieces: Receiver<io::Result<Vec<u8>>>,
    spare: SyncSender<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
}

/// Makes a pipe.
pub(super) fn pipe() -> (Writer, Reader) {
    let (full, pieces) = sync_channel(PIECES);
    let (spare, empty) = sync_channel(PIECES + 2);
    let writer = Writer {
        pieces: full,
        spare: empty,
    };
    let reader = Reader {
        pieces,
        spare,
        current: Vec::new(),
        at: 0,
    };
    (writer, reader)
}

impl Writer {
    /// Passes on everything that the source has, and its error. Returns at the source's end, at its error, or when the reader is gone.
    pub(super) fn pass_on(self, source: &mut impl Read) {
        loop {
            let mut piece = self.spare.try_recv().unwrap_or_default();
            piece.clear();
            let read = source.by_ref().take(PIECE as u64).read_to_end(&mut piece);
            // The bytes before an error are passed on first.
            if !piece.is_empty() && self.pieces.send(Ok(piece)).is_err() {
                return;
            }
            match read {
                Err(error) => return self.fail(error),
                Ok(0) => return,
                Ok(_) => {}
            }
        }
    }

    /// Passes on an error instead of bytes.
    pub(super) fn fail(self, error: io::Error) {
        // If the reader is gone, the error is not needed.
        let _ = self.pieces.send(Err(error));
    }
}

impl Reader {
    /// Reads and forgets the rest.
    pub(super) fn drain(mut self) -> io::Result<()> {
        while self.next_piece()? {}
        Ok(())
    }

    /// Takes the next piece; returns whether there is one.
    fn next_piece(&mut self) -> io::Result<bool> {
        let Ok(next) = self.pieces.recv() else {
            return Ok(false);
        };
        let empty = std::mem::replace(&mut self.current, next?);
        self.at = 0;
        // There is room for all buffers.
        let _ = self.spare.try_send(empty);
        Ok(true)
    }
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.current.len() {
            if !self.next_piece()? {
                return Ok(0);
            }
        }
        let count = buffer.len().min(self.current.len() - self.at);
        buffer[..count].copy_from_slice(&self.current[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn all_bytes_arrive_in_order_and_then_the_end() {
        let sent: Vec<u8> = (0..3 * PIECE + 7).map(|number| number as u8).collect();
        let (writer, mut reader) = pipe();
        let mut received = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| writer.pass_on(&mut &sent[..]));
            reader.read_to_end(&mut received).unwrap();
        });
        assert_eq!(received, sent);
    }

    #[test]
    fn an_error_comes_after_the_bytes_before_it() {
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::Error::other("the line is cut"))
            }
        }
        let (writer, mut reader) = pipe();
        writer.pass_on(&mut (&b"so far"[..]).chain(Broken));
        let mut received = Vec::new();
        let error = reader.read_to_end(&mut received).unwrap_err();
        assert_eq!(
            (&received[..], error.to_string()),
            (&b"so far"[..], "the line is cut".into())
        );
    }

    #[test]
    fn a_writer_whose_reader_is_gone_ends() {
        let (writer, reader) = pipe();
        drop(reader);
        writer.pass_on(&mut io::repeat(0));
    }
}
