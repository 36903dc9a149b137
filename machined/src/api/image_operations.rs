//! Image calls: lists images, pulls one as the config says, and removes one unless it is needed.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::intent;
use crate::machine::Machine;
use crate::oci::{Limits, Progress, PullError, PulledImage, StoreError, VerifiedImage};
use crate::operation_lock::{Busy, Interrupted, Operation};
use crate::sequences::{Offer, offer};
use crate::values::{ImageReference, ReferenceError};

/// Limit on the pulls that callers started. A pull goes on after its caller has hung up.
const MOST_PULLS: usize = 4;
static PULLS: Semaphore = Semaphore::const_new(MOST_PULLS);

/// Why an image was not pulled or removed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    /// The name is not an image reference.
    #[error("{name:?} is no name of an image")]
    Name {
        /// The name, as given.
        name: String,
        /// Why.
        source: ReferenceError,
    },
    /// /var does not exist yet: on a machine without a disk it is there only after the boot.
    #[error("there is no place for images: /var is not mounted; wait until the machine has booted")]
    NoPlace,
    /// The pull failed.
    #[error("the image was not pulled")]
    Pull(#[source] Box<PullError>),
    /// The image is not in the store.
    #[error("there is no image {0} on this machine")]
    Unknown(Box<ImageReference>),
    /// A container needs the image.
    #[error("the image {image} is needed by the container {container} of the machine config")]
    Needed {
        /// The name, as given.
        image: Box<ImageReference>,
        /// The first container that needs it.
        container: String,
    },
    /// The image is pinned.
    #[error(
        "the image {image} is pinned as {pin}; unpin it first, by \"image unpin\" or in ImagePinConfig"
    )]
    Pinned {
        /// The name, as given.
        image: Box<ImageReference>,
        /// The name that is pinned.
        pin: Box<ImageReference>,
    },
    /// Another operation holds the lock: an upgrade may be using the image.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// Too many pulls: each takes a thread, and memory to unpack with.
    #[error("{MOST_PULLS} images are being pulled already; try again when one of them is here")]
    TooMany,
    /// The machine shuts down or reboots.
    #[error("the image was not pulled")]
    Interrupted(#[from] Interrupted),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<PullError> for ImageError {
    fn from(error: PullError) -> Self {
        Self::Pull(Box::new(error))
    }
}

/// Lists all images, by digest.
pub(super) fn list(machine: &Machine) -> Result<Vec<PulledImage>, StoreError> {
    machine.images.list()
}

/// Pulls an image into the store, unless it is there already, and reports the progress. If its registry is away, an image of this name in
/// the store is the answer, with a line in the log: an upgrade takes it as well. A pull runs beside other operations; an operation that ends
/// the machine ends the pull too.
pub(super) async fn pull(
    machine: &Arc<Machine>,
    name: &str,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<VerifiedImage, ImageError> {
    let reference = parse(name)?;
    if !machine.disk.status().borrow().var_mounted {
        return Err(ImageError::NoPlace);
    }
    let _place = PULLS.try_acquire().map_err(|_| ImageError::TooMany)?;
    let puller = intent::puller(machine.config().as_deref());
    let pulling = async {
        match offer(machine, &puller, &reference).await? {
            Offer::AtRegistry(resolved) => {
                let (images, limits) = (&machine.images, Limits::default());
                let pulled = puller.pull_with_progress(&resolved, images, &limits, progress);
                pulled.await
            }
            Offer::Here(image) => Ok(image),
        }
    };
    tokio::select! {
        pulled = pulling => {
            let image = pulled?;
            machine.images.note_asked_for(&image)?;
            Ok(image)
        }
        by = machine.operations.end_of_machine() => Err(Interrupted { by }.into()),
    }
}

/// Removes an image, by name or digest.
pub(super) async fn remove(machine: &Machine, name: &str) -> Result<(), ImageError> {
    let reference = parse(name)?;
    if !machine.disk.status().borrow().var_mounted {
        return Err(ImageError::NoPlace);
    }
    // An upgrade holds the lock while it needs its image.
    let _lock = machine.lock_operation(Operation::ImageRemove)?;
    let image = machine
        .images
        .find(&reference)
        .ok_or_else(|| ImageError::Unknown(Box::new(reference.clone())))?;
    if let Some(container) = needed_by(machine, &image) {
        return Err(ImageError::Needed {
            image: Box::new(reference),
            container,
        });
    }
    if let Some(pin) = machine.pins.name_of(image.digest()) {
        return Err(ImageError::Pinned {
            image: Box::new(reference),
            pin: Box::new(pin),
        });
    }
    Ok(machine.images.remove(image.digest()).await?)
}

fn parse(name: &str) -> Result<ImageReference, ImageError> {
    name.parse().map_err(|source| ImageError::Name {
        name: name.to_owned(),
        source,
    })
}

/// Returns the first container of the config that needs this image.
fn needed_by(machine: &Machine, image: &PulledImage) -> Option<String> {
    if let Some(container) = machine
        .images_in_force
        .containers_of(image.digest())
        .first()
    {
        return Some(container.clone());
    }
    let configured = machine.config()?;
    let needs = |wanted: &ImageReference| {
        let found = machine.images.find(wanted);
        found.is_some_and(|found| found.digest() == image.digest())
    };
    let mut containers = configured.config.containers.iter();
    let container = containers.find(|container| needs(&container.image))?;
    Some(container.name.to_string())
}
