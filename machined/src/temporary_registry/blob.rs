//! A blob on its way to a client: read from the disk piece by piece, compared with its digest, and not sent to its end if it is damaged.
//!
//! ```text
//! disk ──► hash of all bytes ──► the part that is asked for, its last piece held back ──► client
//!                    └── at the end of the blob: is it the digest? ── yes: the last piece ──┘
//!                                                                └─── no: the connection breaks off
//! ```

use std::io::{self, Read as _};
use std::ops::Range;
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
use crate::oci::{CheckedBlob, StoredBlob};

/// The body of an answer.
pub(super) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Bytes of a piece. With two of them under way, and hyper's buffer, some 256 KiB for a connection.
const PIECE: usize = 64 << 10;
/// A client that takes no piece for this long is gone.
const STALLED: Duration = Duration::from_secs(30);

/// A body that reads this part of a blob; `count` is told the bytes that were sent.
pub(super) fn body(
    blob: StoredBlob,
    part: Range<u64>,
    count: impl Fn(u64) + Send + Sync + 'static,
) -> Body {
    let (sender, pieces) = mpsc::channel(1);
    crate::base::task::spawn(send(blob, part, sender));
    let frames = ReceiverStream::new(pieces).map(move |piece: io::Result<Bytes>| {
        let piece = piece?;
        count(piece.len() as u64);
        Ok(Frame::data(piece))
    });
    StreamBody::new(frames).boxed_unsync()
}

async fn send(blob: StoredBlob, part: Range<u64>, to: mpsc::Sender<io::Result<Bytes>>) {
    let digest = blob.digest();
    if let Err(error) = send_pieces(blob, part, &to).await {
        tracing::error!("the blob {digest} is not served to its end: {error}");
        // A client that is gone needs no error.
        let _ = timeout(STALLED, to.send(Err(error))).await;
    }
}

async fn send_pieces(
    blob: StoredBlob,
    part: Range<u64>,
    to: &mpsc::Sender<io::Result<Bytes>>,
) -> io::Result<()> {
    let mut reader = blob.checked();
    let (mut at, mut held_back) = (0_u64, None);
    loop {
        let (back, piece) = read(reader).await?;
        reader = back;
        if piece.is_empty() {
            // The digest is right, else it would have been an error.
            break;
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
    if let Some(last) = held_back {
        passed_on(to, last).await;
    }
    Ok(())
}

/// Passes a piece on; returns whether the client is still there.
async fn passed_on(to: &mpsc::Sender<io::Result<Bytes>>, piece: Bytes) -> bool {
    matches!(timeout(STALLED, to.send(Ok(piece))).await, Ok(Ok(())))
}

/// Reads the next piece; an empty one is the end.
async fn read(mut reader: CheckedBlob) -> io::Result<(CheckedBlob, Bytes)> {
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
