//! The extensions that may be used: their images whole and allowed by the rules in force, their units such as this machine serves.

use std::collections::BTreeMap;
use std::sync::Arc;

use instar_kubernetes_plan::PlannedExtension;

use crate::base::blocking_io::{self, ANSWER};
use crate::kubernetes;
use crate::kubernetes::trial::Chosen;
use crate::machine::{Configured, Machine};
use crate::oci::VerifiedImage;
use crate::sequences::extension_image::admitted;
use crate::values::Digest;

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
        let Some(image) = admitted(machine, configured, chosen).await? else {
            return Ok(None);
        };
        let (of, version, node) = (name.to_owned(), &machine.running.version, node.to_owned());
        let version = version.clone();
        let proven = machine.node_record.get().proven;
        let is_it = |it: &Chosen| it.digest == chosen.digest;
        let is_proven = proven.is_some_and(|images| images.values().any(is_it));
        let check = move || {
            let planned = kubernetes::checked(&of, &image, &version, &node, is_proven);
            (image, planned)
        };
        let (image, planned) = blocking_io::within(ANSWER, check).await?;
        let planned = planned?;
        self.extensions.insert(key, (image, planned.clone()));
        Ok(Some(planned))
    }
}
