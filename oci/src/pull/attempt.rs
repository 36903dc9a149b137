//! One attempt to make an image: fetches its layers side by side, and unpacks them one after the other.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt as _;
use futures_util::future::{Either, select};
use futures_util::stream;
use tokio::sync::oneshot;

use super::Progress;
use super::error::PullError;
use super::layers::{LayerBlob, Layers};
use super::source::Source;
use crate::blobs::{Blobs, PartialBlob, Receiving};
use crate::manifest::Layer;
use crate::registry::ResolvedImage;
use crate::store::{ImageStore, Incoming, NewImage, Promise, PulledImage, StoreError};
use crate::unpack::{Limits, Ownership, UnpackError, Unpacker};
use crate::verification::Verified;
use instar_base::blocking_io::{self, NoAnswer};
use instar_values::{Digest, ImageReference};

/// Limit on the layers of an image that are fetched at once: enough to keep a line busy while one of them waits for an answer.
const AT_ONCE: usize = 3;

/// An attempt to make an image.
pub(super) struct Attempt<'a> {
    /// Where layers come from that are not in the store.
    pub(super) source: Source<'a>,
    pub(super) image: &'a Verified<ResolvedImage>,
    pub(super) store: &'a ImageStore,
    /// Whether there is room for the image's blobs.
    pub(super) keeps_blobs: bool,
    pub(super) limits: &'a Limits,
    /// Limit on the unpacked bytes and the holes of sparse files together, whatever the room.
    pub(super) with_holes: u64,
    /// The room that was promised; none in a store in memory.
    pub(super) promise: Option<Arc<Promise>>,
    pub(super) progress: &'a (dyn Fn(Progress) + Send + Sync),
}

/// Why an attempt failed.
pub(super) struct Failure {
    pub(super) error: PullError,
    /// A layer whose old bytes were not taken, and are removed.
    pub(super) damaged: Option<Digest>,
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        Failure {
            error,
            damaged: None,
        }
    }
}

/// The values that go to the unpacking thread and come back.
struct Work {
    incoming: Incoming,
    unpacker: Unpacker,
}

/// Work that is not done yet; none while a thread has it. If it is given up, be it that nobody waits for the pull any more, its files are
/// removed on a thread of their own: 100,000s of them take seconds, and everything else waits for the runtime's only thread.
struct Unfinished(Option<Work>);

impl Unfinished {
    fn take(&mut self) -> Result<Work, NoAnswer> {
        self.0.take().ok_or(NoAnswer::Interrupted)
    }

    /// Removes what was unpacked, and waits for that: the room is free for the next attempt.
    async fn remove(mut self, reference: &ImageReference) {
        let work = self.0.take();
        let removing = blocking_io::within(blocking_io::ANSWER, move || drop(work));
        if let Err(error) = removing.await {
            // The thread goes on; what it leaves is removed after the next start.
            tracing::warn!("{reference}: what was unpacked is not removed yet: {error}");
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(work) = self.0.take() {
            blocking_io::in_background(move || drop(work));
        }
    }
}

/// Where the unpacking waits for a layer.
type Opened = oneshot::Receiver<Result<LayerBlob, StoreError>>;

impl Attempt<'_> {
    pub(super) async fn run(&self) -> Result<PulledImage, Failure> {
        let store = self.store;
        let incoming = store.incoming(self.image.digest());
        let incoming = incoming.map_err(|source| self.stored(source))?;
        let unpacker = Unpacker::new(&incoming.rootfs(), *self.limits, ownership())
            .map_err(|source| self.refused(self.image.digest(), source))?
            .with_holes(self.with_holes);
        let unpacker = match &self.promise {
            None => unpacker,
            Some(promise) => {
                promise.begin_again();
                let promise = promise.clone();
                unpacker.within(Arc::new(move |bytes| promise.take(bytes)))
            }
        };
        let blobs = store.blobs();
        let (total, bytes) = (self.image.download_bytes(), AtomicU64::new(0));
        let arrived = |count| {
            let bytes = bytes.fetch_add(count, Ordering::Relaxed) + count;
            (self.progress)(Progress { bytes, total });
        };
        let layers = Layers {
            source: self.source,
            reference: &self.image.reference,
            blobs: blobs.as_ref(),
            keeps_blobs: self.keeps_blobs,
            promise: self.promise.as_deref(),
            arrived: &arrived,
        };
        // Without blobs a layer waits for the unpacking, and two connections would wait.
        let at_once = match (&blobs, self.keeps_blobs) {
            (Some(_), true) => AT_ONCE,
            _ => 1,
        };
        let (senders, opened): (Vec<_>, Vec<Opened>) =
            self.image.layers.iter().map(|_| oneshot::channel()).unzip();
        let fetches: Vec<_> = self
            .image
            .layers
            .iter()
            .zip(senders)
            .map(|(layer, opened)| layers.fetch(layer, opened))
            .collect();
        let fetching = stream::iter(fetches)
            .buffer_unordered(at_once)
            .for_each(|()| std::future::ready(()));
        let mut work = Unfinished(Some(Work { incoming, unpacker }));
        let unpacked = {
            let unpacking = self.unpack(&mut work, opened);
            // If unpacking ends first, it has failed: the rest of the transfers is not needed.
            match select(pin!(unpacking), pin!(fetching)).await {
                Either::Left((unpacked, _)) => unpacked,
                Either::Right(((), unpacking)) => unpacking.await,
            }
        };
        if let Err(failure) = unpacked {
            work.remove(&self.image.reference).await;
            return Err(failure);
        }
        let work = work.take().map_err(|source| self.interrupted(source))?;
        Ok(self.commit(work, blobs).await?)
    }

    /// Unpacks the layers in their order.
    async fn unpack(&self, work: &mut Unfinished, opened: Vec<Opened>) -> Result<(), Failure> {
        let interrupted = |source| self.interrupted(source);
        for (layer, opened) in self.image.layers.iter().zip(opened) {
            let opened = opened
                .await
                .unwrap_or(Err(StoreError::NoBlob(layer.digest)));
            let mut blob = opened.map_err(|source| self.stored(source))?;
            let mut taken = work.take().map_err(interrupted)?;
            let (back, blob, result) = {
                let layer = layer.clone();
                blocking_io::to_its_end(move || {
                    let result = taken.unpacker.layer(&layer, &mut blob);
                    (taken, blob, result)
                })
            }
            .await
            .map_err(interrupted)?;
            let back = work.0.insert(back);
            match result {
                Ok(()) => back.incoming.keep_blobs(blob.into_partial()),
                Err(source) => return Err(self.not_taken(layer, blob, source).await),
            }
        }
        if let Some(devices) = work.0.as_ref().and_then(|work| work.unpacker.left_out()) {
            tracing::warn!("{}: {devices}", self.image.reference);
        }
        Ok(())
    }

    /// The failure of a layer; removes its bytes if they may be the cause.
    async fn not_taken(&self, layer: &Layer, blob: LayerBlob, source: UnpackError) -> Failure {
        let digest = layer.digest;
        let Some(blobs) = self.store.blobs() else {
            return self.refused(digest, source).into();
        };
        let removing = blocking_io::to_its_end(move || {
            let removed = blob.remove_if_wrong(&blobs, digest, &source);
            (source, removed)
        });
        let (source, removed) = match removing.await {
            Ok(done) => done,
            Err(source) => return self.interrupted(source).into(),
        };
        let is_worth_another = removed.unwrap_or_else(|failed| {
            tracing::warn!("the blob {digest} may be wrong, and stays: {failed}");
            false
        });
        Failure {
            error: self.refused(digest, source),
            damaged: is_worth_another.then_some(digest),
        }
    }

    /// Makes it an image of the store, together with its blobs.
    async fn commit(&self, mut work: Work, blobs: Option<Blobs>) -> Result<PulledImage, PullError> {
        let image = self.image;
        let new = NewImage {
            name: image.reference.clone(),
            named_digest: image.named_digest,
            config: image.config.clone(),
            download_bytes: image.download_bytes(),
            unpacked_bytes: work.unpacker.bytes(),
            blobs: match blobs.is_some() && self.keeps_blobs {
                true => image.blobs().into_iter().collect(),
                false => BTreeSet::new(),
            },
        };
        let (proof, keeper) = (image.proof().cloned(), self.store.clone());
        let unjudged = image.unjudged().clone();
        let is_on_disk = blobs.is_some();
        let documents = blobs
            .filter(|_| self.keeps_blobs)
            .map(|blobs| (blobs, documents(image)));
        let committed = blocking_io::to_its_end(move || {
            if let Some((blobs, documents)) = &documents {
                for document in documents {
                    work.incoming.keep_blobs(receive(blobs, document)?);
                }
            }
            if is_on_disk {
                work.incoming.seal()?;
            }
            if let Some(proof) = &proof {
                work.incoming.keep_proof(proof)?;
            }
            work.incoming.keep_unjudged(&unjudged)?;
            let pulled = work.incoming.commit(new)?;
            keeper.inherit_proofs(&pulled)?;
            // Another pull of the same image may have been faster, under another policy.
            if let Some(proof) = &proof {
                keeper.keep_proof(&pulled, proof)?;
            }
            keeper.keep_unjudged(&pulled, &unjudged)?;
            Ok(pulled)
        });
        let committed = committed.await.map_err(|source| self.interrupted(source))?;
        committed.map_err(|source| self.stored(source))
    }

    fn stored(&self, source: StoreError) -> PullError {
        PullError::Store {
            reference: self.image.reference.clone(),
            source,
        }
    }

    fn refused(&self, layer: Digest, source: UnpackError) -> PullError {
        PullError::Layer {
            reference: self.image.reference.clone(),
            layer,
            source,
        }
    }

    fn interrupted(&self, source: NoAnswer) -> PullError {
        PullError::Interrupted {
            reference: self.image.reference.clone(),
            source,
        }
    }
}

/// The documents of an image, as its registry serves them.
fn documents(image: &ResolvedImage) -> Vec<Vec<u8>> {
    let own = [&image.manifest, &image.config_document];
    let all = image.index.iter().chain(own);
    all.filter(|document| !document.is_empty())
        .cloned()
        .collect()
}

/// Writes a document beside its place. Nothing is left to do if it is here, or comes by another pull.
fn receive(blobs: &Blobs, document: &[u8]) -> Result<Option<PartialBlob>, StoreError> {
    let (digest, size) = (Digest::of(document), document.len() as u64);
    let Some(Receiving::Missing(mut incoming)) = blobs.try_receive(digest, size)? else {
        return Ok(None);
    };
    incoming.start_again()?;
    incoming.write(document)?;
    Ok(Some(incoming.into_partial()))
}

/// A node runs as root and keeps owners; the tests of a developer cannot.
fn ownership() -> Ownership {
    if rustix::process::geteuid().is_root() {
        Ownership::Keep
    } else {
        Ownership::Ignore
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc::channel;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::store::Keeps;

    /// A caller that has gone away, or a pull that takes too long: the runtime's thread drops it, and removes nothing itself.
    #[test]
    fn a_pull_that_is_dropped_has_its_files_removed_by_another_thread() {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned(), Keeps::Blobs);
        let incoming = store.incoming(Digest::of(b"image")).unwrap();
        let rootfs = incoming.rootfs();
        let unpacker = Unpacker::new(&rootfs, Limits::default(), Ownership::Ignore).unwrap();
        let work = Unfinished(Some(Work { incoming, unpacker }));
        let (done, wait) = channel::<()>();
        runtime.block_on(async move {
            // The only thread that could remove it is kept.
            blocking_io::in_background(move || {
                // Its end is an error: the test drops the sender.
                let _ = wait.recv();
            });
            drop(work);
        });
        assert!(rootfs.exists());
        drop(done);
        let limit = Instant::now() + Duration::from_secs(60);
        while rootfs.exists() {
            assert!(Instant::now() < limit, "it stays");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
