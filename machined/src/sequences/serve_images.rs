//! Begins the temporary registry: chooses the images that it serves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig;

use crate::base::blocking_io::{self, ANSWER, NoAnswer};
use crate::machine::Machine;
use crate::oci::PulledImage;
use crate::temporary_registry::{CannotServe, NotServable, Offer};
use crate::trust::OwnCertificates;
use crate::values::ImageReference;

/// Why no images are served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A machine without a disk keeps no blobs.
    #[error("this machine keeps its images in memory, without the blobs that a registry serves")]
    NoBlobs,
    /// An image is not here.
    #[error("there is no image {0} on this machine")]
    Unknown(Box<ImageReference>),
    /// An image cannot be served.
    #[error(transparent)]
    NotServable(#[from] NotServable),
    /// There is nothing to serve.
    #[error("no image is pinned, and none came by a bundle: name the images to serve")]
    Nothing,
    /// The registry cannot begin.
    #[error(transparent)]
    CannotServe(#[from] CannotServe),
    /// No authority signs for this machine.
    #[error(
        "there is no certificate for TLS that others could check: the machine config has no authority with its key"
    )]
    NoCertificate,
    /// The certificate cannot be used.
    #[error("the certificate of the API cannot serve images")]
    Certificate(#[source] anyhow::Error),
    /// The disk does not answer.
    #[error("the images were not read")]
    NoAnswer(#[from] NoAnswer),
}

/// Serves these images, or all that are pinned or came by a bundle, with the API's certificate or without TLS; returns the address, and the
/// images.
///
/// # Errors
/// Nothing is served.
pub async fn serve_images(
    machine: &Arc<Machine>,
    images: Vec<ImageReference>,
    address: SocketAddr,
    time: Duration,
    with_tls: bool,
) -> Result<(SocketAddr, Vec<String>), ServeError> {
    let tls = match with_tls {
        true => Some(tls(machine.own_certificates.borrow().clone())?),
        false => None,
    };
    let chooser = machine.clone();
    let choosing = blocking_io::within(ANSWER, move || offer(&chooser, images));
    let offer = choosing.await??;
    let names = offer.names();
    let registry = &machine.temporary_registry;
    let address = registry.serve(&machine.store, offer, address, time, tls)?;
    Ok((address, names))
}

/// The settings of TLS, with the certificate that the API has now.
fn tls(own: Option<OwnCertificates>) -> Result<ServerConfig, ServeError> {
    let own = own.ok_or(ServeError::NoCertificate)?;
    own.server_config().map_err(ServeError::Certificate)
}

/// Reads the documents of the images.
fn offer(machine: &Machine, named: Vec<ImageReference>) -> Result<Offer, ServeError> {
    let blobs = machine.images.blobs().ok_or(ServeError::NoBlobs)?;
    let mut offer = Offer::of(blobs);
    if named.is_empty() {
        for (name, image) in usual(machine) {
            // Others are served all the same.
            if let Err(error) = offer.add(&name, image) {
                tracing::warn!("{:#}", anyhow::Error::from(error));
            }
        }
    }
    for name in named {
        let image = machine.images.find(&name);
        let image = image.ok_or_else(|| ServeError::Unknown(Box::new(name.clone())))?;
        offer.add(&name, image)?;
    }
    match offer.is_empty() {
        true => Err(ServeError::Nothing),
        false => Ok(offer),
    }
}

/// The images that are pinned or came by a bundle.
pub(super) fn usual(machine: &Machine) -> Vec<(ImageReference, PulledImage)> {
    let mut digests = machine.pins.digests();
    match machine.bundles.kept.images() {
        Ok(of_bundles) => digests.extend(of_bundles),
        Err(error) => tracing::warn!("pinned images alone are served: {error:#}"),
    }
    let images = digests
        .into_iter()
        .filter_map(|digest| machine.images.get(digest));
    let named = images.filter_map(|image| Some((image.names().first()?.clone(), image)));
    named.collect()
}
