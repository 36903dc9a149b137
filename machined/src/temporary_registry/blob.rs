//! A blob on its way to a client: read from the disk piece by piece, compared with its digest, and not sent to its end if it is damaged.
//!
//! ```text
//! disk ──► hash of all bytes ──► the part that is asked for, its last piece held back ──► client
//!                    └── at the end of the blob: is it the digest? ── yes: the last piece ──┘
//!                                                                └─── no: the connection breaks off
//! ```
//!
//! A client that goes on with a large blob near its end would wait in silence for all bytes before: of a blob that was compared as a whole in
//! this serving, only the part is read. A client that is gone ends the reading; one that comes back for its part goes on with it.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::base::blocking_io;
use crate::base::lock::Lock as _;
use crate::oci::{CheckedBlob, StoredBlob};
use crate::values::Digest;

/// The body of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Bytes of a piece. With two of them under way, and hyper's buffer, some 256 KiB for a connection.
const PIECE: usize = 64 << 10;
/// A client that takes no piece for this long is gone.
const STALLED: Duration = Duration::from_secs(30);

/// The blobs whose whole content was compared with their digests in this serving, and a blob that is compared in part; clones share them.
#[derive(Clone, Default)]
pub(super) struct Compared(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    whole: BTreeSet<Digest>,
    /// The last one alone: its file is open.
    halfway: Option<Halfway>,
}

/// A blob whose first bytes were compared for a client that has gone before its part came.
struct Halfway {
    digest: Digest,
    reader: CheckedBlob,
    at: u64,
}

impl fmt::Debug for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Compared")
    }
}

impl Compared {
    fn has(&self, digest: Digest) -> bool {
        self.0.locked().whole.contains(&digest)
    }

    fn add(&self, digest: Digest) {
        self.0.locked().whole.insert(digest);
    }

    #[cfg(test)]
    pub(super) fn is_halfway(&self) -> bool {
        self.0.locked().halfway.is_some()
    }

    fn leave(&self, halfway: Halfway) {
        self.0.locked().halfway = Some(halfway);
    }

    /// Takes the reader of a blob that has not come past the beginning of this part.
    fn go_on(&self, digest: Digest, part: &Range<u64>) -> Option<(CheckedBlob, u64)> {
        let mut state = self.0.locked();
        let left = state
            .halfway
            .take_if(|left| left.digest == digest && left.at <= part.start)?;
        Some((left.reader, left.at))
    }
}

/// A body that reads this part of a blob; `count` is told the bytes that were sent.
pub(super) fn body(
    blob: StoredBlob,
    part: Range<u64>,
    compared: Compared,
    count: impl Fn(u64) + Send + Sync + 'static,
) -> Body {
    let (sender, pieces) = mpsc::channel(1);
    crate::base::task::spawn(send(blob, part, compared, sender));
    let frames = ReceiverStream::new(pieces).map(move |piece: io::Result<Bytes>| {
        let piece = piece?;
        count(piece.len() as u64);
        Ok(Frame::data(piece))
    });
    StreamBody::new(frames).boxed_unsync()
}

async fn send(
    blob: StoredBlob,
    part: Range<u64>,
    compared: Compared,
    to: mpsc::Sender<io::Result<Bytes>>,
) {
    let digest = blob.digest();
    let is_part = part != (0..blob.size());
    let sent = match is_part && compared.has(digest) {
        true => send_part(blob, part, &to).await,
        false => send_compared(blob, part, &compared, &to).await,
    };
    if let Err(error) = sent {
        tracing::error!("the blob {digest} is not served to its end: {error}");
        // A client that is gone needs no error.
        let _ = timeout(STALLED, to.send(Err(error))).await;
    }
}

/// Sends a part of a blob that was compared before: nothing else of it is read.
async fn send_part(
    blob: StoredBlob,
    part: Range<u64>,
    to: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let mut reader = blob.part(part)?;
    loop {
        let (back, piece) = read(reader).await?;
        reader = back;
        if piece.is_empty() || !passed_on(to, piece).await {
            return Ok(());
        }
    }
}

/// Reads the whole blob, compares it, and sends a part of it.
async fn send_compared(
    blob: StoredBlob,
    part: Range<u64>,
    compared: &Compared,
    to: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let digest = blob.digest();
    let begun = compared.go_on(digest, &part);
    let (mut reader, mut at) = begun.unwrap_or_else(|| (blob.checked(), 0));
    let mut held_back = None;
    // The receiver is the answer's body, which ends with the connection: nothing more is read for a client that is gone.
    while !to.is_closed() {
        let (back, piece) = read(reader).await?;
        reader = back;
        if piece.is_empty() {
            // The digest is right, else it would have been an error.
            compared.add(digest);
            if let Some(last) = held_back {
                passed_on(to, last).await;
            }
            return Ok(());
        }
        let end = at + piece.len() as u64;
        let within = |position: u64| {
            let offset = position.clamp(at, end) - at;
            usize::try_from(offset).unwrap_or(piece.len())
        };
        let wanted = piece.slice(within(part.start)..within(part.end));
        at = end;
        if wanted.is_empty() {
            continue;
        }
        if let Some(before) = held_back.replace(wanted)
            && !passed_on(to, before).await
        {
            return Ok(());
        }
    }
    if 0 < at && at <= part.start {
        compared.leave(Halfway { digest, reader, at });
    }
    Ok(())
}

/// Passes a piece on; returns whether the client is still there.
async fn passed_on(to: &mpsc::Sender<io::Result<Bytes>>, piece: Bytes) -> bool {
    matches!(timeout(STALLED, to.send(Ok(piece))).await, Ok(Ok(())))
}

/// Reads the next piece; an empty one is the end.
async fn read<R: Read + Send + 'static>(mut reader: R) -> io::Result<(R, Bytes)> {
    let reading = blocking_io::within(blocking_io::ANSWER, move || {
        let mut piece = vec![0; PIECE];
        let mut length = 0;
        while let Some(rest) = piece.get_mut(length..).filter(|rest| !rest.is_empty()) {
            match reader.read(rest)? {
                0 => break,
                count => length += count,
            }
        }
        piece.truncate(length);
        Ok((reader, Bytes::from(piece)))
    });
    reading.await.map_err(io::Error::other)?
}
