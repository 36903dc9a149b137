//! The images of extensions that may be used: whole, and allowed by the rules for images in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;

use crate::intent;
use crate::kubernetes::trial::Chosen;
use crate::machine::{Configured, Machine};
use crate::oci::{VerifiedImage, file_of, image_of_file};
use crate::values::Digest;

/// Time limit for a registry to name a signature that is not kept with the image.
const LOOK: Duration = Duration::from_secs(10);

/// Images that were looked at under one config. While they are here, the store keeps them.
#[derive(Default)]
pub(super) struct Admitted {
    under: Option<Arc<Configured>>,
    images: BTreeMap<Digest, VerifiedImage>,
}

impl Admitted {
    /// Returns an image of the store, if it may be used by this name; `None` if it is not here.
    ///
    /// # Errors
    /// The rules do not allow it; the store failed.
    pub(super) async fn get(
        &mut self,
        machine: &Machine,
        configured: &Arc<Configured>,
        chosen: &Chosen,
    ) -> anyhow::Result<Option<VerifiedImage>> {
        let is_same = |under: &Arc<Configured>| Arc::ptr_eq(under, configured);
        if !self.under.as_ref().is_some_and(is_same) {
            // Another config may have other rules.
            self.images.clear();
            self.under = Some(configured.clone());
        }
        let Chosen {
            image: name,
            digest,
        } = chosen;
        if let Some(known) = self.images.get(digest) {
            return Ok(Some(known.clone()));
        }
        if file_of(name).is_some() {
            let image = image_of_file(&machine.images, name).await?;
            self.images
                .extend(image.clone().map(|image| (*digest, image)));
            return Ok(image);
        }
        let puller = intent::puller(Some(configured));
        let Some(image) = puller.whole(name, *digest, &machine.images).await? else {
            return Ok(None);
        };
        let admitted = timeout(LOOK, puller.admit(name, image, &machine.images)).await;
        let late = || {
            format!(
                "its registry named no signature within {} s",
                LOOK.as_secs()
            )
        };
        let image = admitted.with_context(late)??;
        self.images.insert(*digest, image.clone());
        Ok(Some(image))
    }
}
