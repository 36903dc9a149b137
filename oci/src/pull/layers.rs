//! The layers of an image on their way to the unpacking: from the store's blobs, or from a registry into a partial blob that the unpacking
//! follows, or from a registry straight to the unpacking.

use std::io::{self, Read};

use futures_util::future::join;
use tokio::sync::oneshot;

use super::source::Source;
use crate::blobs::{Blobs, GrowingBlob, PartialBlob, Receiving, StoredBlob, Writer};
use crate::manifest::Layer;
use crate::registry::{Download, Upstream};
use crate::store::Promise;
use crate::store_error::StoreError;
use crate::unpack::{TreeRefusal, UnpackError};
use instar_base::blocking_io;
use instar_values::{Digest, ImageReference};

/// Where the bytes of a layer are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// From a registry, all of them, in this attempt.
    Registry,
    /// A part of them was here before.
    PartialBlob,
    /// All of them are a blob of the store.
    StoredBlob,
}

/// Whether the bytes of a layer may be the cause of this error. A full disk and a broken transfer say nothing about them; a disk that cannot
/// read a blob back has damaged it.
fn is_about_bytes(error: &UnpackError, origin: Origin) -> bool {
    match error {
        UnpackError::Directory(_) => false,
        UnpackError::Tree { refusal, .. } => !matches!(refusal, TreeRefusal::System { .. }),
        UnpackError::Blob(_) | UnpackError::BlobTruncated { .. } => origin == Origin::StoredBlob,
        _ => true,
    }
}

/// A layer's blob for the unpacking, which compares size and digest.
pub(super) enum LayerBlob {
    /// From the network.
    Download(Download),
    /// From a blob of the store.
    Stored(std::fs::File),
    /// From a partial blob that grows; whether it began with old bytes.
    Growing(GrowingBlob, Origin),
}

impl LayerBlob {
    pub(super) fn origin(&self) -> Origin {
        match self {
            LayerBlob::Download(_) => Origin::Registry,
            LayerBlob::Stored(_) => Origin::StoredBlob,
            LayerBlob::Growing(_, origin) => *origin,
        }
    }

    /// The partial blob that is complete and right, now that the unpacking has compared it.
    pub(super) fn into_partial(self) -> Option<PartialBlob> {
        match self {
            LayerBlob::Growing(blob, _) => Some(blob.into_partial()),
            LayerBlob::Download(_) | LayerBlob::Stored(_) => None,
        }
    }

    /// Removes the bytes of a layer that was not taken, if they may be the cause; returns whether other bytes may be taken: those that
    /// were here before are not the registry's.
    pub(super) fn remove_if_wrong(
        self,
        blobs: &Blobs,
        digest: Digest,
        error: &UnpackError,
    ) -> Result<bool, StoreError> {
        let origin = self.origin();
        if !is_about_bytes(error, origin) {
            return Ok(false);
        }
        match self {
            LayerBlob::Download(_) => Ok(false),
            LayerBlob::Growing(blob, _) => {
                blobs.discard_partial(&blob.into_partial())?;
                Ok(origin == Origin::PartialBlob)
            }
            LayerBlob::Stored(_) => blobs.remove_if_damaged(digest),
        }
    }
}

impl Read for LayerBlob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            LayerBlob::Download(download) => download.read(buffer),
            LayerBlob::Stored(blob) => blob.read(buffer),
            LayerBlob::Growing(blob, _) => blob.read(buffer),
        }
    }
}

/// The way of an image's layers.
pub(super) struct Layers<'a> {
    /// Where missing layers come from.
    pub(super) source: Source<'a>,
    pub(super) reference: &'a ImageReference,
    /// The store's blobs, if it keeps them.
    pub(super) blobs: Option<&'a Blobs>,
    /// Whether a layer that is fetched becomes one of them.
    pub(super) keeps_blobs: bool,
    /// The room that was promised, if the store has a limit.
    pub(super) promise: Option<&'a Promise>,
    pub(super) arrived: &'a (dyn Fn(u64) + Send + Sync),
}

impl Layers<'_> {
    /// Opens a layer for the unpacking, and fetches what is missing of it. The unpacking is told errors.
    pub(super) async fn fetch(
        &self,
        layer: &Layer,
        opened: oneshot::Sender<Result<LayerBlob, StoreError>>,
    ) {
        let receiving = match self.blobs {
            None => return self.pass_on(layer, opened).await,
            Some(blobs) if self.keeps_blobs => {
                let pace = self.source.pace();
                blobs.receive_at(layer.digest, layer.size, pace).await
            }
            Some(blobs) => match blobs.open(layer.digest) {
                Ok(None) => return self.pass_on(layer, opened).await,
                Ok(Some(blob)) => Ok(Receiving::Stored(blob)),
                Err(error) => Err(error),
            },
        };
        match receiving {
            Ok(Receiving::Stored(blob)) => {
                (self.arrived)(layer.size);
                // An unpacking that is gone needs no layer.
                let _ = opened.send(Ok(stored(blob)));
            }
            Ok(Receiving::Missing(incoming)) => {
                let (writer, reader) = incoming.followed();
                let origin = match writer.length() {
                    0 => Origin::Registry,
                    _ => Origin::PartialBlob,
                };
                if opened.send(Ok(LayerBlob::Growing(reader, origin))).is_ok() {
                    self.complete(layer, writer).await;
                }
            }
            // An unpacking that is gone needs no error.
            Err(error) => drop(opened.send(Err(error))),
        }
    }

    /// Fetches a layer that is not kept.
    async fn pass_on(&self, layer: &Layer, opened: oneshot::Sender<Result<LayerBlob, StoreError>>) {
        let (upstream, download) = Download::channel();
        // An unpacking that is gone needs no layer.
        if opened.send(Ok(LayerBlob::Download(download))).is_ok() {
            self.download(layer, 0, upstream).await;
        }
    }

    /// Fetches the rest of a partial blob.
    async fn complete(&self, layer: &Layer, writer: Writer) {
        let from = writer.length();
        (self.arrived)(from);
        if from == layer.size {
            return;
        }
        let (upstream, download) = Download::channel_for(writer.waiting());
        let writing = blocking_io::to_its_end(move || write(download, writer));
        // If the program stops before the writing has ended, the reader finds a blob that is too short.
        let _ = join(self.download(layer, from, upstream), writing).await;
    }

    async fn download(&self, layer: &Layer, from: u64, upstream: Upstream) {
        let arrived = |bytes| {
            if let Some(promise) = self.promise {
                promise.fetched(bytes);
            }
            (self.arrived)(bytes);
        };
        let sending = self
            .source
            .send(self.reference, layer, from, upstream, &arrived);
        sending.await;
    }
}

fn stored(blob: StoredBlob) -> LayerBlob {
    LayerBlob::Stored(blob.unchecked())
}

/// Writes a download into its partial blob. Its reader is told errors of both.
fn write(mut download: Download, mut writer: Writer) {
    loop {
        let written = match download.piece() {
            Ok(None) => return,
            Ok(Some(piece)) => writer.write(&piece).map_err(io::Error::other),
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            return writer.fail(error);
        }
    }
}
