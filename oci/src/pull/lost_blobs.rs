//! Fetches the blobs that an image of the store has lost, while its files are whole: a disk had damaged them, and whoever read them has found that
//! and removed them. Without them the image is neither made again where no registry is, nor brought to another machine.

use std::io;

use futures_util::future::{BoxFuture, join};

use super::source::Source;
use crate::blobs::{Blobs, Receiving};
use crate::manifest::Layer;
use crate::registry::{Download, ResolvedImage};
use crate::store::{ImageStore, Promise, PulledImage, RoomPlan};
use crate::store_error::StoreError;
use instar_base::blocking_io;
use instar_values::{Digest, ImageReference};

/// The blobs that are lost, and the room that was promised for them.
struct Lost {
    layers: Vec<Layer>,
    promise: Option<Promise>,
}

/// Fetches them. What cannot be fetched stays lost, with a line in the log: the image can be used all the same. In a box: every pull has this
/// future in itself, and next to none needs its transfers.
pub(super) fn fetch<'a>(
    source: Source<'a>,
    image: &'a ResolvedImage,
    pulled: &'a PulledImage,
    store: &'a ImageStore,
) -> BoxFuture<'a, ()> {
    Box::pin(fetch_all(source, image, pulled, store))
}

async fn fetch_all(
    source: Source<'_>,
    image: &ResolvedImage,
    pulled: &PulledImage,
    store: &ImageStore,
) {
    let Some(blobs) = store.blobs() else {
        return;
    };
    let reference = &image.reference;
    // Held before the look: none of them is collected in between.
    let _held = blobs.hold(image.blobs());
    let (looker, resolved, noted) = (store.clone(), image.clone(), pulled.noted_blobs().clone());
    let looking =
        blocking_io::to_its_end(move || look(&looker, &resolved, |it| noted.contains(it)));
    let looked = looking.await.map_err(io::Error::other);
    let lost = match looked.and_then(|looked| looked.map_err(io::Error::other)) {
        Ok(lost) => lost,
        Err(error) => {
            tracing::warn!("{reference}: nobody knows which of its blobs are lost: {error}");
            return;
        }
    };
    if !lost.layers.is_empty() && lost.promise.is_none() {
        tracing::warn!("{reference}: blobs that it has lost are not fetched, for lack of room");
        return;
    }
    for layer in &lost.layers {
        let digest = layer.digest;
        match receive(source, reference, layer, &blobs, lost.promise.as_ref()).await {
            Ok(()) => tracing::info!("{reference}: the lost blob {digest} is here again"),
            Err(error) => {
                tracing::warn!("{reference}: the lost blob {digest} is not fetched: {error}");
            }
        }
    }
}

/// Finds the layers that are lost, and the room for them. Documents that are lost are here already, with the name that was resolved.
fn look(
    store: &ImageStore,
    image: &ResolvedImage,
    is_kept: impl Fn(&Digest) -> bool,
) -> Result<Lost, StoreError> {
    let mut lost = Lost {
        layers: Vec::new(),
        promise: None,
    };
    let Some(blobs) = store.blobs() else {
        return Ok(lost);
    };
    let own = [&image.manifest, &image.config_document];
    for document in image.index.iter().chain(own) {
        if is_kept(&Digest::of(document)) {
            keep_document(&blobs, document)?;
        }
    }
    for layer in &image.layers {
        if is_kept(&layer.digest) && blobs.open(layer.digest)?.is_none() {
            lost.layers.push(layer.clone());
        }
    }
    if !lost.layers.is_empty()
        && let Some((facts, promise)) = store.plan_room(&lost.layers)?
    {
        let has_room = matches!(facts.plan(), RoomPlan::WithBlobs(_));
        lost.promise = promise.filter(|_| has_room);
    }
    Ok(lost)
}

/// Keeps a document of the image, unless it is here or comes by another pull.
fn keep_document(blobs: &Blobs, document: &[u8]) -> Result<(), StoreError> {
    let (digest, size) = (Digest::of(document), document.len() as u64);
    let Some(Receiving::Missing(mut incoming)) = blobs.try_receive(digest, size)? else {
        return Ok(());
    };
    incoming.start_again()?;
    incoming.write(document)?;
    incoming.commit().map(drop)
}

/// Fetches a layer. A partial blob that turns out to be wrong is begun again, once.
async fn receive(
    source: Source<'_>,
    reference: &ImageReference,
    layer: &Layer,
    blobs: &Blobs,
    promise: Option<&Promise>,
) -> io::Result<()> {
    let mut begun_anew = false;
    loop {
        let receiving = blobs.receive_at(layer.digest, layer.size, source.pace());
        let mut incoming = match receiving.await.map_err(io::Error::other)? {
            Receiving::Stored(_) => return Ok(()),
            Receiving::Missing(incoming) => incoming,
        };
        let from = incoming.length();
        let (upstream, mut download) = Download::channel();
        let writing = blocking_io::to_its_end(move || {
            while let Some(piece) = download.piece()? {
                incoming.write(&piece).map_err(io::Error::other)?;
            }
            Ok::<_, io::Error>(incoming.commit())
        });
        let arrived = |bytes| {
            if let Some(promise) = promise {
                promise.fetched(bytes);
            }
        };
        let written = match from < layer.size {
            true => {
                let sending = source.send(reference, layer, from, upstream, &arrived);
                join(sending, writing).await.1
            }
            false => {
                drop(upstream);
                writing.await
            }
        };
        match written.map_err(io::Error::other)?? {
            Ok(_) => return Ok(()),
            // What was here before was wrong, and is removed.
            Err(StoreError::BlobDigest { .. }) if from > 0 && !begun_anew => begun_anew = true,
            Err(error) => return Err(io::Error::other(error)),
        }
    }
}
