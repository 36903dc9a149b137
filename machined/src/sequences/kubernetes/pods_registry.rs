//! The registry for pods: containerd finds the images here that are pinned or came by a bundle, before it asks their registries.
//!
//! ```text
//! pins, bundles ──► the images with their blobs ──► http://127.0.0.1:PORT/v2/REGISTRY/REPOSITORY ──► hosts.toml of each REGISTRY
//! ```
//!
//! Each registry has its own path, so that an image of one is never taken for that of another. A tag means the image that was pinned or
//! bundled: it is asked of its registry again only when nothing here has that name.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::task::JoinHandle;

use crate::base::blocking_io::{self, ANSWER};
use crate::kubernetes::PODS_REGISTRY;
use crate::machine::Machine;
use crate::oci::PulledImage;
use crate::sequences::serve_images::usual;
use crate::temporary_registry::{CannotServe, Offer, serve_on};
use crate::values::{Digest, ImageReference};

/// A name by which an image is served. A tag may move from one of the images to another.
type Served = (ImageReference, Digest);

/// The registry, while it is served.
#[derive(Default)]
pub(super) struct PodsRegistry {
    served: BTreeSet<Served>,
    registries: BTreeSet<String>,
    server: Option<JoinHandle<Result<(), CannotServe>>>,
}

impl PodsRegistry {
    /// Serves the images that are pinned or came by a bundle now; returns the registries that they belong to.
    ///
    /// # Errors
    /// The images cannot be read, or the address cannot be listened on: containerd asks registries alone then.
    pub(super) async fn tend(
        &mut self,
        machine: &Arc<Machine>,
    ) -> anyhow::Result<BTreeSet<String>> {
        let images = usual(machine);
        let wanted = names(&images);
        let has_ended = self.server.as_ref().is_some_and(JoinHandle::is_finished);
        if wanted == self.served && !has_ended {
            return Ok(self.registries.clone());
        }
        self.end().await?;
        let offering = {
            let machine = machine.clone();
            move || offer(&machine, images)
        };
        let Some((offer, registries)) = blocking_io::within(ANSWER, offering).await? else {
            self.served = wanted;
            return Ok(BTreeSet::new());
        };
        tracing::info!(
            "Kubernetes: pods have {} images of this machine",
            offer.len()
        );
        let address: SocketAddr = PODS_REGISTRY.parse().context("the address for pods")?;
        self.server = Some(crate::base::task::spawn(serve_on(address, offer)));
        self.served = wanted;
        self.registries = registries;
        Ok(self.registries.clone())
    }

    /// Ends the server. Returns why it has ended by itself.
    async fn end(&mut self) -> anyhow::Result<()> {
        self.served.clear();
        self.registries.clear();
        let Some(server) = self.server.take() else {
            return Ok(());
        };
        server.abort();
        match server.await {
            Ok(ended) => ended.context("images of this machine for pods"),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for PodsRegistry {
    fn drop(&mut self) {
        if let Some(server) = &self.server {
            server.abort();
        }
    }
}

/// Returns all names of images, each with the image that it means.
fn names(images: &[(ImageReference, PulledImage)]) -> BTreeSet<Served> {
    let names = images.iter().flat_map(|(name, image)| {
        let names = image.names().iter().chain([name]);
        names.map(|name| (name.clone(), image.digest()))
    });
    names.collect()
}

/// Reads the documents of the images; none if no image has its blobs here.
fn offer(
    machine: &Machine,
    images: Vec<(ImageReference, PulledImage)>,
) -> Option<(Offer, BTreeSet<String>)> {
    let mut offer = Offer::by_registry(machine.images.blobs()?);
    let mut registries = BTreeSet::new();
    for (name, image) in images {
        let names = image.names().iter().chain([&name]);
        let of: BTreeSet<String> = names.map(|it| it.registry().to_string()).collect();
        match offer.add(&name, image) {
            Ok(()) => registries.extend(of),
            // A file of an extension, for example, which no registry has.
            Err(error) => tracing::debug!("{:#}", anyhow::Error::from(error)),
        }
    }
    (!offer.is_empty()).then_some((offer, registries))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::containers::registry_for_tests::SignedRegistry;
    use crate::oci::{ImageStore, Keeps, Limits};

    /// Both images stay, as two bundles have brought them.
    #[tokio::test]
    async fn a_tag_that_moves_from_one_image_to_another_is_served_anew() {
        let directory = tempfile::tempdir().unwrap();
        let store = ImageStore::new(directory.path().to_owned(), Keeps::ImagesAlone);
        let (registry, limits) = (SignedRegistry::start(), Limits::default());
        let puller = registry.puller();
        let old = registry.push("web:v1", "old");
        let new = registry.push("web:v1", "new");
        let pull = async |name: ImageReference| {
            let resolved = puller.look_up(&name).await.unwrap();
            puller.pull(&resolved, &store, &limits).await.unwrap();
        };
        let served = || {
            let images = store.list().unwrap().into_iter();
            let images = images.map(|image| (image.names().first().unwrap().clone(), image));
            names(&images.collect::<Vec<_>>())
        };
        for named in [old.index, new.index] {
            pull(old.name.at(named)).await;
        }
        store
            .add_name(store.get(old.manifest).unwrap(), &old.name, old.index)
            .unwrap();
        let before = served();
        assert!(before.contains(&(old.name.clone(), old.manifest)));
        assert_eq!(served(), before);
        pull(new.name.clone()).await;
        let after = served();
        assert!(after.contains(&(new.name.clone(), new.manifest)) && after != before);
        let digests = |served: &BTreeSet<Served>| -> BTreeSet<Digest> {
            served.iter().map(|(_, digest)| *digest).collect()
        };
        assert_eq!(digests(&before), digests(&after));
    }
}
