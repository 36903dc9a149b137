//! The images of extensions that may be used: whole, and allowed by the rules for images in force.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::timeout;

use crate::intent;
use crate::machine::{Configured, Machine};
use crate::oci::VerifiedImage;
use crate::pins::{PinFact, State};
use crate::values::ImageReference;

/// Time limit for a registry to name a signature that is not kept with the image.
const LOOK: Duration = Duration::from_secs(10);

/// Images that were looked at under one config. While they are here, the store keeps them.
#[derive(Default)]
pub(super) struct Admitted {
    under: Option<Arc<Configured>>,
    images: BTreeMap<ImageReference, VerifiedImage>,
}

impl Admitted {
    /// Returns a pinned image, if it may be used; `None` while it is not here.
    ///
    /// # Errors
    /// The rules do not allow it; the store failed.
    pub(super) async fn get(
        &mut self,
        machine: &Machine,
        configured: &Arc<Configured>,
        name: &ImageReference,
    ) -> anyhow::Result<Option<VerifiedImage>> {
        if !self
            .under
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, configured))
        {
            // Another config may have other rules.
            self.images.clear();
            self.under = Some(configured.clone());
        }
        let fact = machine.store.get::<PinFact>(&name.to_string());
        let Some(State::Pinned { digest }) = fact.map(|fact| fact.state) else {
            return Ok(None);
        };
        if let Some(known) = self.images.get(name)
            && known.digest() == digest
        {
            return Ok(Some(known.clone()));
        }
        let puller = intent::puller(Some(configured));
        let Some(image) = puller.whole(name, digest, &machine.images).await? else {
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
        self.images.insert(name.clone(), image.clone());
        Ok(Some(image))
    }
}
