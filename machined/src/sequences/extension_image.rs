//! The image of an extension, whole and allowed by the rules in force.

use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;

use crate::containers::ImageDigests;
use crate::intent;
use crate::kubernetes::trial::Chosen;
use crate::machine::{Configured, Machine};
use crate::oci::{VerifiedImage, file_of, image_of_file};

/// Time limit for a registry to name a signature that is not kept with the image.
const LOOK: Duration = Duration::from_secs(10);

/// Returns an image of the store, if it may be used by this name; `None` if it is not here.
///
/// # Errors
/// The rules do not allow it; the store failed.
pub(super) async fn admitted(
    machine: &Machine,
    configured: &Configured,
    chosen: &Chosen,
) -> anyhow::Result<Option<VerifiedImage>> {
    let Chosen {
        image: name,
        digest,
    } = chosen;
    if file_of(name).is_some() {
        return Ok(image_of_file(&machine.images, name).await?);
    }
    let puller = intent::puller(Some(configured));
    let Some(image) = puller.whole(name, *digest, &machine.images).await? else {
        return Ok(None);
    };
    // Its name may have come to a signed index after the pull: the pin knows that one.
    let pinned = machine.pins.meaning(name).map(|meaning| meaning.image());
    let digests = ImageDigests::of_pulled(&image, pinned);
    let admitted = digests.admit(&puller, name, image, &machine.images);
    let admitted = timeout(LOOK, admitted).await;
    let late = || {
        format!(
            "its registry named no signature within {} s",
            LOOK.as_secs()
        )
    };
    Ok(Some(admitted.with_context(late)??))
}
