//! A request body on its way to machined or to another node. It ends with an error once its caller's credentials are no longer valid, so
//! that a call which began in time and ends too late fails.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::flag::Flag;

/// Whether the credentials of one call's caller are still valid.
#[derive(Clone, Default)]
pub(super) struct Revocation {
    /// The flag of the caller's connection.
    lost: Flag,
    /// Set if the request was cut off for that reason.
    cut_off: Flag,
}

impl Revocation {
    /// For a call on a connection whose flag this is.
    pub(super) fn by(lost: &Flag) -> Self {
        Revocation {
            lost: lost.clone(),
            cut_off: Flag::default(),
        }
    }

    /// Whether the request was cut off before its end.
    pub(super) fn has_cut_off(&self) -> bool {
        self.cut_off.is_so()
    }

    /// A body that ends with an error once the caller's credentials are no longer valid.
    pub(super) fn guard<B>(&self, body: B) -> Revocable<B> {
        Revocable {
            body,
            revocation: self.clone(),
        }
    }
}

/// The caller's credentials are no longer valid.
#[derive(Debug, thiserror::Error)]
#[error("the certificate is no longer accepted")]
pub(super) struct Revoked;

/// A body that ends with an error once the caller's credentials are no longer valid.
pub(super) struct Revocable<B> {
    body: B,
    revocation: Revocation,
}

impl<B> Body for Revocable<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = self.get_mut();
        let frame = ready!(Pin::new(&mut this.body).poll_frame(context));
        // Not even the end is passed on: it would complete the request.
        if this.revocation.lost.is_so() {
            this.revocation.cut_off.set();
            return Poll::Ready(Some(Err(Revoked.into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
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
    use futures_util::{FutureExt as _, stream};
    use http_body_util::{BodyExt as _, StreamBody};

    #[tokio::test]
    async fn a_request_that_is_finished_too_late_is_none() {
        for frames_before in 0..3 {
            let lost = Flag::default();
            let revocation = Revocation::by(&lost);
            let frames =
                [b"on", b"e.".as_slice()].map(|data| Frame::data(Bytes::from_static(data)));
            let body = StreamBody::new(stream::iter(frames.map(Ok::<_, std::convert::Infallible>)));
            let mut body = revocation.guard(body);
            for _ in 0..frames_before {
                body.frame().now_or_never().unwrap().unwrap().unwrap();
            }
            lost.set();
            let end = body.frame().now_or_never().unwrap();
            let error = end.unwrap().unwrap_err();
            assert!(error.is::<Revoked>(), "after {frames_before}: {error}");
            assert!(revocation.has_cut_off());
        }
    }

    #[tokio::test]
    async fn a_request_in_time_is_left_alone() {
        let lost = Flag::default();
        let revocation = Revocation::by(&lost);
        let body = revocation.guard(http_body_util::Full::new(Bytes::from_static(b"one")));
        assert_eq!(body.collect().await.unwrap().to_bytes(), "one");
        lost.set();
        assert!(!revocation.has_cut_off());
    }
}
