//! `instar.ImagePinService`: has images fetched ahead and kept, and takes that back.

use std::sync::Arc;

use instar_api::instar as wire;
use instar_api::instar::image_pin_service_server::ImagePinService;
use tonic::{Request, Response, Status};

use super::changing;
use crate::machine::Machine;
use crate::pins::{ByCall, Terms};
use crate::sequences::image_pins::unpin;
use crate::values::ImageReference;

/// The service.
pub(super) struct ImagePinApi {
    machine: Arc<Machine>,
}

impl ImagePinApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        ImagePinApi { machine }
    }
}

#[tonic::async_trait]
impl ImagePinService for ImagePinApi {
    async fn pin(
        &self,
        request: Request<wire::PinImagesRequest>,
    ) -> Result<Response<wire::PinImagesResponse>, Status> {
        let request = request.into_inner();
        let images = request.images.iter().map(|name| reference(name));
        let images = images.collect::<Result<Vec<_>, _>>()?;
        if images.is_empty() {
            return Err(Status::invalid_argument("no image is named"));
        }
        let call = ByCall {
            terms: terms(request.terms)?,
            during: self.machine.running.version.clone(),
            for_upgrade: false,
        };
        has_place(&self.machine)?;
        let machine = self.machine.clone();
        let pinning = async move {
            let names = images.iter().map(ToString::to_string).collect();
            let pinned = machine.pins.pin(images, &call).await;
            pinned.map_err(|error| Status::resource_exhausted(error.to_string()))?;
            Ok(wire::PinImagesResponse { images: names })
        };
        Ok(Response::new(changing::to_its_end(pinning).await?))
    }

    async fn unpin(
        &self,
        request: Request<wire::UnpinImageRequest>,
    ) -> Result<Response<wire::UnpinImageResponse>, Status> {
        let image = reference(&request.into_inner().image)?;
        let machine = self.machine.clone();
        let unpinning = async move {
            let was_pinned = unpin(&machine, &image).await;
            let configured = machine.config();
            let by_config = configured
                .is_some_and(|configured| configured.config.image_pins.images.contains(&image));
            match (was_pinned, by_config) {
                (true, stays) => Ok(wire::UnpinImageResponse { stays }),
                (false, true) => Err(Status::failed_precondition(format!(
                    "{image} is pinned by ImagePinConfig alone: take it out there"
                ))),
                (false, false) => Err(Status::not_found(format!("{image} is not pinned"))),
            }
        };
        Ok(Response::new(changing::to_its_end(unpinning).await?))
    }
}

pub(super) fn reference(name: &str) -> Result<ImageReference, Status> {
    name.parse().map_err(|error| {
        let error = crate::base::error_chain::chain(&error);
        Status::invalid_argument(format!("{name:?} is no name of an image: {error}"))
    })
}

pub(super) fn terms(terms: Option<wire::FetchTerms>) -> Result<Terms, Status> {
    let wire::FetchTerms { window, bandwidth } = terms.unwrap_or_default();
    let wrong = |error: String| Status::invalid_argument(error);
    let window = (!window.is_empty()).then(|| window.parse());
    let bandwidth = (!bandwidth.is_empty()).then(|| bandwidth.parse());
    Ok(Terms {
        window: window
            .transpose()
            .map_err(|error: crate::values::NotAWindow| wrong(error.to_string()))?,
        bandwidth: bandwidth
            .transpose()
            .map_err(|error: crate::values::NotABandwidth| wrong(error.to_string()))?,
    })
}

/// Refuses a call while there is no place for images and records.
pub(super) fn has_place(machine: &Machine) -> Result<(), Status> {
    match machine.disk.status().borrow().var_mounted {
        true => Ok(()),
        false => Err(Status::failed_precondition(
            "there is no place for images: /var is not mounted; wait until the machine has booted",
        )),
    }
}
