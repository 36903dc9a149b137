//! The calls in flight on one connection, so that the connection can end without a failed call when this apid hands over to the next one.
//!
//! A client that receives GOAWAY finishes the calls that it has sent. A call that the client is just handing to its connection may be lost:
//! hyper's client, and with it tonic, drops calls that wait to be written when GOAWAY arrives. No order of frames helps against that, but
//! the moment does: a client that has its answer and did not ask again at once has nothing to send. (A client whose answer came late is
//! behind its own pace and asks again at once: the answer alone is no such moment.) Such a client ends the connection itself as soon as it
//! receives GOAWAY.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::grpc_status::{self, Code};

/// Timeout for a moment at which the client has nothing to send; then the connection ends. Clients that ask ten times a second have asked
/// by then.
pub(super) const LULL: Duration = Duration::from_millis(150);
/// Extra time for a client that has asked meanwhile: it may be handing over its next call as the answer comes.
const LAST_ANSWER: Duration = Duration::from_millis(500);
/// A client that has not asked again for this long after its answer is not sending calls in a row.
const QUIET: Duration = Duration::from_millis(10);
/// Time for GOAWAY to reach the client; a call of the client may cross it.
pub(super) const FAREWELL: Duration = Duration::from_millis(300);
/// A stream that was silent for this long has delivered all that there was.
const SILENCE: Duration = Duration::from_millis(20);

/// The calls of one connection; clones share them. It is small, as there may be thousands of connections.
#[derive(Clone, Default)]
pub(super) struct InFlight(Arc<Calls>);

#[derive(Default)]
struct Calls {
    /// Calls whose response has not begun.
    asked: AtomicUsize,
    /// Responses that have begun and not ended.
    open: AtomicUsize,
    /// Number of responses that have ended.
    answered: AtomicUsize,
    /// Notified at the end of each response.
    answer_ended: Notify,
    /// Whether streams are to end.
    end: AtomicBool,
    ends: Notify,
}

/// A call whose response has not begun.
pub(super) struct Asked(InFlight);

impl InFlight {
    /// Counts a call that begins.
    pub(super) fn begin(&self) -> Asked {
        self.0.asked.fetch_add(1, Relaxed);
        Asked(self.clone())
    }

    /// Returns at the first good moment to send GOAWAY, once `draining` is true.
    pub(super) async fn may_end(&self, mut draining: watch::Receiver<bool>) {
        if draining.wait_for(|draining| *draining).await.is_err() {
            return std::future::pending().await;
        }
        // GOAWAY is sent in any case. Boxed, so that idle connections stay small.
        Box::pin(async {
            let before = self.0.answered.load(Relaxed);
            let is_quiet = timeout(LULL, self.quiet_after_an_answer()).await.is_ok();
            // A client that is behind its pace may be between two calls right now.
            let is_asking =
                || self.0.asked.load(Relaxed) > 0 || self.0.answered.load(Relaxed) != before;
            if !is_quiet && is_asking() {
                // No reason to look at the result: after this time one moment is as good as another.
                let _ = timeout(LAST_ANSWER, self.quiet_after_an_answer()).await;
            }
        })
        .await;
    }

    async fn quiet_after_an_answer(&self) {
        let before = self.0.answered.load(Relaxed);
        loop {
            self.0.answer_ended.notified().await;
            let answered = self.0.answered.load(Relaxed);
            if answered == before {
                continue;
            }
            sleep(QUIET).await;
            let asked_nothing = self.0.answered.load(Relaxed) == answered;
            if asked_nothing && self.0.asked.load(Relaxed) == 0 {
                return;
            }
        }
    }

    /// Whether all calls have been answered.
    pub(super) fn is_idle(&self) -> bool {
        self.0.asked.load(Relaxed) == 0 && self.0.open.load(Relaxed) == 0
    }

    /// Ends the responses that would go on, each once it has delivered what there is.
    pub(super) fn end_streams(&self) {
        self.0.end.store(true, Relaxed);
        self.0.ends.notify_waiters();
    }
}

impl Asked {
    /// Counts the begin of the response; returns its body.
    pub(super) fn answered_by<B>(self, body: B) -> Answer<B> {
        self.0.0.open.fetch_add(1, Relaxed);
        Answer {
            body: Some(body),
            ending: None,
            in_flight: self.0.clone(),
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.0.asked.fetch_sub(1, Relaxed);
    }
}

/// A response body. It ends with `UNAVAILABLE` if streams are to end and it has nothing to deliver.
pub(super) struct Answer<B> {
    /// `None` once it was ended.
    body: Option<B>,
    /// Made on the first wait: most responses are there at once.
    ending: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    in_flight: InFlight,
}

impl<B> Answer<B> {
    /// Returns once streams are to end and this one was silent from then on.
    fn ending(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let calls = self.in_flight.0.clone();
        Box::pin(async move {
            let told = calls.ends.notified();
            if !calls.end.load(Relaxed) {
                told.await;
            }
            sleep(SILENCE).await;
        })
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Answer<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let Some(body) = &mut this.body else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(context) {
            this.ending = None;
            return Poll::Ready(frame);
        }
        let mut ending = this.ending.take().unwrap_or_else(|| this.ending());
        if ending.as_mut().poll(context).is_pending() {
            this.ending = Some(ending);
            return Poll::Pending;
        }
        this.body = None;
        let mut trailers = HeaderMap::new();
        trailers.insert(
            grpc_status::STATUS,
            HeaderValue::from(Code::Unavailable as u16),
        );
        if let Some(message) = grpc_status::message(instar_api::CHANGES_VERSION) {
            trailers.insert(grpc_status::MESSAGE, message);
        }
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let body = self.body.as_ref();
        body.map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B> Drop for Answer<B> {
    fn drop(&mut self) {
        let calls = &self.in_flight.0;
        calls.open.fetch_sub(1, Relaxed);
        calls.answered.fetch_add(1, Relaxed);
        calls.answer_ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http_body_util::{BodyExt as _, Full, StreamBody};
    use std::convert::Infallible;

    fn answer(asked: Asked) {
        drop(asked.answered_by(Full::new(Bytes::new())));
    }

    /// The time in milliseconds after which a connection with these calls and answers may end.
    async fn ends_after(of: impl AsyncFnOnce(InFlight)) -> u128 {
        let in_flight = InFlight::default();
        // An earlier answer says nothing about the client's present calls.
        answer(in_flight.begin());
        let (_drain, draining) = watch::channel(true);
        let begin = tokio::time::Instant::now();
        let end = async {
            in_flight.may_end(draining).await;
            begin.elapsed().as_millis()
        };
        let (ended, ()) = tokio::join!(end, of(in_flight.clone()));
        ended
    }

    fn milliseconds(number: u64) -> tokio::time::Sleep {
        sleep(Duration::from_millis(number))
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_ends_when_its_client_is_quiet_after_an_answer() {
        let at_a_pace = ends_after(async |in_flight| {
            let (first, second) = (in_flight.begin(), in_flight.begin());
            milliseconds(20).await;
            answer(first);
            milliseconds(30).await;
            answer(second);
        });
        assert_eq!(at_a_pace.await, 50 + QUIET.as_millis());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_again_at_once_is_waited_for() {
        let late_at_first = ends_after(async |in_flight| {
            for _ in 0..3 {
                let asked = in_flight.begin();
                milliseconds(30).await;
                answer(asked);
                milliseconds(2).await;
            }
        });
        // The last of its three answers came after 94 ms.
        assert_eq!(late_at_first.await, 94 + QUIET.as_millis());
        let never_quiet = ends_after(async |in_flight| {
            for _ in 0..1000 {
                let asked = in_flight.begin();
                milliseconds(2).await;
                answer(asked);
            }
        });
        assert_eq!(never_quiet.await, (LULL + LAST_ANSWER).as_millis());
    }

    /// Its first moment of rest comes after the lull, and it is between two calls when the lull ends.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_behind_its_pace_is_waited_for_until_it_rests() {
        let behind = ends_after(async |in_flight| {
            for _ in 0..12 {
                let asked = in_flight.begin();
                milliseconds(10).await;
                answer(asked);
                milliseconds(9).await;
            }
        });
        // The eighth answer was 7 ms old when the lull ended; the last one comes after 11 × 19 + 10 ms.
        assert_eq!(behind.await, 219 + QUIET.as_millis());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_long_is_answered_before_its_client_is_told() {
        let slow = ends_after(async |in_flight| {
            let asked = in_flight.begin();
            milliseconds(400).await;
            answer(asked);
        });
        assert_eq!(slow.await, 400 + QUIET.as_millis());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_goes_on_as_long_as_nobody_drains() {
        let (_drain, draining) = watch::channel(false);
        let in_flight = InFlight::default();
        assert!(in_flight.may_end(draining).now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_asks_nothing_ends_after_a_lull() {
        let (_drain, draining) = watch::channel(true);
        let begin = tokio::time::Instant::now();
        InFlight::default().may_end(draining).await;
        assert_eq!(begin.elapsed().as_millis(), LULL.as_millis());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_tells_what_there_is_and_then_that_it_ends() {
        let in_flight = InFlight::default();
        let frames = stream::iter(["one", "two"])
            .map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from(text))))
            .chain(stream::pending());
        let mut answer = in_flight.begin().answered_by(StreamBody::new(frames));
        in_flight.end_streams();
        for expected in ["one", "two"] {
            let frame = answer.frame().await.unwrap().unwrap();
            assert_eq!(frame.into_data().unwrap(), expected);
        }
        let end = answer.frame().await.unwrap().unwrap();
        assert_eq!(end.into_trailers().unwrap()["grpc-status"], "14");
        assert!(answer.frame().await.is_none());
        assert!(answer.is_end_stream());
        assert!(!in_flight.is_idle());
        drop(answer);
        assert!(in_flight.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_goes_on_as_long_as_nothing_ends() {
        let frames = stream::pending::<Result<Frame<Bytes>, Infallible>>();
        let mut answer = InFlight::default()
            .begin()
            .answered_by(StreamBody::new(frames));
        let waited = timeout(Duration::from_secs(3600), answer.frame()).await;
        assert!(waited.is_err());
    }
}
