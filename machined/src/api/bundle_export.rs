//! `BundleService/Export`: sends images of the store to a caller as a bundle. The caller may bring it to another node. A blob that is found damaged
//! ends the bundle, and is fetched again.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_api::instar as wire;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Response, Status};

use super::streamed;
use crate::base::blocking_io;
use crate::base::error_chain::chain;
use crate::containers::ImageDigests;
use crate::intent;
use crate::machine::Machine;
use crate::oci::bundled::{StoredBundle, StoredBundleError, StoredWriteError};
use crate::oci::{ImageStore, Limits, Puller};
use crate::values::ImageReference;

/// Limit on the images of one call.
const MOST_IMAGES: usize = 64;
/// Size of the pieces.
const PIECE: usize = 256 << 10;
/// Number of pieces that wait for the caller.
const AHEAD: usize = 2;
/// Time in which a caller has to take a piece: meanwhile nobody else gets a bundle.
const SLOWEST: Duration = Duration::from_secs(60);

type Message = Result<wire::BundleExportResponse, Status>;

/// Sends a bundle of these images.
pub(super) async fn export(
    machine: &Machine,
    references: &[String],
) -> Result<Response<BoxStream<wire::BundleExportResponse>>, Status> {
    let references = parse(references)?;
    let turn = machine.bundles.sending.clone().try_acquire_owned();
    let turn = turn.map_err(|_| {
        Status::resource_exhausted("another bundle is being sent; try again when it is done")
    })?;
    let images = machine.images.clone();
    let making = move || StoredBundle::new(&images, &references);
    let made = blocking_io::within(blocking_io::ANSWER, making).await;
    let made = made.map_err(|error| Status::unavailable(chain(&error)))?;
    let bundle = made.map_err(|error| refused(&error))?;
    let healer = Healer {
        puller: intent::puller(machine.config().as_deref()),
        images: machine.images.clone(),
    };
    Ok(streamed(messages(bundle, turn, healer)))
}

/// Begins to send a bundle, in this turn; returns its messages. The last one of a bundle that is not sent to its end is the reason.
fn messages(
    bundle: StoredBundle,
    turn: OwnedSemaphorePermit,
    healer: Healer,
) -> ReceiverStream<Message> {
    let (sender, receiver) = mpsc::channel::<Message>(AHEAD);
    let runtime = Handle::current();
    let sending = blocking_io::to_its_end(move || {
        let sink = Sink {
            runtime: runtime.clone(),
            sender: sender.clone(),
            piece: Vec::new(),
        };
        let sent = send(bundle, sink);
        // The next caller does not wait for this one to take the reason.
        drop(turn);
        let error = sent.err()?;
        let damaged = of_damaged(&error).cloned();
        tell_failure(&runtime, &sender, &error);
        damaged
    });
    crate::base::task::spawn(async move {
        if let Ok(Some(damaged)) = sending.await {
            healer.fetch(&damaged).await;
        }
    });
    ReceiverStream::new(receiver)
}

/// The image whose blob was gone or damaged, if that is why a bundle was not sent.
fn of_damaged(error: &anyhow::Error) -> Option<&ImageReference> {
    match error.downcast_ref::<StoredWriteError>() {
        Some(StoredWriteError::Blob { reference, .. }) => Some(reference),
        _ => None,
    }
}

/// Fetches the blobs that an image of the store has lost.
struct Healer {
    puller: Arc<Puller>,
    images: ImageStore,
}

impl Healer {
    /// Fetches them by the digest of the image, as a pull does. A registry that is away is asked no more: the next pull of the image does it.
    async fn fetch(&self, reference: &ImageReference) {
        let fetching = async {
            let image = self.images.find(reference).context("it is gone")?;
            // The reference may be a digest, which is no name of its own.
            let name = image.names().first().unwrap_or(reference);
            let known = ImageDigests::of_pulled(&image, None);
            let resolved = known.resolve(&self.puller, name).await?;
            let verified = self.puller.verify(resolved).await?;
            let limits = Limits::default();
            self.puller.pull(&verified, &self.images, &limits).await?;
            anyhow::Ok(())
        };
        if let Err(error) = fetching.await {
            tracing::warn!("{reference}: what was damaged is not fetched again: {error:#}");
        }
    }
}

/// Tells the caller why the bundle ends, after the pieces that he has yet to take.
fn tell_failure(runtime: &Handle, sender: &mpsc::Sender<Message>, error: &anyhow::Error) {
    let advice = of_damaged(error).map(|reference| {
        format!(
            "; what was damaged is removed, and this node fetches it from the image's registry now: try again, and pull {reference} here if its \
             registry was away"
        )
    });
    let advice = advice.unwrap_or_default();
    let status = Status::data_loss(format!("{error:#}{advice}"));
    let telling = sender.send(Err(status));
    // A caller who has hung up needs no reason, and one who takes nothing gets none.
    let _ = runtime.block_on(async { timeout(SLOWEST, telling).await });
}

fn parse(references: &[String]) -> Result<Vec<ImageReference>, Status> {
    if references.is_empty() || references.len() > MOST_IMAGES {
        let text = format!("name 1 to {MOST_IMAGES} images");
        return Err(Status::invalid_argument(text));
    }
    let parsed = references.iter().map(|text| text.parse());
    let parsed: Result<Vec<ImageReference>, _> = parsed.collect();
    parsed.map_err(|error| Status::invalid_argument(chain(&error)))
}

fn refused(error: &StoredBundleError) -> Status {
    let text = chain(error);
    match error {
        StoredBundleError::Absent(_) => Status::not_found(text),
        StoredBundleError::NoBlobs
        | StoredBundleError::Image { .. }
        | StoredBundleError::Index(_)
        | StoredBundleError::Plan(_) => Status::failed_precondition(text),
    }
}

fn send(bundle: StoredBundle, sink: Sink) -> anyhow::Result<()> {
    sink.message(wire::BundleExportResponse {
        digest: bundle.digest().to_string(),
        size: bundle.bytes(),
        content: Vec::new(),
    })?;
    bundle.write(Box::new(sink))?;
    Ok(())
}

/// Sends what is written to it, piece by piece.
struct Sink {
    runtime: Handle,
    sender: mpsc::Sender<Message>,
    piece: Vec<u8>,
}

impl Sink {
    fn message(&self, message: wire::BundleExportResponse) -> io::Result<()> {
        let sending = self.sender.send(Ok(message));
        let sent = self
            .runtime
            .block_on(async { timeout(SLOWEST, sending).await });
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::ErrorKind::BrokenPipe.into()),
            Err(_) => Err(io::Error::other("the caller takes too long")),
        }
    }

    fn send_piece(&mut self) -> io::Result<()> {
        let content = std::mem::take(&mut self.piece);
        self.message(wire::BundleExportResponse {
            content,
            ..Default::default()
        })
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = PIECE - self.piece.len();
        let taken = bytes.get(..room).unwrap_or(bytes);
        self.piece.extend_from_slice(taken);
        if self.piece.len() == PIECE {
            self.send_piece()?;
        }
        Ok(taken.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match self.piece.is_empty() {
            true => Ok(()),
            false => self.send_piece(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::FileExt as _;
    use std::time::Instant;

    use tokio::sync::Semaphore;
    use tokio_stream::StreamExt as _;
    use tonic::Code;

    use super::*;
    use crate::containers::registry_for_tests::SignedRegistry;
    use crate::oci::Keeps;
    use crate::values::Digest;

    #[tokio::test]
    async fn a_caller_who_reads_slowly_is_told_of_a_damaged_blob() {
        let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
        let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
        let web = registry.push("web:v1", &"content ".repeat(PIECE));
        let (puller, limits) = (registry.puller(), Limits::default());
        let resolved = puller.look_up(&web.name).await.unwrap();
        puller.pull(&resolved, &store, &limits).await.unwrap();
        let blob = directory.path().join("blobs/sha256").join(web.layer.hex());
        let file = std::fs::File::options().write(true).open(&blob);
        file.unwrap().write_all_at(b"!", 600).unwrap();
        let bundle = StoredBundle::new(&store, std::slice::from_ref(&web.name)).unwrap();
        let turn = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let healer = Healer {
            puller: Arc::new(registry.puller()),
            images: store.clone(),
        };
        let (mut messages, mut last) = (messages(bundle, turn, healer), None);
        while let Some(message) = messages.next().await {
            last = Some(message);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let reason = last.unwrap().unwrap_err();
        assert_eq!(reason.code(), Code::DataLoss, "{reason}");
        let told = format!("{} is here, but not as it was pulled", web.name);
        assert!(reason.message().contains(&told), "{reason}");
        assert!(reason.message().contains("damaged on the disk"), "{reason}");
        // It is not sent once more, and comes back by itself.
        let limit = Instant::now() + Duration::from_secs(60);
        while !std::fs::read(&blob).is_ok_and(|it| Digest::of(&it) == web.layer) {
            assert!(
                Instant::now() < limit,
                "the damaged blob does not come back"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let bundle = StoredBundle::new(&store, &[web.name]).unwrap();
        bundle.write(Box::new(io::sink())).unwrap();
    }
}
