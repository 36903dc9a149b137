//! `Logs` and `Dmesg`: stream output as chunks of bytes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
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
use crate::disk::Reading;
use crate::kubernetes::{NotAName, PodContainerName, PodLog, pod_log_names};
use crate::machine::Machine;
use crate::services::{LogReader, LogRing, OldLines, Tail};

/// Limit on the chunks that wait for one reader. A slow reader makes only its own task wait.
const AHEAD: usize = 16;

/// The pause between two looks at the end of a pod's log, and for the service that has taken the place of another.
const LOOK: Duration = Duration::from_millis(500);

type Chunks = ReceiverStream<Result<Data, Status>>;

fn chunk(metadata: &Option<Metadata>, bytes: Vec<u8>) -> Data {
    Data {
        metadata: metadata.clone(),
        bytes,
    }
}

/// Streams the log of a pod's container.
pub(super) async fn of_pod(
    request: &LogsRequest,
    holder: Holder,
    metadata: Option<Metadata>,
) -> Result<Chunks, Status> {
    let name: PodContainerName = request
        .id
        .parse()
        .map_err(|error: NotAName| Status::invalid_argument(error.to_string()))?;
    let (wanted, tail) = (name.clone(), tail(request));
    let opened = blocking::once(&holder, move || Ok(PodLog::open(&wanted, tail)?)).await?;
    let Some(log) = opened else {
        let names = blocking::once(&holder, || Ok(pod_log_names()?)).await?;
        return Err(Status::not_found(no_log(&name, &names)));
    };
    let follow = request.follow;
    let (sender, receiver) = mpsc::channel(AHEAD);
    crate::base::task::spawn(async move {
        let mut log = log;
        loop {
            let read = move || {
                let bytes = log.next_chunk()?;
                Ok((log, bytes))
            };
            let bytes;
            (log, bytes) = match blocking::once(&holder, read).await {
                Ok(read) => read,
                Err(status) => {
                    // If the reader has disconnected, nobody is left to tell.
                    let _ = sender.send(Err(status)).await;
                    return;
                }
            };
            let goes_on = match bytes.is_empty() {
                true if follow => tokio::select! {
                    () = tokio::time::sleep(LOOK) => true,
                    () = sender.closed() => false,
                },
                true => false,
                false => sender.send(Ok(chunk(&metadata, bytes))).await.is_ok(),
            };
            if !goes_on {
                return;
            }
        }
    });
    Ok(ReceiverStream::new(receiver))
}

/// The words for a container that has no log.
fn no_log(name: &PodContainerName, names: &[PodContainerName]) -> String {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    match names.is_empty() {
        true => format!("{name} has no log on this machine, nor has any other pod"),
        false => format!(
            "{name} has no log on this machine; there are: {}",
            names.join(", ")
        ),
    }
}

fn tail(request: &LogsRequest) -> Tail {
    usize::try_from(request.tail_lines).map_or(Tail::All, Tail::Lines)
}

/// Streams a service's output: first from disk, then from memory, then new lines.
pub(super) fn service(
    log: &LogRing,
    machine: &Arc<Machine>,
    request: &LogsRequest,
    holder: Holder,
    metadata: Option<Metadata>,
) -> Chunks {
    let (log, tail) = (log.clone(), tail(request));
    let (disk, readers) = (machine.log_disk.clone(), machine.disk.readers().clone());
    let (follow, name) = (request.follow, request.id.clone());
    let find = {
        let (machine, name) = (machine.clone(), name.clone());
        move || machine.log_of(&name)
    };
    let (sender, receiver) = mpsc::channel(AHEAD);
    crate::base::task::spawn(async move {
        let is_settled = disk.is_settled().await;
        let reader = log.read(tail);
        if let Some(older) = reader.older() {
            let reading = readers.enter();
            let sent = match disk.older(&name, older).await {
                Ok(Some(lines)) => send_old(lines, holder, reading, &sender, &metadata).await,
                Ok(None) if !is_settled => Err(std::io::Error::other("their disk is not mounted")),
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
        let mut followed = Followed { log, reader, find };
        loop {
            let line = match followed.reader.next_kept() {
                Some(line) => line,
                None if follow => tokio::select! {
                    line = followed.next() => line,
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

/// A log that is followed, with the search for the one in force under its name.
struct Followed<Find> {
    log: LogRing,
    reader: LogReader,
    find: Find,
}

impl<Find: Fn() -> Option<LogRing>> Followed<Find> {
    /// Waits for the next line. A changed config replaces a service, and its log with it: the reader goes on with the one in its place.
    async fn next(&mut self) -> Bytes {
        loop {
            tokio::select! {
                line = self.reader.next() => return line,
                () = tokio::time::sleep(LOOK) => {}
            }
            let in_force = (self.find)().filter(|log| !log.is(&self.log));
            let Some(in_force) = in_force else { continue };
            if let Some(last_words) = self.reader.next_kept() {
                return last_words;
            }
            self.reader = in_force.read(Tail::All);
            self.log = in_force;
        }
    }
}

/// Sends lines from the disk, which may be slow. A slow reader does not keep a thread busy.
async fn send_old(
    mut lines: OldLines,
    holder: Holder,
    reading: Reading,
    sender: &mpsc::Sender<Result<Data, Status>>,
    metadata: &Option<Metadata>,
) -> std::io::Result<()> {
    let chunks = std::iter::from_fn(move || lines.next_chunk().transpose())
        .map(|read| Some(read.map_err(|error| Status::internal(error.to_string()))));
    let mut chunks = blocking::stream(holder, reading, chunks, 1);
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_follower_goes_on_with_the_service_that_takes_the_place_of_another() {
        let (old, new) = (LogRing::default(), LogRing::default());
        let in_force = RefCell::new(Some(old.clone()));
        let mut followed = Followed {
            log: old.clone(),
            reader: old.read(Tail::All),
            find: || in_force.borrow().clone(),
        };
        old.write(b"one\n");
        assert_eq!(followed.next().await, "one\n");
        // It is removed, and another one is added.
        in_force.replace(None);
        let waits = tokio::time::timeout(4 * LOOK, followed.next());
        assert!(waits.await.is_err());
        old.write(b"last words\n");
        in_force.replace(Some(new.clone()));
        new.write(b"first of the next\n");
        assert_eq!(followed.next().await, "last words\n");
        assert_eq!(followed.next().await, "first of the next\n");
    }
}
