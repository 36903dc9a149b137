//! The plan of an upgrade that is prepared ahead: which images it needs, which of them have to be fetched, and the room for them.
//!
//! It needs its installer's image, and the image of each container of the config: the containers start anew if the upgrade reboots.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::{Found, Offer, Var, look_up, plan};
use crate::base::error_chain::chain;
use crate::containers::ImageDigests;
use crate::machine::Machine;
use crate::oci::{Layer, Puller, ResolvedImage, RoomForAll};
use crate::pins::{Meaning, Preparation, Terms};
use crate::sequences::room_ahead::{Making, room_ahead};
use crate::sequences::steps::boot_assets;
use crate::upgrade::{Refusal, Route, UpgradeError, UpgradeRequest};
use crate::values::{Digest, ImageReference};

/// Whether the upgrade is prepared, or only planned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ahead {
    /// Nothing changes.
    Plan,
    /// Its images are pinned; when they are here, its version is written.
    Prepare,
}

/// An image that the upgrade needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NeededImage {
    /// Its name.
    pub reference: ImageReference,
    /// The digest of its manifest.
    pub digest: Digest,
    /// That of its index, if it has one.
    index: Option<Digest>,
    /// Its layers, and all blobs that it is made from; none if it is here.
    layers: Vec<Layer>,
    blobs: Vec<Digest>,
}

/// The plan of an upgrade ahead: the images that it needs, and the room for them.
pub struct AheadPlan {
    /// The version that it would bring.
    pub version: String,
    /// Objections that force overrides.
    pub overridden: Vec<Refusal>,
    /// The images, the installer's first.
    pub images: Vec<NeededImage>,
    /// The room for those that are to be fetched.
    pub room: RoomForAll,
}

impl NeededImage {
    fn here(reference: ImageReference, image: ImageDigests) -> Self {
        NeededImage {
            reference,
            digest: image.digest,
            index: image.index,
            layers: Vec::new(),
            blobs: Vec::new(),
        }
    }

    fn of(machine: &Machine, reference: ImageReference, image: &ResolvedImage) -> Self {
        let digests = ImageDigests::of_resolved(image);
        if machine.images.get(digests.digest).is_some() {
            return NeededImage::here(reference, digests);
        }
        NeededImage {
            reference,
            digest: digests.digest,
            index: digests.index,
            layers: image.layers.clone(),
            blobs: image.blobs(),
        }
    }

    /// Bytes of its layers, if they are not here.
    pub fn bytes(&self) -> u64 {
        let sizes = self.layers.iter().map(|layer| layer.size);
        sizes.fold(0, u64::saturating_add)
    }
}

/// Plans an upgrade ahead, and has it prepared if that is wanted. A task of the machine does the rest, within the terms.
///
/// # Errors
/// Those of an upgrade that can be known before its image is here, and a lack of room. Nothing has changed.
pub async fn prepare_ahead(
    machine: &Arc<Machine>,
    request: &UpgradeRequest,
    terms: Terms,
    ahead: Ahead,
) -> Result<AheadPlan, UpgradeError> {
    machine.operations.check_free()?;
    let reference: ImageReference = request.image.parse().map_err(UpgradeError::Reference)?;
    let found = look_up(machine, &pinned(machine, request, &reference)).await?;
    let shortest = plan(machine, &found.candidate, Var::AsItSays)?.path;
    if let Route::Reboot(why) = found.starts.route(shortest)
        && !boot_assets::keeps_a_version(machine)
            .await
            .map_err(UpgradeError::Machine)?
    {
        return Err(UpgradeError::NowhereToKeep(why));
    }
    let digest = found.offer.digest();
    let images = needed(machine, &reference, &found).await?;
    let room = room(machine, &images, ahead).await;
    let room = room.map_err(UpgradeError::Machine)?;
    let plan = AheadPlan {
        version: found.candidate.version.to_string(),
        overridden: found.overridden,
        images,
        room,
    };
    if ahead == Ahead::Prepare {
        let preparation = Preparation {
            image: reference,
            digest,
            version: plan.version.clone(),
            images: plan.images.iter().map(|it| it.reference.clone()).collect(),
            terms,
            force: request.force,
            during: machine.running.version.clone(),
            is_written: false,
        };
        begin(machine, preparation, &plan).await?;
    }
    Ok(plan)
}

/// The request by the digest that a pinned name means: the key of an image that is here, and else what its registry is asked for.
fn pinned(machine: &Machine, request: &UpgradeRequest, image: &ImageReference) -> UpgradeRequest {
    let meaning = machine.pins.meaning(image);
    let name = match (meaning, image.digest()) {
        (Some(meaning), None) => {
            let digest = match machine.images.get(meaning.digest) {
                Some(_) => meaning.digest,
                None => meaning.image().named(),
            };
            format!("{image}@{digest}")
        }
        _ => request.image.clone(),
    };
    UpgradeRequest {
        image: name,
        ..request.clone()
    }
}

/// Finds all images that the upgrade needs.
async fn needed(
    machine: &Arc<Machine>,
    installer: &ImageReference,
    found: &Found,
) -> Result<Vec<NeededImage>, UpgradeError> {
    let first = match &found.offer {
        Offer::Here(image) => {
            let meaning = machine.pins.meaning(installer);
            let known = meaning.map(|meaning| meaning.image());
            NeededImage::here(installer.clone(), ImageDigests::of_pulled(image, known))
        }
        Offer::AtRegistry(image) => NeededImage::of(machine, installer.clone(), image),
    };
    let mut images = vec![first];
    let until = Instant::now() + LOOK_UP;
    let Some(configured) = machine.config() else {
        return Ok(images);
    };
    for container in &configured.config.containers {
        let in_force = machine
            .images_in_force
            .image(container.name.as_str(), &container.image);
        let name = match in_force {
            Some(image) => container.image.at(image.digest),
            None => container.image.clone(),
        };
        if images.iter().any(|image| image.reference == name) {
            continue;
        }
        images.push(find(machine, &found.puller, name, in_force, until).await?);
    }
    Ok(images)
}

/// Time limit for registries that could only say of images what the store says as well, for all images together.
const LOOK_UP: Duration = Duration::from_secs(10);

/// Finds the image of a container: in the store if its name has a digest or means one, else at its registry, or in the store by its name if
/// that is away. `in_force`: the one that the container runs, if it has run.
async fn find(
    machine: &Machine,
    puller: &Puller,
    name: ImageReference,
    in_force: Option<ImageDigests>,
    until: Instant,
) -> Result<NeededImage, UpgradeError> {
    let meant = machine.pins.meaning(&name).map(|meaning| meaning.image());
    let in_force = in_force.map(|image| image.or_index_of(meant));
    let known = in_force.or(meant);
    // What a pinned name means is no question for its registry either.
    let meant = known.and_then(|known| machine.images.get(known.digest));
    let here = machine.images.find(&name);
    let fixed = here.clone().filter(|_| name.digest().is_some());
    if let Some(image) = meant.or(fixed) {
        let digests = ImageDigests::of_pulled(&image, known);
        return Ok(NeededImage::here(name, digests));
    }
    let asked_for = async {
        match known {
            Some(known) => puller.verify(known.resolve(puller, &name).await?).await,
            None => puller.look_up(&name).await,
        }
    };
    let Some(here) = here else {
        let image = asked_for.await?;
        return Ok(NeededImage::of(machine, name, &image));
    };
    let why = match timeout_at(until, asked_for).await {
        Ok(Ok(image)) => return Ok(NeededImage::of(machine, name, &image)),
        Ok(Err(error)) if error.is_unreachable() => chain(&error),
        Ok(Err(error)) => return Err(error.into()),
        Err(_) => format!("no answer within {} s", LOOK_UP.as_secs()),
    };
    let digests = ImageDigests::of_pulled(&here, known);
    tracing::warn!(
        "{name}: its registry is away, {} is planned with, which is here: {why}",
        digests.digest
    );
    Ok(NeededImage::here(name, digests))
}

/// Computes the room; the first image is the installer's.
async fn room(
    machine: &Machine,
    images: &[NeededImage],
    ahead: Ahead,
) -> anyhow::Result<RoomForAll> {
    let making = match ahead {
        Ahead::Prepare => Making::MakesRoom,
        Ahead::Plan => Making::Looks,
    };
    let mut layers: Vec<Vec<Layer>> = images.iter().map(|image| image.layers.clone()).collect();
    let installer = layers.remove(0);
    room_ahead(&machine.images, &installer, &layers, making).await
}

/// Pins the images, and notes the upgrade.
async fn begin(
    machine: &Machine,
    preparation: Preparation,
    plan: &AheadPlan,
) -> Result<(), UpgradeError> {
    if !plan.room.is_enough() {
        let count = plan.images.len();
        return Err(UpgradeError::NoRoom(count, plan.room.numbers));
    }
    let meanings = plan.images.iter().map(|image| {
        let digests = ImageDigests {
            digest: image.digest,
            index: image.index,
        };
        let meaning = Meaning::of(digests, image.blobs.clone());
        (image.reference.clone(), meaning)
    });
    let prepared = machine.pins.prepare(preparation, meanings.collect()).await;
    prepared.map_err(UpgradeError::TooManyPins)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::registry_for_tests::SignedRegistry;
    use crate::sequences::image_pins::machine_for_tests::unbooted;

    #[tokio::test]
    async fn a_containers_image_is_asked_for_by_its_index_and_the_pin_knows_it() {
        let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
        let machine = unbooted(directory.path()).await;
        let web = registry.push("web:v1", "web");
        registry.push("web:v1", "newer");
        let (puller, name) = (registry.puller(), web.name.at(web.manifest));
        let known = ImageDigests {
            digest: web.manifest,
            index: Some(web.index),
        };
        let needed = find(
            &machine,
            &puller,
            name.clone(),
            Some(known),
            Instant::now() + LOOK_UP,
        );
        let needed = needed.await.unwrap();
        let digests = ImageDigests {
            digest: needed.digest,
            index: needed.index,
        };
        assert_eq!((&needed.reference, digests), (&name, known));
        assert!(needed.bytes() > 0);

        // What a pin knows is enough as well.
        let meaning = Meaning::of(known, needed.blobs);
        machine.pins.note(vec![(web.name.clone(), meaning)]).await;
        let needed = find(
            &machine,
            &puller,
            web.name.clone(),
            None,
            Instant::now() + LOOK_UP,
        )
        .await;
        assert_eq!(needed.unwrap().digest, web.manifest);
        let request = UpgradeRequest {
            image: web.name.to_string(),
            force: false,
            mode: crate::upgrade::UpgradeMode::Quickest,
        };
        let asked_for = || pinned(&machine, &request, &web.name).image;
        assert_eq!(asked_for(), format!("{}@{}", web.name, web.index));
        let image = puller.look_up(&asked_for().parse().unwrap()).await.unwrap();
        let limits = Default::default();
        let pulled = puller.pull(&image, &machine.images, &limits).await;
        pulled.unwrap();
        // It is here: the store knows it by its manifest.
        assert_eq!(asked_for(), format!("{}@{}", web.name, web.manifest));
    }

    async fn found(
        machine: &Machine,
        puller: &Puller,
        name: &ImageReference,
    ) -> Result<Digest, UpgradeError> {
        let needed = find(
            machine,
            puller,
            name.clone(),
            None,
            Instant::now() + LOOK_UP,
        )
        .await?;
        Ok(needed.digest)
    }

    #[tokio::test]
    async fn an_image_that_is_here_is_planned_with_while_its_registry_is_silent() {
        let (registry, directory) = (SignedRegistry::start(), tempfile::tempdir().unwrap());
        let (puller, machine) = (registry.puller(), unbooted(directory.path()).await);
        let (web, db) = (registry.push("web:v1", "web"), registry.push("db:v1", "db"));
        let limits = Default::default();
        for image in [&web, &db] {
            let resolved = puller.look_up(&image.name).await.unwrap();
            let pulled = puller.pull(&resolved, &machine.images, &limits).await;
            pulled.unwrap();
        }
        // The tags move on; a pin says which image one of them means.
        registry.push("web:v1", "newer web");
        let newer = registry.push("db:v1", "newer db");
        let known = ImageDigests {
            digest: web.manifest,
            index: Some(web.index),
        };
        let meaning = Meaning::of(known, Vec::new());
        machine.pins.note(vec![(web.name.clone(), meaning)]).await;
        assert_eq!(
            found(&machine, &puller, &db.name).await.unwrap(),
            newer.manifest
        );

        registry.fall_silent();
        tokio::time::pause();
        let began = Instant::now();
        assert_eq!(
            found(&machine, &puller, &web.name).await.unwrap(),
            web.manifest
        );
        assert!(began.elapsed() < LOOK_UP, "its registry was asked");
        assert_eq!(
            found(&machine, &puller, &db.name).await.unwrap(),
            db.manifest
        );
        assert!(began.elapsed() < 2 * LOOK_UP, "it waited too long");
    }
}
