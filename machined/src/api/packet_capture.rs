//! `PacketCapture`: streams a capture as chunks of its file.

use std::future::pending;
use std::time::Duration;

use instar_api::common::{Data, Metadata};
use instar_api::machine::PacketCaptureRequest;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::base::error_chain::chain;
use crate::packet_capture::{Capture, CaptureError};

/// Limit on the chunks that wait for the reader. If the reader is slow, packets wait in the kernel or are dropped there.
const AHEAD: usize = 1;

type Chunks = ReceiverStream<Result<Data, Status>>;
type Sender = mpsc::Sender<Result<Data, Status>>;

/// Converts an error to a gRPC status.
fn status(error: &CaptureError) -> Status {
    let text = chain(error);
    match error {
        CaptureError::UnknownLink { .. } => Status::not_found(text),
        CaptureError::UnservedLink { .. } | CaptureError::SnapLen(_) | CaptureError::Filter(_) => {
            Status::invalid_argument(text)
        }
        CaptureError::Down(_) => Status::failed_precondition(text),
        CaptureError::TooMany => Status::resource_exhausted(text),
        CaptureError::Kernel { .. } => Status::internal(text),
    }
}

/// Captures until the reader disconnects, or for as long as it `lasts`.
pub(super) fn stream(
    request: &PacketCaptureRequest,
    lasts: Option<Duration>,
    metadata: Option<Metadata>,
) -> Result<Chunks, Status> {
    let mut capture = Capture::start(request).map_err(|error| status(&error))?;
    let chunk = move |bytes| {
        Ok(Data {
            metadata: metadata.clone(),
            bytes,
        })
    };
    let (sender, receiver) = mpsc::channel(AHEAD);
    crate::base::task::spawn(async move {
        let end = tokio::select! {
            end = pass_on(&mut capture, &sender, &chunk) => end,
            () = over(lasts) => Status::deadline_exceeded("the time for the capture is over"),
            () = sender.closed() => return,
        };
        // While the reader does not take the rest, that rest is in memory, but the socket and the place among the captures are free.
        for bytes in capture.end() {
            if sender.send(chunk(bytes)).await.is_err() {
                return;
            }
        }
        // An error means that the reader has disconnected.
        let _ = sender.send(Err(end)).await;
    });
    Ok(ReceiverStream::new(receiver))
}

/// Sends captured packets until the capture fails or the reader disconnects. If this future is dropped, unsent packets are still
/// in the capture.
async fn pass_on(
    capture: &mut Capture,
    sender: &Sender,
    chunk: &impl Fn(Vec<u8>) -> Result<Data, Status>,
) -> Status {
    loop {
        if let Err(error) = capture.piece_is_due().await {
            return status(&error);
        }
        let Ok(place) = sender.reserve().await else {
            return Status::cancelled("the reader has gone");
        };
        place.send(chunk(capture.piece()));
    }
}

async fn over(lasts: Option<Duration>) {
    match lasts {
        Some(lasts) => sleep(lasts).await,
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use tonic::Code;

    #[test]
    fn refusals_have_their_codes() {
        let link = || "eth0".to_owned();
        for (error, code) in [
            (
                CaptureError::UnknownLink {
                    name: link(),
                    known: vec!["lo".to_owned()],
                },
                Code::NotFound,
            ),
            (
                CaptureError::UnservedLink {
                    name: link(),
                    hardware: 32,
                },
                Code::InvalidArgument,
            ),
            (CaptureError::Down(link()), Code::FailedPrecondition),
            (CaptureError::SnapLen(1 << 20), Code::InvalidArgument),
            (CaptureError::TooMany, Code::ResourceExhausted),
            (
                CaptureError::Kernel {
                    doing: "bind",
                    link: link(),
                    source: io::ErrorKind::PermissionDenied.into(),
                },
                Code::Internal,
            ),
        ] {
            assert_eq!(status(&error).code(), code, "{error}");
        }
    }
}
