//! A response body that holds its call's place in the quota until the body has ended.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

use instar_base::quota::Permit;

/// A response body together with the place of its call.
pub(super) struct Counted<B> {
    body: B,
    _place: Option<Permit>,
}

impl<B> Counted<B> {
    /// The body of a call that has a place.
    pub(super) fn new(body: B, place: Permit) -> Self {
        Counted {
            body,
            _place: Some(place),
        }
    }

    /// The body of a call that was refused, and so holds no place.
    pub(super) fn free(body: B) -> Self {
        Counted { body, _place: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Counted<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
