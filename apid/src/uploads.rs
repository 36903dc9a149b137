//! Limits the memory that unfinished requests may take: machined holds a message until it is whole, and callers may leave many of them
//! unfinished.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::flag::Flag;

/// Bytes of each request that are not counted: nearly all requests are smaller than this.
const FREE: usize = 1 << 10;
/// Quota for callers who may bring large messages, for example a machine config, in KiB: a message of the largest size and a little more.
const LARGE: usize = 40 << 10;
/// Quota for callers who may only read, in KiB. It is separate, so they do not delay anybody else.
const SMALL: usize = 4 << 10;

/// The memory for requests; clones share it.
#[derive(Clone)]
pub(super) struct Uploads {
    large: Arc<Semaphore>,
    small: Arc<Semaphore>,
}

/// The quota that a caller's request counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// The quota of callers who may change the node.
    Large,
    /// The quota of all other callers.
    Small,
    /// None: the request is a stream, of which machined takes one message after the other.
    Stream,
}

/// A request body, which ends with an error if the quota is used up.
pub(super) struct Upload<B = Incoming> {
    body: B,
    /// Bytes received.
    sent: usize,
    /// `None` for a stream.
    room: Option<Arc<Semaphore>>,
    held: Option<OwnedSemaphorePermit>,
    overdrawn: Flag,
}

/// Why a body fails before its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum UploadError {
    #[error("too much is being sent at a time")]
    NoRoom,
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

impl Uploads {
    pub(super) fn new() -> Self {
        Uploads {
            large: Arc::new(Semaphore::new(LARGE)),
            small: Arc::new(Semaphore::new(SMALL)),
        }
    }

    /// Wraps a body; it counts against this quota until it is dropped.
    pub(super) fn body<B>(&self, body: B, room: Room) -> Upload<B> {
        let room = match room {
            Room::Large => Some(self.large.clone()),
            Room::Small => Some(self.small.clone()),
            Room::Stream => None,
        };
        Upload {
            body,
            sent: 0,
            room,
            held: None,
            overdrawn: Flag::default(),
        }
    }
}

impl<B> Upload<B> {
    /// A flag that is set if the quota was used up.
    pub(super) fn overdrawn(&self) -> Flag {
        self.overdrawn.clone()
    }

    fn take_room(&mut self, bytes: usize) -> Result<(), UploadError> {
        let Some(room) = &self.room else {
            return Ok(());
        };
        let counted = |sent: usize| sent.saturating_sub(FREE).div_ceil(1 << 10);
        let more = counted(self.sent + bytes) - counted(self.sent);
        self.sent += bytes;
        if more == 0 {
            return Ok(());
        }
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        match (room.clone().try_acquire_many_owned(more), &mut self.held) {
            (Ok(permit), Some(held)) => held.merge(permit),
            (Ok(permit), held) => *held = Some(permit),
            (Err(_), _) => {
                self.overdrawn.set();
                return Err(UploadError::NoRoom);
            }
        }
        Ok(())
    }
}

impl<B> Body for Upload<B>
where
    B: Body<Data = Bytes> + Unpin,
    UploadError: From<B::Error>,
{
    type Data = Bytes;
    type Error = UploadError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UploadError>>> {
        let this = self.get_mut();
        let Some(frame) = ready!(Pin::new(&mut this.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame?;
        if let Some(data) = frame.data_ref() {
            this.take_room(data.len())?;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use http_body_util::{BodyExt as _, Full};

    impl From<std::convert::Infallible> for UploadError {
        fn from(never: std::convert::Infallible) -> Self {
            match never {}
        }
    }

    fn upload(uploads: &Uploads, kib: usize, room: Room) -> Upload<Full<Bytes>> {
        uploads.body(Full::new(vec![0; kib << 10].into()), room)
    }

    #[tokio::test]
    async fn what_is_not_whole_takes_room_that_others_have_not() {
        let uploads = Uploads::new();
        let mut first = upload(&uploads, 3 << 10, Room::Small);
        first.frame().await.unwrap().unwrap();
        // All of it was received, and it is still held.
        let second = upload(&uploads, 2 << 10, Room::Small);
        let overdrawn = second.overdrawn();
        assert!(matches!(second.collect().await, Err(UploadError::NoRoom)));
        assert!(overdrawn.is_so());
        assert!(!first.overdrawn().is_so());
        // The quotas of large messages and of other calls are not affected.
        let config = upload(&uploads, 32 << 10, Room::Large).collect().await;
        assert_eq!(config.unwrap().to_bytes().len(), 32 << 20);
        let question = upload(&uploads, 1, Room::Small).collect().await;
        assert!(question.is_ok());
        // A stream takes none, however long it is.
        let stream = upload(&uploads, 50 << 10, Room::Stream).collect().await;
        assert!(stream.is_ok());
        drop(first);
        let third = upload(&uploads, 4 << 10, Room::Small).collect().await;
        assert!(third.is_ok());
    }
}
