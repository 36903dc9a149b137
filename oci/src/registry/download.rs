//! Downloads one blob from a registry to the thread that unpacks or stores it, and resumes after a broken connection.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use instar_http_client::SLOWEST;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::RegistryClient;
use super::error::{RegistryError, RequestError};
use super::pace::Waiting;
use crate::manifest::Layer;
use crate::registries::Endpoint;
use instar_values::ImageReference;

/// Number of pieces between network and unpacking. With hyper's buffer, some 256 KiB.
const PIECES: usize = 4;
/// Limit on interruptions of a download, even if each attempt gets a little further.
const MOST_BREAKS: u32 = 50;

/// The reading end. A plain `Read` that blocks; it ends early when the network end is given up, and the layer is then refused as truncated.
pub(crate) struct Download {
    pieces: mpsc::Receiver<io::Result<Bytes>>,
    current: Bytes,
}

impl Download {
    /// The next piece; `None` at the end.
    pub(crate) fn piece(&mut self) -> io::Result<Option<Bytes>> {
        self.pieces.blocking_recv().transpose()
    }
}

impl Read for Download {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.piece()? {
                Some(piece) => self.current = piece,
                None => return Ok(0),
            }
        }
        let count = self.current.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.current.split_to(count));
        Ok(count)
    }
}

/// The network end.
pub(crate) struct Upstream {
    pieces: mpsc::Sender<io::Result<Bytes>>,
    /// The pulls that wait for this blob.
    waiting: Arc<Waiting>,
}

impl Upstream {
    /// Sends an error in the place of the next piece.
    pub(crate) async fn fail(&self, error: io::Error) {
        // If the reader is gone, it has failed first.
        let _ = self.pieces.send(Err(error)).await;
    }
}

/// For a source that is read in a thread.
impl Upstream {
    /// Sends the next piece; returns whether the reader is still there.
    pub(crate) fn send_blocking(&self, piece: Bytes) -> bool {
        self.pieces.blocking_send(Ok(piece)).is_ok()
    }

    /// Sends an error in the place of the next piece.
    pub(crate) fn fail_blocking(&self, error: io::Error) {
        // If the reader is gone, it has failed first.
        let _ = self.pieces.blocking_send(Err(error));
    }
}

impl Download {
    /// A transfer that nobody else waits for.
    pub(crate) fn channel() -> (Upstream, Download) {
        Download::channel_for(Arc::default())
    }

    /// A transfer of a blob that other pulls may come to wait for.
    pub(crate) fn channel_for(waiting: Arc<Waiting>) -> (Upstream, Download) {
        let (sender, pieces) = mpsc::channel(PIECES);
        (
            Upstream {
                pieces: sender,
                waiting,
            },
            Download {
                pieces,
                current: Bytes::new(),
            },
        )
    }
}

/// How far a download has come.
#[derive(Debug, Clone, Copy, Default)]
struct Way {
    /// The position in the blob, in bytes.
    offset: u64,
    /// Bytes that registries have sent, those that were here before included.
    sent: u64,
    /// Time spent waiting for registries. Unpacking and the pull's own limit on its bandwidth may take any time.
    waited: Duration,
}

impl Way {
    /// Whether the download has got further since then, at the lowest speed at least. The transport ends an answer that stays below that speed for a
    /// minute; one that breaks off before and has brought a few bytes is no reason to ask the same registry again and again either.
    fn got_further_since(&self, before: &Way) -> bool {
        let sent = u128::from(self.sent - before.sent);
        let waited = (self.waited - before.waited).as_millis();
        self.offset > before.offset && sent * 1000 >= u128::from(SLOWEST) * waited
    }

    /// Waits for a registry, and counts the time.
    async fn wait<T>(&mut self, answer: impl Future<Output = T>) -> T {
        let asked = Instant::now();
        let answer = answer.await;
        self.waited += asked.elapsed();
        answer
    }
}

/// The end of an attempt at one endpoint.
enum Ended {
    /// The registry has sent everything.
    Complete,
    /// The reader is gone.
    Unwanted,
}

impl RegistryClient {
    /// Sends a layer's blob, from this position on, through the channel, from the first endpoint that has it. Errors go through the
    /// channel as well: the reader reports them.
    pub(crate) async fn download(
        &self,
        reference: &ImageReference,
        layer: &Layer,
        from: u64,
        upstream: Upstream,
        arrived: &(dyn Fn(u64) + Send + Sync),
    ) {
        let mut round = self.round(reference);
        let mut way = Way {
            offset: from,
            ..Way::default()
        };
        while let Some(turn) = round.turn() {
            let endpoint = &turn.endpoint;
            let ended = self
                .download_from(endpoint, reference, layer, &upstream, &mut way, arrived)
                .await;
            match ended {
                Ok(Ended::Complete | Ended::Unwanted) => return,
                Err(error) => _ = round.failed(turn, error),
            }
        }
        let error = RegistryError {
            reference: reference.at(layer.digest),
            tried: round.into_tried(),
        };
        upstream.fail(io::Error::other(error)).await;
    }

    async fn download_from(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        layer: &Layer,
        upstream: &Upstream,
        way: &mut Way,
        arrived: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Ended, RequestError> {
        let path = format!("{}/blobs/{}", reference.repository(), layer.digest);
        let mut failed_in_a_row = 0;
        let mut breaks = 0;
        // The last time that the download got further, and not only dripped.
        let mut progress = Instant::now();
        loop {
            let before = *way;
            let error = match self
                .attempt(endpoint, reference, &path, upstream, way, arrived)
                .await
            {
                Ok(ended) => return Ok(ended),
                // It broke off behind the last byte. No registry has a range from there on, and the digest decides.
                Err(_) if way.offset >= layer.size => return Ok(Ended::Complete),
                Err(error) => error,
            };
            breaks += 1;
            if way.got_further_since(&before) {
                (failed_in_a_row, progress) = (0, Instant::now());
            }
            failed_in_a_row += 1;
            match self.delay(endpoint, failed_in_a_row, progress.elapsed()) {
                Some(delay) if error.is_transient() && breaks < MOST_BREAKS => {
                    tokio::time::sleep(delay).await
                }
                _ => {
                    return Err(match self.noted(endpoint, error) {
                        RequestError::Http(source) if way.offset > 0 => RequestError::Interrupted {
                            at: way.offset,
                            source,
                        },
                        other => other,
                    });
                }
            }
        }
    }

    async fn attempt(
        &self,
        endpoint: &Endpoint,
        reference: &ImageReference,
        path: &str,
        upstream: &Upstream,
        way: &mut Way,
        arrived: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<Ended, RequestError> {
        let asking = self.get(endpoint, reference, path, "*/*", way.offset);
        let mut answer = way.wait(asking).await?;
        // A registry without support for ranges starts again; the bytes that are already there are skipped.
        let mut skip = if answer.status == StatusCode::PARTIAL_CONTENT {
            0
        } else {
            way.offset
        };
        while let Some(mut piece) = way.wait(answer.piece()).await? {
            way.sent += piece.len() as u64;
            // What is not read yet waits at the registry: the kernel takes no more than its buffer.
            if let Some(pace) = &self.pace {
                upstream.waiting.took(pace, piece.len() as u64).await;
            }
            let known = usize::try_from(skip).unwrap_or(usize::MAX).min(piece.len());
            skip -= known as u64;
            let piece = piece.split_off(known);
            if piece.is_empty() {
                continue;
            }
            let length = piece.len() as u64;
            if upstream.pieces.send(Ok(piece)).await.is_err() {
                return Ok(Ended::Unwanted);
            }
            way.offset += length;
            arrived(length);
        }
        Ok(Ended::Complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drip_gets_no_further_and_a_modem_does() {
        let way = |offset, sent, seconds| Way {
            offset,
            sent,
            waited: Duration::from_secs(seconds),
        };
        let before = way(1000, 1000, 100);
        for (name, after, expected) in [
            ("nothing came", before, false),
            ("nothing new came", way(1000, 2000, 100), false),
            ("one byte each 20 s", way(1003, 1003, 160), false),
            ("one byte, and silence", way(1001, 1001, 130), false),
            ("one byte, at once", way(1001, 1001, 100), true),
            // 56 kbit/s, of which a layer has a third, and 30 s of silence at the end.
            ("a modem", way(141_000, 141_000, 160), true),
            ("a third of it", way(161_000, 161_000, 190), true),
            // A registry without ranges has to send all of it once more.
            ("from the beginning", way(1100, 300_000, 200), true),
        ] {
            assert_eq!(after.got_further_since(&before), expected, "{name}");
        }
    }
}
