//! `instar.ImageUpdateService`: approves an image that waits behind the name that a container follows.

use std::sync::Arc;

use instar_api::instar as wire;
use instar_api::instar::image_update_service_server::ImageUpdateService;
use tonic::{Request, Response, Status};

use super::changing;
use crate::base::error_chain::chain;
use crate::containers::update::{Event, Reason, Standing};
use crate::machine::Machine;
use crate::sequences::image_updates;
use crate::values::{Digest, ImageReference};

/// The service.
pub(super) struct ImageUpdateApi {
    machine: Arc<Machine>,
}

impl ImageUpdateApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        ImageUpdateApi { machine }
    }
}

#[tonic::async_trait]
impl ImageUpdateService for ImageUpdateApi {
    async fn approve(
        &self,
        request: Request<wire::ApproveImageUpdateRequest>,
    ) -> Result<Response<wire::ApproveImageUpdateResponse>, Status> {
        let request = request.into_inner();
        let digest: Digest = request.digest.parse().map_err(|error| {
            let error = chain(&error);
            Status::invalid_argument(format!("an approval is for one digest: {error}"))
        })?;
        let machine = self.machine.clone();
        let standing = changing::to_its_end(approve(machine, request.container, digest)).await?;
        Ok(Response::new(wire::ApproveImageUpdateResponse { standing }))
    }
}

async fn approve(
    machine: Arc<Machine>,
    container: String,
    digest: Digest,
) -> Result<String, Status> {
    let reference = followed(&machine, &container)?;
    let standing = machine.image_updates.standing(&container, &reference);
    match &standing {
        Standing::Waiting {
            found,
            reason: Reason::Held(why),
        } if found.digest == digest => {
            return Err(Status::failed_precondition(format!(
                "{digest} is held, and cannot be approved: {why}; name the image by its digest in the config to run it all the same"
            )));
        }
        Standing::Waiting { found, .. } | Standing::Returned { failed: found, .. }
            if found.digest == digest => {}
        other => {
            return Err(Status::failed_precondition(format!(
                "{digest} does not wait for container {container}: {}",
                image_updates::describe(&reference, other)
            )));
        }
    }
    machine
        .image_updates
        .report(&container, &reference, Event::Approved(digest))
        .await;
    tracing::info!("{container}: {digest} is approved");
    let standing = machine.image_updates.standing(&container, &reference);
    Ok(image_updates::describe(&reference, &standing))
}

/// Returns the name that a container follows.
fn followed(machine: &Machine, name: &str) -> Result<ImageReference, Status> {
    let configured = machine
        .config()
        .ok_or_else(|| Status::failed_precondition("the machine has no config"))?;
    let mut containers = configured.config.containers.iter();
    let container = containers
        .find(|container| container.name.as_str() == name)
        .ok_or_else(|| Status::not_found(format!("there is no container {name:?}")))?;
    if container.updates.is_none() {
        return Err(Status::failed_precondition(format!(
            "container {name} does not follow its image's name: give it a ContainerUpdateConfig, or restart it to look the name up"
        )));
    }
    Ok(container.image.clone())
}
