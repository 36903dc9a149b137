//! `instar.TemporaryRegistryService`: serves images of the store for a limited time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use instar_api::instar as wire;
use instar_api::instar::temporary_registry_service_server::TemporaryRegistryService;
use tonic::{Request, Response, Status};

use super::{changing, image_pins};
use crate::base::error_chain::chain;
use crate::machine::Machine;
use crate::sequences::{ServeError, serve_images};

/// The usual address.
const USUAL: &str = "127.0.0.1:5000";
/// Limits on the time.
const SHORTEST: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// The service.
pub(super) struct TemporaryRegistryApi {
    machine: Arc<Machine>,
}

impl TemporaryRegistryApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        TemporaryRegistryApi { machine }
    }
}

#[tonic::async_trait]
impl TemporaryRegistryService for TemporaryRegistryApi {
    async fn serve(
        &self,
        request: Request<wire::ServeImagesRequest>,
    ) -> Result<Response<wire::ServeImagesResponse>, Status> {
        let request = request.into_inner();
        let address = address(&request.listen)?;
        let time = time(request.time.unwrap_or_default())?;
        let images = request
            .images
            .iter()
            .map(|name| image_pins::reference(name));
        let images = images.collect::<Result<Vec<_>, _>>()?;
        let machine = self.machine.clone();
        let serving = async move {
            let served = serve_images(&machine, images, address, time, request.tls).await;
            let (address, images) = served.map_err(|error| status(&error))?;
            Ok(wire::ServeImagesResponse {
                listen: address.to_string(),
                until: Some((SystemTime::now() + time).into()),
                images,
            })
        };
        Ok(Response::new(changing::to_its_end(serving).await?))
    }

    async fn stop(
        &self,
        _: Request<wire::StopServingRequest>,
    ) -> Result<Response<wire::StopServingResponse>, Status> {
        let stopped = self.machine.temporary_registry.stop();
        let listen = stopped.map(|address| address.to_string());
        Ok(Response::new(wire::StopServingResponse {
            listen: listen.unwrap_or_default(),
        }))
    }
}

fn address(text: &str) -> Result<SocketAddr, Status> {
    let text = if text.is_empty() { USUAL } else { text };
    text.parse().map_err(|_| {
        Status::invalid_argument(format!(
            "{text:?} is not ADDRESS:PORT: expected something like 127.0.0.1:5000 or [::]:5000"
        ))
    })
}

fn time(time: prost_types::Duration) -> Result<Duration, Status> {
    let time = Duration::try_from(time).unwrap_or_default();
    match (SHORTEST..=LONGEST).contains(&time) {
        true => Ok(time),
        false => Err(Status::invalid_argument(
            "images are served for a minute to a day",
        )),
    }
}

fn status(error: &ServeError) -> Status {
    let text = chain(error);
    match error {
        ServeError::Unknown(_) => Status::not_found(text),
        ServeError::NoAnswer(_) => Status::unavailable(text),
        _ => Status::failed_precondition(text),
    }
}
