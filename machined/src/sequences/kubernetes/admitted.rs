//! The extensions that may be used: their images whole and allowed by the rules in force, their units such as this machine serves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use instar_kubernetes_plan::PlannedExtension;
use tokio::time::timeout;

use crate::intent;
use crate::kubernetes;
use crate::kubernetes::trial::Chosen;
use crate::machine::{Configured, Machine};
use crate::oci::{VerifiedImage, file_of, image_of_file};
use crate::values::Digest;

/// Time limit for a registry to name a signature that is not kept with the image.
const LOOK: Duration = Duration::from_secs(10);

/// Extensions that were checked for one node under one config. While they are here, the store keeps their images.
#[derive(Default)]
pub(super) struct Admitted {
    under: Option<(Arc<Configured>, String)>,
    extensions: BTreeMap<(String, Digest), (VerifiedImage, PlannedExtension)>,
}

impl Admitted {
    /// Returns an extension, if it may be used; `None` if its image is not here. Its files are read once: an image does not change.
    ///
    /// # Errors
    /// The rules do not allow its image; it does not fit the machine; the store failed.
    pub(super) async fn extension(
        &mut self,
        machine: &Machine,
        configured: &Arc<Configured>,
        node: &str,
        name: &str,
        chosen: &Chosen,
    ) -> anyhow::Result<Option<PlannedExtension>> {
        let is_same =
            |(under, of): &(Arc<Configured>, String)| Arc::ptr_eq(under, configured) && of == node;
        if !self.under.as_ref().is_some_and(is_same) {
            // Another config may have other rules, and a unit may ask for the node's name.
            self.extensions.clear();
            self.under = Some((configured.clone(), node.to_owned()));
        }
        let key = (name.to_owned(), chosen.digest);
        if let Some((_, known)) = self.extensions.get(&key) {
            return Ok(Some(known.clone()));
        }
        let Some(image) = image(machine, configured, chosen).await? else {
            return Ok(None);
        };
        let planned = kubernetes::checked(name, &image, &machine.running.version, node)?;
        self.extensions.insert(key, (image, planned.clone()));
        Ok(Some(planned))
    }
}

/// Returns an image of the store, if it may be used by this name; `None` if it is not here.
async fn image(
    machine: &Machine,
    configured: &Arc<Configured>,
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
    let admitted = timeout(LOOK, puller.admit(name, image, &machine.images)).await;
    let late = || {
        format!(
            "its registry named no signature within {} s",
            LOOK.as_secs()
        )
    };
    Ok(Some(admitted.with_context(late)??))
}
