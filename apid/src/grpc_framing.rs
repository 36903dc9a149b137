//! The framing of gRPC messages in a body: a byte that says whether the message is compressed, four of length, big endian, and the message.
//!
//! Source: the gRPC over HTTP/2 protocol description, "Length-Prefixed-Message".

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// Length of the prefix: the compression byte and the length.
const PREFIX: usize = 5;

/// Why a body is not read any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum MessageError {
    /// The message is compressed, though we never said that we accept compression.
    #[error("a message is compressed")]
    Compressed,
    /// The message is larger than the limit.
    #[error("a message of {0} bytes is too large")]
    TooLarge(usize),
}

/// Takes a body in pieces as they come, and returns the messages in it.
#[derive(Debug)]
pub(super) struct Messages {
    left: BytesMut,
    /// Size limit of a message, in bytes.
    limit: usize,
}

impl Messages {
    /// Accepts messages of at most `limit` bytes each.
    pub(super) fn of(limit: usize) -> Self {
        Messages {
            left: BytesMut::new(),
            limit,
        }
    }

    /// Adds the next piece of the body.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.left.extend_from_slice(piece);
    }

    /// The next message; `None` until all of it has come.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, MessageError> {
        let Some((&compressed, mut length)) = self.left.get(..PREFIX).and_then(<[u8]>::split_first)
        else {
            return Ok(None);
        };
        if compressed != 0 {
            return Err(MessageError::Compressed);
        }
        let length = usize::try_from(length.get_u32()).unwrap_or(usize::MAX);
        if length > self.limit {
            return Err(MessageError::TooLarge(length));
        }
        if self.left.len() < PREFIX + length {
            return Ok(None);
        }
        self.left.advance(PREFIX);
        Ok(Some(self.left.split_to(length).freeze()))
    }
}

/// A message with its prefix, as a body carries it.
pub(super) fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX + message.len());
    bytes.put_u8(0);
    // No message here is much larger than the interface's limit of 32 MiB.
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.put_slice(message);
    bytes.freeze()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn messages_come_whole_however_they_were_cut() {
        let body = [framed(b"one"), framed(b""), framed(&[7; 300])].concat();
        for size in [1, 2, 5, 7, body.len()] {
            let mut messages = Messages::of(300);
            let mut seen = Vec::new();
            for piece in body.chunks(size) {
                messages.push(piece);
                while let Some(message) = messages.next().unwrap() {
                    seen.push(message);
                }
            }
            assert_eq!(seen, [&b"one"[..], b"", &[7; 300]], "in pieces of {size}");
        }
    }

    #[test]
    fn what_cannot_be_passed_on_is_an_error() {
        let mut messages = Messages::of(300);
        messages.push(&[1, 0, 0, 0, 0]);
        assert_eq!(messages.next(), Err(MessageError::Compressed));
        let mut messages = Messages::of(300);
        messages.push(&[0, 0, 0, 1, 45]);
        assert_eq!(messages.next(), Err(MessageError::TooLarge(301)));
    }
}
