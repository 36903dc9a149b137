//! `Logs` and `Dmesg`: stream output as chunks of bytes.

use instar_api::common::{Data, Metadata};
use instar_api::machine::{DmesgRequest, LogsRequest};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::blocking;
use super::caller::Holder;
use super::kernel_log::KernelLog;
use crate::config_source::Secrets;
use crate::services::{LogDisk, LogRing, OldLines, Tail};

/// Limit on the chunks that wait for one reader. A slow reader makes only its own task wait.
const AHEAD: usize = 16;

type Chunks = ReceiverStream<Result<Data, Status>>;

fn chunk(metadata: &Option<Metadata>, bytes: Vec<u8>) -> Data {
    Data {
        metadata: metadata.clone(),
        bytes,
    }
}

/// Streams a service's output: first from disk, then from memory, then new lines.
pub(super) fn service(
    log: &LogRing,
    disk: LogDisk,
    request: &LogsRequest,
    holder: Holder,
    metadata: Option<Metadata>,
) -> Chunks {
    let tail = usize::try_from(request.tail_lines).map_or(Tail::All, Tail::Lines);
    let mut reader = log.read(tail);
    let (follow, name) = (request.follow, request.id.clone());
    let (sender, receiver) = mpsc::channel(AHEAD);
    crate::base::task::spawn(async move {
        if let Some(older) = reader.older() {
            let sent = match disk.older(&name, older).await {
                Ok(Some(lines)) => send_old(lines, holder, &sender, &metadata).await,
                Ok(None) => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = sent {
                let note = format!("[older lines cannot be read: {error}]\n");
                let note = chunk(&metadata, note.into_bytes());
                // If the reader has disconnected, that is noticed below.
                let _ = sender.send(Ok(note)).await;
            }
        }
        loop {
            let line = match reader.next_kept() {
                Some(line) => line,
                None if follow => tokio::select! {
                    line = reader.next() => line,
                    () = sender.closed() => return,
                },
                None => return,
            };
            if sender
                .send(Ok(chunk(&metadata, line.into())))
                .await
                .is_err()
            {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Sends lines from the disk, which may be slow. A slow reader does not keep a thread busy.
async fn send_old(
    mut lines: OldLines,
    holder: Holder,
    sender: &mpsc::Sender<Result<Data, Status>>,
    metadata: &Option<Metadata>,
) -> std::io::Result<()> {
    let chunks = std::iter::from_fn(move || lines.next_chunk().transpose())
        .map(|read| Some(read.map_err(|error| Status::internal(error.to_string()))));
    let mut chunks = blocking::stream(holder, chunks, 1);
    while let Some(read) = chunks.next().await {
        let bytes = read.map_err(|status| std::io::Error::other(status.message().to_owned()))?;
        if sender.send(Ok(chunk(metadata, bytes))).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Streams the kernel's log, which begins with the kernel's command line.
pub(super) fn kernel(
    request: &DmesgRequest,
    secrets: Secrets,
    metadata: Option<Metadata>,
) -> Result<Chunks, Status> {
    let mut log =
        KernelLog::open(request.tail).map_err(|error| Status::internal(format!("{error:#}")))?;
    let follow = request.follow;
    let (sender, receiver) = mpsc::channel(AHEAD);
    crate::base::task::spawn(async move {
        loop {
            let next = match log.next_kept() {
                Ok(None) if follow => tokio::select! {
                    record = log.next() => record.map(Some),
                    () = sender.closed() => return,
                },
                other => other,
            };
            let answer = match next {
                Ok(Some(record)) => {
                    let line = secrets.shown(record.to_string());
                    Ok(chunk(&metadata, line.into_bytes()))
                }
                Ok(None) => return,
                Err(error) => Err(Status::internal(format!("{error:#}"))),
            };
            let failed = answer.is_err();
            if sender.send(answer).await.is_err() || failed {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(receiver))
}
