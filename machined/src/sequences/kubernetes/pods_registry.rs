//! The registry for pods: containerd finds the images here that are pinned or came by a bundle, before it asks their registries.
//!
//! ```text
//! pins, bundles ──► the images with their blobs ──► http://127.0.0.1:PORT/v2/REGISTRY/REPOSITORY ──► hosts.toml of each REGISTRY
//! ```
//!
//! Each registry has its own path, so that an image of one is never taken for that of another. A tag means the image that was pinned or
//! bundled: it is asked of its registry again only when nothing here has that name.

use std::collections::BTreeSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::task::JoinHandle;

use crate::base::blocking_io::{self, ANSWER};
use crate::kubernetes::PODS_REGISTRY;
use crate::left_sockets::{LeftSockets, Socket};
use crate::machine::Machine;
use crate::oci::PulledImage;
use crate::sequences::serve_images::usual;
use crate::temporary_registry::{Offer, serve_on};
use crate::values::{Digest, ImageReference};

/// The pause after the address could not be listened on.
const PAUSE: Duration = Duration::from_secs(30);

/// A name by which an image is served. A tag may move from one of the images to another.
type Served = (ImageReference, Digest);

/// The registry, while it is served.
#[derive(Default)]
pub(super) struct PodsRegistry {
    served: BTreeSet<Served>,
    registries: BTreeSet<String>,
    place: Place,
    server: Option<JoinHandle<()>>,
}

/// The address. It is kept over changes of the images, and of versions: a pod with the node's network could take it in between, and containerd would
/// ask that pod.
#[derive(Default)]
struct Place {
    listener: Option<Arc<TcpListener>>,
    /// The last failure, and when it was.
    failed: Option<(Instant, String)>,
}

impl Place {
    /// Listens at this address, if it does not yet. `left`: the sockets that the generation before has left.
    ///
    /// # Errors
    /// The address cannot be listened on, or it could not a moment ago.
    fn listen(
        &mut self,
        address: SocketAddr,
        left: &LeftSockets,
        now: Instant,
    ) -> anyhow::Result<TcpListener> {
        if let Some((at, why)) = &self.failed
            && now.saturating_duration_since(*at) < PAUSE
        {
            bail!(why.clone());
        }
        match self.try_listen(address, left) {
            Ok(listener) => {
                self.failed = None;
                Ok(listener)
            }
            Err(error) => {
                let why = format!(
                    "images of this machine for pods: cannot listen at {address}, so containerd asks registries alone; a pod with the node's \
                     network may have the port: {error}"
                );
                self.failed = Some((now, why.clone()));
                bail!(why)
            }
        }
    }

    fn try_listen(&mut self, address: SocketAddr, left: &LeftSockets) -> io::Result<TcpListener> {
        if let Some(listener) = &self.listener {
            return listener.try_clone();
        }
        let listener = match left.take_at(Socket::ImagesForPods, address) {
            Some(listener) => TcpListener::from(listener),
            None => TcpListener::bind(address)?,
        };
        listener.set_nonblocking(true)?;
        let for_server = listener.try_clone()?;
        self.listener = Some(Arc::new(listener));
        Ok(for_server)
    }
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
        if wanted.is_empty() {
            machine.left_sockets.close(Socket::ImagesForPods);
        }
        let has_ended = self.server.as_ref().is_some_and(JoinHandle::is_finished);
        if wanted == self.served && !has_ended {
            return Ok(self.registries.clone());
        }
        let address: SocketAddr = PODS_REGISTRY.parse().context("the address for pods")?;
        let listener = match wanted.is_empty() {
            true => None,
            false => Some(
                self.place
                    .listen(address, &machine.left_sockets, Instant::now())?,
            ),
        };
        if let Some(listener) = &self.place.listener {
            machine.images_port.send_replace(Arc::downgrade(listener));
        }
        let offering = {
            let machine = machine.clone();
            move || offer(&machine, images)
        };
        let offered = blocking_io::within(ANSWER, offering).await?;
        self.end().await;
        self.served = wanted;
        let Some((listener, (offer, registries))) = listener.zip(offered) else {
            self.place = Place::default();
            tell_closed(machine);
            return Ok(BTreeSet::new());
        };
        tracing::info!(
            "Kubernetes: pods have {} images of this machine",
            offer.len()
        );
        let listener = tokio::net::TcpListener::from_std(listener);
        let listener = listener.context("serve images of this machine for pods")?;
        self.server = Some(crate::base::task::spawn(serve_on(listener, offer)));
        self.registries = registries;
        Ok(self.registries.clone())
    }

    /// Ends the server. Callers wait at the address for the next one.
    async fn end(&mut self) {
        self.served.clear();
        self.registries.clear();
        if let Some(server) = self.server.take() {
            server.abort();
            // It has ended, by this or before.
            let _ = server.await;
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

/// Tells who keeps a copy of the socket that it is closed: in init's, callers would wait for ever, and nobody could listen at the address again.
pub(super) fn tell_closed(machine: &Machine) {
    machine.images_port.send_if_modified(|port| {
        let closed = Weak::new();
        let was_open = !port.ptr_eq(&closed);
        *port = closed;
        was_open
    });
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
    use std::collections::BTreeMap;

    use crate::containers::registry_for_tests::SignedRegistry;
    use crate::oci::{ImageStore, Keeps, Limits};
    use crate::sequences::image_pins::machine_for_tests::unbooted;

    // No other test takes ports of this address in between.
    #[test]
    fn the_address_is_kept_from_one_server_to_the_next() {
        let mut place = Place::default();
        let any: SocketAddr = "127.0.0.77:0".parse().unwrap();
        let none = LeftSockets::default();
        let first = place.listen(any, &none, Instant::now()).unwrap();
        let address = first.local_addr().unwrap();
        drop(first);
        TcpListener::bind(address).unwrap_err();
        let second = place.listen(any, &none, Instant::now()).unwrap();
        assert_eq!(second.local_addr().unwrap(), address);
    }

    #[test]
    fn the_address_is_kept_from_one_version_to_the_next() {
        let listener = TcpListener::bind("127.0.0.79:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut kept = BTreeMap::from([("socket.images".to_owned(), listener.into())]);
        let left = LeftSockets::find(&mut kept);
        let mut place = Place::default();
        let taken = place.listen(address, &left, Instant::now()).unwrap();
        assert_eq!(taken.local_addr().unwrap(), address);
        TcpListener::bind(address).unwrap_err();
    }

    #[test]
    fn an_address_that_another_has_is_tried_again_after_a_pause() {
        let other = TcpListener::bind("127.0.0.77:0").unwrap();
        let address = other.local_addr().unwrap();
        let (mut place, begin) = (Place::default(), Instant::now());
        let none = LeftSockets::default();
        let why = place.listen(address, &none, begin).unwrap_err().to_string();
        assert!(why.contains("cannot listen at 127.0.0.77:"), "{why}");
        drop(other);
        let early = place.listen(address, &none, begin + PAUSE / 2).unwrap_err();
        assert_eq!(early.to_string(), why);
        place.listen(address, &none, begin + PAUSE).unwrap();
    }

    /// At a machine that is a node no more, its server is given up without a word.
    #[tokio::test]
    async fn who_keeps_a_copy_of_the_socket_is_told_once_that_it_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let machine = unbooted(directory.path()).await;
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
        machine.images_port.send_replace(Arc::downgrade(&listener));
        let mut port = machine.images_port.subscribe();
        tell_closed(&machine);
        assert!(port.has_changed().unwrap());
        assert!(port.borrow_and_update().upgrade().is_none());
        tell_closed(&machine);
        assert!(!port.has_changed().unwrap());
    }

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
