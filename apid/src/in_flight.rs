//! The calls in flight on one connection, so that the connection can end without a failed call when this apid hands over to the next one.
//!
//! A client that receives GOAWAY finishes the calls that it has sent. A call that the client is just handing to its connection may be lost:
//! hyper's client, and with it tonic, drops calls that wait to be written when it reads GOAWAY. Two moments are safe, whatever the network
//! and the client's processor add in between:
//!
//! - just before an answer, if the client rests once it has the answer (`pace.rs`): it reads GOAWAY while it waits for the answer, and ends
//!   the connection itself with the answer. A client that asks again at once may have done so before its connection has ended;
//! - when the client has asked nothing for some time.
//!
//! ```text
//!            the order              an answer to a client that rests, nothing asked
//! serving ───────────────▶ looking ─────────────────────────────────────────────────▶ told
//!                             │                                                        ▲
//!                             └────────── no such answer in time: any call ────────────┘
//! ```

use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::grpc_status::{self, Code};
use super::pace::Pace;
use instar_base::lock::Lock as _;

/// Timeout for an answer to a client that rests, or for any question. Clients that ask ten times a second have asked by then.
pub(super) const LULL: Duration = Duration::from_millis(150);
/// Extra time for a client that has asked meanwhile, and may be behind its pace.
const LAST_ANSWER: Duration = Duration::from_millis(500);
/// Extra time for a client that never rested, to ask once more: its call under way is answered.
const ONCE_MORE: Duration = Duration::from_millis(20);
/// Limit on holding an answer back until GOAWAY was sent, which takes no time unless the connection ends meanwhile.
const HELD_BACK: Duration = Duration::from_millis(250);
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
    pace: Mutex<Pace>,
    /// Whether a moment for GOAWAY is looked for.
    looks: AtomicBool,
    /// Notified at a good moment.
    moment: Notify,
    /// Notified when a call begins.
    begun: Notify,
    /// Whether GOAWAY was sent: then streams end.
    told: AtomicBool,
    is_told: Notify,
}

/// A call whose response has not begun.
pub(super) struct Asked(InFlight);

impl InFlight {
    /// Counts a call that begins.
    pub(super) fn begin(&self) -> Asked {
        self.0.asked.fetch_add(1, Relaxed);
        self.0.pace.locked().asks(Instant::now());
        self.0.begun.notify_one();
        Asked(self.clone())
    }

    /// Returns at the first good moment to send GOAWAY, once `draining` is true. [`note_told`](Self::note_told) has to follow.
    pub(super) async fn may_end(&self, mut draining: watch::Receiver<bool>) {
        if draining.wait_for(|draining| *draining).await.is_err() {
            return std::future::pending().await;
        }
        // GOAWAY is sent in any case. Boxed, so that idle connections stay small.
        Box::pin(async {
            let calls = &self.0;
            let before = calls.answered.load(Relaxed);
            calls.looks.store(true, Relaxed);
            if timeout(LULL, calls.moment.notified()).await.is_ok() {
                return;
            }
            let is_asking = calls.asked.load(Relaxed) > 0 || calls.answered.load(Relaxed) != before;
            if !is_asking || timeout(LAST_ANSWER, calls.moment.notified()).await.is_ok() {
                return;
            }
            // No reason to look at the result: after this time one moment is as good as another.
            let _ = timeout(ONCE_MORE, self.has_asked()).await;
        })
        .await;
    }

    /// Returns while a call waits for its answer.
    async fn has_asked(&self) {
        while self.0.asked.load(Relaxed) == 0 {
            self.0.begun.notified().await;
        }
    }

    /// Notes that GOAWAY is the next frame: answers are no longer held back, and responses that would go on end, each once it has delivered
    /// what there is.
    pub(super) fn note_told(&self) {
        self.0.told.store(true, Relaxed);
        self.0.is_told.notify_waiters();
    }

    /// Whether all calls have been answered.
    pub(super) fn is_idle(&self) -> bool {
        self.0.asked.load(Relaxed) == 0 && self.0.open.load(Relaxed) == 0
    }
}

impl Asked {
    /// Lets GOAWAY go before the answer, if it is to be sent and the client rests after the answer.
    pub(super) async fn let_goaway_pass(&self) {
        let calls = &self.0.0;
        let told = calls.is_told.notified();
        let is_alone = calls.asked.load(Relaxed) == 1;
        if !calls.looks.load(Relaxed) || calls.told.load(Relaxed) || !is_alone {
            return;
        }
        if calls.pace.locked().rests_after_answer(Instant::now()) {
            calls.moment.notify_one();
            // If the connection ends, there is nobody to answer.
            let _ = timeout(HELD_BACK, told).await;
        }
    }

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

/// A response body. It ends with `UNAVAILABLE` if the client was told to ask elsewhere and there is nothing to deliver.
pub(super) struct Answer<B> {
    /// `None` once it was ended.
    body: Option<B>,
    /// Made on the first wait: most responses are there at once.
    ending: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    in_flight: InFlight,
}

impl<B> Answer<B> {
    /// Returns once the client was told and this stream was silent from then on.
    fn ending(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let calls = self.in_flight.0.clone();
        Box::pin(async move {
            let told = calls.is_told.notified();
            if !calls.told.load(Relaxed) {
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

    /// A client that asks every `period` ms, or at once if its answer came later; its calls take so many ms. The drain begins with the call
    /// of this number. Returns the number of the call before whose answer the client was told (`None`: between two calls), and the time
    /// from the order to that.
    async fn told(period: u64, calls: &[u64], from: usize) -> (Option<usize>, u128) {
        let in_flight = InFlight::default();
        let (drain, draining) = watch::channel(false);
        let under_way = Mutex::new(None);
        let told = async {
            in_flight.may_end(draining).await;
            in_flight.note_told();
            *under_way.locked()
        };
        let client = async {
            for (number, milliseconds) in calls.iter().enumerate() {
                if number == from {
                    drain.send_replace(true);
                }
                let begin = Instant::now();
                let asked = in_flight.begin();
                *under_way.locked() = Some(number);
                sleep(Duration::from_millis(*milliseconds)).await;
                asked.let_goaway_pass().await;
                *under_way.locked() = None;
                answer(asked);
                tokio::time::sleep_until(begin + Duration::from_millis(period)).await;
            }
        };
        let begin = async {
            let mut order = drain.subscribe();
            order.wait_for(|drains| *drains).await.unwrap();
            Instant::now()
        };
        let (told, begin) = tokio::select! {
            both = async { tokio::join!(told, begin) } => both,
            () = async { client.await; std::future::pending().await } => unreachable!(),
        };
        (told, begin.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_told_just_before_an_answer_after_which_it_rests() {
        assert_eq!(told(100, &[5, 5, 5], 2).await, (Some(2), 5));
        assert_eq!(told(100, &[5], 0).await, (Some(0), 5));
        // Two answers come late, and the client asks at once; after the third it rests.
        assert_eq!(told(100, &[5, 5, 120, 150, 40], 2).await, (Some(4), 310));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_rests_is_told_during_a_call() {
        let (during, after) = told(0, &[7; 200], 10).await;
        assert!(during.is_some());
        assert_eq!(after, (LULL + LAST_ANSWER).as_millis());
        let slow = told(0, &[900, 900, 900], 1).await;
        assert_eq!(slow, (Some(1), (LULL + LAST_ANSWER).as_millis()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_seldom_is_told_between_two_calls() {
        assert_eq!(told(1000, &[5, 5, 5], 1).await, (Some(1), 5));
        let (_drain, draining) = watch::channel(true);
        let in_flight = InFlight::default();
        answer(in_flight.begin());
        let begin = Instant::now();
        in_flight.may_end(draining).await;
        assert_eq!(begin.elapsed(), LULL);
    }

    #[tokio::test(start_paused = true)]
    async fn no_answer_is_held_back_for_long() {
        let (_drain, draining) = watch::channel(true);
        let in_flight = InFlight::default();
        assert!(in_flight.may_end(draining).now_or_never().is_none());
        let asked = in_flight.begin();
        let begin = Instant::now();
        asked.let_goaway_pass().await;
        assert_eq!(begin.elapsed(), HELD_BACK);
        in_flight.note_told();
        asked.let_goaway_pass().await;
        assert_eq!(begin.elapsed(), HELD_BACK);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_goes_on_as_long_as_nobody_drains() {
        let (_drain, draining) = watch::channel(false);
        let in_flight = InFlight::default();
        assert!(in_flight.may_end(draining).now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_tells_what_there_is_and_then_that_it_ends() {
        let in_flight = InFlight::default();
        let frames = stream::iter(["one", "two"])
            .map(|text| Ok::<_, Infallible>(Frame::data(Bytes::from(text))))
            .chain(stream::pending());
        let mut answer = in_flight.begin().answered_by(StreamBody::new(frames));
        in_flight.note_told();
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
