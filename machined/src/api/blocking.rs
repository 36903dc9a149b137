//! Runs work that may wait for a disk, away from the thread that serves all calls.

use std::sync::LazyLock;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::caller::Holder;
use super::shares::Shares;
use crate::base::blocking_io;
use crate::disk::Reading;

/// Limits on the calls that wait for disks at a time, each with a thread. Further calls wait for a place. A slow reader of a
/// stream holds none.
static PLACES: LazyLock<Shares> = LazyLock::new(|| Shares::new(8, 6, 2));

/// Runs the work once and returns its result.
pub(super) async fn once<T: Send + 'static>(
    holder: &Holder,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let place = PLACES.wait(holder).await;
    // The thread holds the place, because the work goes on after the caller has disconnected.
    let work = move || {
        let done = work();
        drop(place);
        done
    };
    blocking_io::to_its_end(work)
        .await
        .map_err(|error| Status::internal(error.to_string()))?
        .map_err(|error| Status::internal(format!("{error:#}")))
}

/// Streams the items of an iterator, reading `batch` items ahead. An item of `None` means "still looking": it is not sent, but a
/// reader that has disconnected is noticed. The stream ends with an error when the disk is to be unmounted.
pub(super) fn stream<T: Send + 'static>(
    holder: Holder,
    reading: Reading,
    source: impl Iterator<Item = Option<Result<T, Status>>> + Send + 'static,
    batch: usize,
) -> ReceiverStream<Result<T, Status>> {
    let (sender, receiver) = mpsc::channel(2);
    // A place for the last word: without it a slow reader would take the part for the whole.
    let last = sender.clone().try_reserve_owned();
    crate::base::task::spawn(async move {
        let mut told = reading.clone();
        tokio::select! {
            () = send(&holder, &reading, source, batch, &sender) => {}
            () = told.told_to_end() => if let Ok(last) = last {
                last.send(Err(Status::unavailable(
                    "the machine unmounts its disk: the rest cannot be read",
                )));
            }
        }
    });
    ReceiverStream::new(receiver)
}

async fn send<T: Send + 'static>(
    holder: &Holder,
    reading: &Reading,
    mut source: impl Iterator<Item = Option<Result<T, Status>>> + Send + 'static,
    batch: usize,
    sender: &mpsc::Sender<Result<T, Status>>,
) {
    while !sender.is_closed() {
        let place = PLACES.wait(holder).await;
        // The thread goes on if nobody waits for it any more: until then it counts as a reader.
        let reading = reading.clone();
        let read = blocking_io::to_its_end(move || {
            let items: Vec<_> = source.by_ref().take(batch).collect();
            (source, items, reading)
        });
        let Ok((back, items, _)) = read.await else {
            return;
        };
        drop(place);
        if items.is_empty() {
            return;
        }
        for item in items.into_iter().flatten() {
            let failed = item.is_err();
            if sender.send(item).await.is_err() || failed {
                return;
            }
        }
        source = back;
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::base::quota::Rank;
    use crate::disk::Readers;

    fn holder() -> Holder {
        Holder {
            connection: "test".into(),
            rank: Rank::Other,
        }
    }

    fn reading() -> Reading {
        static READERS: LazyLock<Readers> = LazyLock::new(Readers::default);
        READERS.enter()
    }

    /// Tells whether it still is there.
    struct OpenFile(std::sync::mpsc::Sender<()>);

    impl Drop for OpenFile {
        fn drop(&mut self) {
            // The test may have ended.
            let _ = self.0.send(());
        }
    }

    #[tokio::test]
    async fn a_slow_reader_is_ended_with_the_disk() {
        let readers = Readers::default();
        let (closed, is_closed) = std::sync::mpsc::channel();
        let file = OpenFile(closed);
        let endless = std::iter::repeat_with(move || {
            let _open = &file;
            Some(Ok(1))
        });
        let mut slow = stream(holder(), readers.enter(), endless, 2);
        assert!(matches!(slow.next().await, Some(Ok(1))));
        readers.end().await;
        assert_eq!(is_closed.try_recv(), Ok(()));
        let last = loop {
            match slow.next().await {
                Some(Ok(_)) => {}
                last => break last,
            }
        };
        assert!(matches!(last, Some(Err(status)) if status.code() == tonic::Code::Unavailable));
        assert!(slow.next().await.is_none());
    }

    #[tokio::test]
    async fn items_come_in_their_order_until_the_first_error() {
        let source = (0..10).map(|number| match number {
            2 | 3 => None,
            7 => Some(Err(Status::internal("seven"))),
            number => Some(Ok(number)),
        });
        let told: Vec<_> = stream(holder(), reading(), source, 3)
            .map(|item| item.map_err(|status| status.message().to_owned()))
            .collect()
            .await;
        let seven = Err("seven".to_owned());
        assert_eq!(told, [Ok(0), Ok(1), Ok(4), Ok(5), Ok(6), seven]);
    }

    #[tokio::test]
    async fn nobody_reads_on_for_a_reader_that_has_gone() {
        // This test ends only if the disconnected reader is noticed.
        let endless = std::iter::repeat_with(|| None::<Result<(), Status>>);
        drop(stream(holder(), reading(), endless, 4));
        once(&holder(), || Ok(())).await.ok();
    }
}
