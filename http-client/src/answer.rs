//! A response, read piece by piece or whole, within limits of time and size.

use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderMap;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use crate::{HttpError, Place};

/// Timeout for the head of a response, and between two pieces of its body.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);
/// Timeout for a whole document, which has some KiB.
pub(crate) const DOCUMENT: Duration = Duration::from_secs(120);
/// The lowest accepted speed in bytes per second, and the time over which it is measured. Without it a slow response would never end.
pub const SLOWEST: u64 = 1024;
const COUNTED_OVER: Duration = Duration::from_secs(60);

/// The speed of a response. Only time spent waiting for it counts: unpacking may take any time.
#[derive(Debug, Default)]
struct Pace {
    bytes: u64,
    waited: Duration,
}

impl Pace {
    /// Counts a piece. `false` if too few bytes came within the last minute of waiting.
    fn holds_with(&mut self, bytes: usize, waited: Duration) -> bool {
        self.bytes += bytes as u64;
        self.waited += waited;
        if self.waited < COUNTED_OVER {
            return true;
        }
        let Pace { bytes, waited } = std::mem::take(self);
        bytes >= SLOWEST * waited.as_secs()
    }
}

/// A response and the server that sent it.
#[derive(Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// Host and port of the server that answered, the last one after redirections.
    pub authority: String,
    /// The place of the server that was asked first.
    pub origin: Place,
    body: Incoming,
    pace: Pace,
}

impl Answer {
    pub(crate) fn new(response: Response<Incoming>, authority: String, origin: Place) -> Self {
        let (head, body) = response.into_parts();
        Answer {
            status: head.status,
            headers: head.headers,
            authority,
            origin,
            body,
            pace: Pace::default(),
        }
    }

    /// The next piece of the body; `None` at its end.
    pub async fn piece(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            let asked = Instant::now();
            let Ok(frame) = timeout(SILENCE, self.body.frame()).await else {
                return Err(HttpError::Silent {
                    authority: self.authority.clone(),
                });
            };
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|source| HttpError::Broken {
                authority: self.authority.clone(),
                source,
            })?;
            let data = frame.into_data().unwrap_or_default();
            if !self.pace.holds_with(data.len(), asked.elapsed()) {
                return Err(HttpError::TooSlow {
                    authority: self.authority.clone(),
                });
            }
            if !data.is_empty() {
                return Ok(Some(data));
            }
        }
    }

    /// The whole body, if it is not longer than the limit.
    pub async fn document(&mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
        let late = HttpError::Late {
            authority: self.authority.clone(),
        };
        timeout(DOCUMENT, self.all_pieces(limit))
            .await
            .unwrap_or(Err(late))
    }

    async fn all_pieces(&mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
        let mut document = Vec::new();
        while let Some(piece) = self.piece().await? {
            if document.len() + piece.len() > limit {
                return Err(HttpError::TooLong {
                    authority: self.authority.clone(),
                    limit,
                });
            }
            document.extend_from_slice(&piece);
        }
        Ok(document)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use http::Request;
    use http_body_util::Full;
    use hyper_util::rt::TokioIo;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A response whose body comes as `pieces` of this many bytes, each after a pause. The test controls the time.
    async fn answer(pieces: Vec<(Duration, usize)>) -> Answer {
        let (client, mut server) = tokio::io::duplex(1 << 16);
        tokio::spawn(async move {
            // The client may have ended: its side of the test reports it.
            let _ = server.read(&mut [0; 1024]).await;
            let _ = server
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n")
                .await;
            for (pause, bytes) in pieces {
                tokio::time::sleep(pause).await;
                if server.write_all(&vec![b'x'; bytes]).await.is_err() {
                    return;
                }
            }
            std::future::pending::<()>().await;
        });
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(client))
                .await
                .unwrap();
        tokio::spawn(connection);
        let answer = sender.send_request(Request::default()).await.unwrap();
        Answer::new(answer, "r:5000".to_owned(), Place::Elsewhere)
    }

    /// The error at its end, and the time until then.
    async fn end(mut answer: Answer) -> (HttpError, u64) {
        let begun = Instant::now();
        loop {
            match answer.piece().await {
                Ok(piece) => assert!(piece.is_some()),
                Err(error) => return (error, begun.elapsed().as_secs()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_only_drips_ends() {
        let seconds = Duration::from_secs;
        let (error, after) = end(answer(vec![(seconds(29), 1); 100]).await).await;
        assert!(matches!(error, HttpError::TooSlow { .. }), "{error}");
        assert!(error.is_unreachable() && !error.is_transient());
        assert_eq!(after, 87);
        // The silence timeout is shorter than a minute, so it ends the response.
        let (error, after) = end(answer(vec![(seconds(1), 100_000)]).await).await;
        assert!(matches!(error, HttpError::Silent { .. }), "{error}");
        assert_eq!(after, 31);
        // Slow, but fast enough for ten minutes.
        let (error, after) = end(answer(vec![(seconds(20), 21_000); 30]).await).await;
        assert!(matches!(error, HttpError::Silent { .. }), "{error}");
        assert_eq!(after, 630);
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_is_not_spent_waiting_does_not_count() {
        let seconds = Duration::from_secs;
        let mut answer = answer(vec![(seconds(1), 100), (seconds(20), 100)]).await;
        assert!(answer.piece().await.unwrap().is_some());
        // Time for unpacking does not count.
        tokio::time::sleep(seconds(200)).await;
        assert!(answer.piece().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_document_has_a_time_limit() {
        let begun = Instant::now();
        let mut answer = answer(vec![(Duration::from_secs(1), 2000); 1000]).await;
        let error = answer.document(1 << 20).await.unwrap_err();
        assert!(matches!(error, HttpError::Late { .. }), "{error}");
        assert_eq!(begun.elapsed().as_secs(), 120);
    }
}
