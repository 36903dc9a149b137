//! Makes a resolved image one of the store: uses the one that is there if its files are whole, else unpacks its layers.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use super::Progress;
use super::attempt::Attempt;
use super::error::PullError;
use super::lost_blobs;
use super::source::Source;
use crate::manifest::Layer;
use crate::registry::ResolvedImage;
use crate::store::{
    ImageStore, Promise, PulledImage, RoomFacts, RoomForAll, RoomPlan, Urgency, Wholeness,
};
use crate::store_error::{StoreError, failed};
use crate::unpack::{Limits, UnpackError};
use crate::verification::{Verified, VerifiedImage};
use instar_base::blocking_io;
use instar_values::{Digest, ImageReference};

/// Unpacks an image whose blobs are all in the store: no registry is asked. For images that came by another way than a registry.
///
/// # Errors
/// A blob is missing ([`PullError::is_unreachable`] holds then) or is not taken, or the store failed.
pub async fn import(
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
    limits: &Limits,
) -> Result<VerifiedImage, PullError> {
    let imported = unpack(Source::Nowhere, image, store, limits, &|_| {}).await?;
    Ok(image.same_image(imported))
}

/// The room for several images together. If it is too little, everything that nothing needs is removed first.
///
/// # Errors
/// The store failed.
pub async fn room_for_all(
    images: &[Vec<Layer>],
    store: &ImageStore,
) -> Result<RoomForAll, StoreError> {
    let mut room = look_at_all(images, store, None).await?;
    for step in [Step::Blobs, Step::Images] {
        if room.is_enough() {
            break;
        }
        if step == Step::Images {
            store.ask_for_room().await;
        }
        room = look_at_all(images, store, Some(Urgency::LackOfRoom)).await?;
    }
    Ok(room)
}

async fn look_at_all(
    images: &[Vec<Layer>],
    store: &ImageStore,
    collect: Option<Urgency>,
) -> Result<RoomForAll, StoreError> {
    let (looker, images) = (store.clone(), images.to_vec());
    let looking = blocking_io::to_its_end(move || {
        if let Some(urgency) = collect {
            looker.collect_surplus(urgency)?;
        }
        looker.room_for_all(&images)
    });
    let interrupted = |error| failed("looking at", store.directory())(io::Error::other(error));
    looking.await.map_err(interrupted)?
}

/// Makes an image of the store from its layers, unless it is there.
pub(crate) async fn unpack(
    source: Source<'_>,
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
    limits: &Limits,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<PulledImage, PullError> {
    let reference = &image.reference;
    if let Some(pulled) = here(source, image, store).await? {
        return Ok(pulled);
    }
    let total = image.download_bytes();
    if total > limits.unpacked_bytes {
        let limit = limits.unpacked_bytes;
        return Err(PullError::TooLarge {
            reference: reference.clone(),
            bytes: total,
            limit,
        });
    }
    let turn = match source.takes_turns() {
        true => store.turn_to_pull().await,
        false => None,
    };
    // Another pull may have brought it while this one waited.
    if turn.is_some()
        && let Some(pulled) = here(source, image, store).await?
    {
        return Ok(pulled);
    }
    // Held before the first look: none of them is collected in between.
    let _held = store.blobs().map(|blobs| blobs.hold(image.blobs()));
    let room = find_room(image, store).await?;
    let with_holes = limits.unpacked_bytes;
    let limits = match room {
        Room::Unlimited => *limits,
        Room::Bytes { unpacked, .. } => Limits {
            unpacked_bytes: limits.unpacked_bytes.min(unpacked),
            ..*limits
        },
    };
    let attempt = Attempt {
        source,
        image,
        store,
        keeps_blobs: !matches!(
            room,
            Room::Bytes {
                keeps_blobs: false,
                ..
            }
        ),
        limits: &limits,
        with_holes,
        promise: room.promise(),
        progress,
    };
    let mut fetched_anew = BTreeSet::new();
    loop {
        let failure = match attempt.run().await {
            Ok(pulled) => return Ok(pulled),
            Err(failure) => failure,
        };
        // Each layer once: a disk that damages all that it holds must not keep a registry busy.
        match failure.damaged {
            Some(layer) if fetched_anew.insert(layer) => {
                tracing::warn!("{reference}: the layer {layer} is fetched once more");
            }
            _ => return Err(room.or_no_room(failure.error, &limits)),
        }
    }
}

/// The image if the store has it whole, under its new name. Blobs that it has lost are fetched.
async fn here(
    source: Source<'_>,
    image: &Verified<ResolvedImage>,
    store: &ImageStore,
) -> Result<Option<PulledImage>, PullError> {
    let reference = &image.reference;
    let Some(pulled) = usable(reference, image.digest(), store).await? else {
        return Ok(None);
    };
    let named = name_again(image, pulled, store);
    let named = named.map_err(|error| PullError::Store {
        reference: reference.clone(),
        source: error,
    })?;
    if !matches!(source, Source::Nowhere) {
        lost_blobs::fetch(source, image, &named, store).await;
    }
    Ok(Some(named))
}

/// The room for an image.
enum Room {
    /// In a store in memory.
    Unlimited,
    /// On a disk.
    Bytes {
        unpacked: u64,
        keeps_blobs: bool,
        facts: RoomFacts,
        /// Beside other pulls.
        promise: Arc<Promise>,
    },
}

impl Room {
    fn promise(&self) -> Option<Arc<Promise>> {
        match self {
            Room::Unlimited => None,
            Room::Bytes { promise, .. } => Some(promise.clone()),
        }
    }

    /// The failure of an unpacking, which is a lack of room if that was its limit.
    fn or_no_room(&self, error: PullError, limits: &Limits) -> PullError {
        match (self, error) {
            (
                Room::Bytes {
                    unpacked, facts, ..
                },
                PullError::Layer {
                    reference,
                    source: UnpackError::TooLarge { limit },
                    ..
                },
            ) if limit == *unpacked && limit == limits.unpacked_bytes => PullError::NoRoom {
                reference,
                lack: facts.lack(limit.saturating_add(1)),
            },
            (_, error) => error,
        }
    }
}

/// Plans the room before the first byte is fetched. A lack of it first has everything removed that nothing needs.
async fn find_room(image: &ResolvedImage, store: &ImageStore) -> Result<Room, PullError> {
    let Some(mut planned) = look(image, store, None).await? else {
        return Ok(Room::Unlimited);
    };
    for step in [Step::Blobs, Step::Images] {
        if matches!(planned.0.plan(), RoomPlan::WithBlobs(_)) {
            break;
        }
        // The next look must not see it as another pull's.
        planned.1 = None;
        if step == Step::Images {
            store.ask_for_room().await;
        }
        let collected = look(image, store, Some(Urgency::LackOfRoom)).await?;
        planned = collected.unwrap_or(planned);
    }
    let (facts, promise) = planned;
    let no_room = |lack| PullError::NoRoom {
        reference: image.reference.clone(),
        lack,
    };
    let (unpacked, keeps_blobs) = match facts.plan() {
        RoomPlan::WithBlobs(unpacked) => (unpacked, true),
        RoomPlan::WithoutBlobs(unpacked) => {
            tracing::warn!(
                "{}: its blobs are not kept, for lack of room: {}",
                image.reference,
                facts.lack(facts.missing.saturating_add(facts.packed))
            );
            (unpacked, false)
        }
        RoomPlan::None(lack) => return Err(no_room(lack)),
    };
    let Some(promise) = promise else {
        return Err(no_room(facts.lack(facts.packed)));
    };
    Ok(Room::Bytes {
        unpacked,
        keeps_blobs,
        facts,
        promise: Arc::new(promise),
    })
}

/// The kinds of data that are removed for lack of room, one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Blobs and shared files without an image.
    Blobs,
    /// Images that nothing needs, and then their blobs.
    Images,
}

/// Plans the room, after collecting if that is urgent.
async fn look(
    image: &ResolvedImage,
    store: &ImageStore,
    collect: Option<Urgency>,
) -> Result<Option<(RoomFacts, Option<Promise>)>, PullError> {
    let (looker, layers) = (store.clone(), image.layers.clone());
    let looking = blocking_io::to_its_end(move || {
        if let Some(urgency) = collect {
            looker.collect_surplus(urgency)?;
        }
        looker.plan_room(&layers)
    });
    let looked = looking.await.map_err(|source| PullError::Interrupted {
        reference: image.reference.clone(),
        source,
    })?;
    looked.map_err(|source| PullError::Store {
        reference: image.reference.clone(),
        source,
    })
}

/// An image of the store whose files are as they were unpacked. A damaged one is removed, with a line in the log.
pub(crate) async fn usable(
    name: &ImageReference,
    digest: Digest,
    store: &ImageStore,
) -> Result<Option<PulledImage>, PullError> {
    let stored = |source| PullError::Store {
        reference: name.clone(),
        source,
    };
    // Held before the look: what was found whole cannot be removed.
    let image = store.get(digest);
    let checker = store.clone();
    let checked = blocking_io::to_its_end(move || checker.check(digest)).await;
    let checked = checked.map_err(|source| PullError::Interrupted {
        reference: name.clone(),
        source,
    })?;
    match checked {
        // The check may have completed its record.
        Wholeness::Whole => Ok(store.get(digest).or(image)),
        Wholeness::Absent => Ok(None),
        Wholeness::Damaged(how) => {
            tracing::error!(
                "{name}: the image {digest} is damaged on the disk and is removed: {how}"
            );
            store.note_damage(digest, how);
            store.remove_damaged(digest).await.map_err(stored)?;
            Ok(None)
        }
    }
}

/// Gives an image that the store has already its new name, and the signatures that it was verified by now or that came with it.
fn name_again(
    image: &Verified<ResolvedImage>,
    pulled: PulledImage,
    store: &ImageStore,
) -> Result<PulledImage, StoreError> {
    if let Some(proof) = image.proof() {
        store.keep_proof(&pulled, proof)?;
    }
    store.keep_unjudged(&pulled, image.unjudged())?;
    let pulled = store.note_layers(pulled, &image.config.layers)?;
    store.add_name(pulled, &image.reference, image.named_digest)
}
