//! `machine.ImageService`, and the older methods of MachineService for the same.

use std::sync::Arc;

use instar_api::machine as wire;
use instar_api::machine::image_service_pull_layer_progress::Status as LayerStatus;
use instar_api::machine::image_service_pull_response::Response as Pulled;
use instar_api::machine::image_service_server::ImageService;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::image_operations::{self, ImageError};
use super::image_pins::has_place;
use super::image_verification;
use super::{caller, changing, streamed};
use crate::base::error_chain::chain;
use crate::machine::Machine;
use crate::oci::{Progress, PulledImage};
use crate::services::timestamp;

/// Bytes between two progress messages, so that a pull sends no more than some hundreds.
const STEP: u64 = 1 << 20;

/// The service. It has one store, and ignores the instance and namespace of containerd that a caller names.
pub(super) struct ImageApi {
    machine: Arc<Machine>,
}

impl ImageApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        ImageApi { machine }
    }
}

/// Converts an error to a gRPC status.
pub(super) fn status(error: ImageError) -> Status {
    let text = chain(&error);
    match error {
        ImageError::Name { .. } => Status::invalid_argument(text),
        ImageError::Unknown(_) => Status::not_found(text),
        ImageError::Store(_) => Status::internal(text),
        ImageError::TooMany => Status::resource_exhausted(text),
        ImageError::Interrupted(_) => Status::aborted(text),
        ImageError::NoPlace
        | ImageError::Pull(_)
        | ImageError::Needed { .. }
        | ImageError::Pinned { .. }
        | ImageError::Busy(_) => Status::failed_precondition(text),
    }
}

/// Builds one line of a listing for each name of each image.
fn lines(machine: &Machine) -> Result<Vec<wire::ImageServiceListResponse>, Status> {
    has_place(machine)?;
    let images = image_operations::list(machine).map_err(|error| status(error.into()))?;
    Ok(images
        .iter()
        .flat_map(|image| {
            image
                .names()
                .iter()
                .map(|name| line(image, name.to_string()))
        })
        .collect())
}

fn line(image: &PulledImage, name: String) -> wire::ImageServiceListResponse {
    wire::ImageServiceListResponse {
        name,
        digest: image.digest().to_string(),
        size: i64::try_from(image.unpacked_bytes()).unwrap_or(i64::MAX),
        created_at: Some(timestamp(image.pulled_at())),
        labels: image
            .config()
            .labels
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    }
}

/// `MachineService/ImageList`.
pub(super) fn old_list(
    machine: &Machine,
    metadata: Option<instar_api::common::Metadata>,
) -> Result<Response<BoxStream<wire::ImageListResponse>>, Status> {
    let lines = lines(machine)?.into_iter().map(move |line| {
        Ok(wire::ImageListResponse {
            metadata: metadata.clone(),
            name: line.name,
            digest: line.digest,
            size: line.size,
            created_at: line.created_at,
        })
    });
    Ok(Response::new(Box::pin(tokio_stream::iter(lines))))
}

/// Returns the name that identifies this very image for ever: the last message of a pull.
fn pinned(image: &PulledImage, asked: &str) -> String {
    let name = asked.parse::<crate::values::ImageReference>();
    name.map_or_else(
        |_| image.digest().to_string(),
        |name| name.at(image.digest()).to_string(),
    )
}

fn progress_message(progress: Progress) -> wire::ImageServicePullResponse {
    let count = |bytes| i64::try_from(bytes).unwrap_or(i64::MAX);
    let done = progress.bytes >= progress.total;
    let layer = wire::ImageServicePullLayerProgress {
        status: match done {
            true => LayerStatus::DownloadComplete,
            false => LayerStatus::Downloading,
        }
        .into(),
        offset: count(progress.bytes),
        total: count(progress.total),
        ..Default::default()
    };
    wire::ImageServicePullResponse {
        response: Some(Pulled::PullProgress(wire::ImageServicePullProgress {
            // Layers come one after the other and are reported as one.
            layer_id: "layers".to_owned(),
            progress: Some(layer),
        })),
    }
}

#[tonic::async_trait]
impl ImageService for ImageApi {
    async fn list(
        &self,
        _request: Request<wire::ImageServiceListRequest>,
    ) -> Result<Response<BoxStream<wire::ImageServiceListResponse>>, Status> {
        let lines = lines(&self.machine)?.into_iter().map(Ok);
        Ok(Response::new(Box::pin(tokio_stream::iter(lines))))
    }

    async fn pull(
        &self,
        request: Request<wire::ImageServicePullRequest>,
    ) -> Result<Response<BoxStream<wire::ImageServicePullResponse>>, Status> {
        tracing::info!(
            "pull of {} asked for by {}",
            request.get_ref().image_ref,
            caller::peer(&request)
        );
        let name = request.into_inner().image_ref;
        let machine = self.machine.clone();
        let (sender, receiver) = mpsc::channel(16);
        crate::base::task::spawn(async move {
            let told = std::sync::atomic::AtomicU64::new(0);
            let progress = |progress: Progress| {
                let before = told.load(std::sync::atomic::Ordering::Relaxed);
                if progress.bytes >= before + STEP || progress.bytes >= progress.total {
                    told.store(progress.bytes, std::sync::atomic::Ordering::Relaxed);
                    // If the channel is full, the reader gets the next message instead.
                    let _ = sender.try_send(Ok(progress_message(progress)));
                }
            };
            let last = image_operations::pull(&machine, &name, &progress).await;
            let last = last
                .map_err(status)
                .map(|image| wire::ImageServicePullResponse {
                    response: Some(Pulled::Name(pinned(&image, &name))),
                });
            // An error means that the caller has disconnected.
            let _ = sender.send(last).await;
        });
        Ok(streamed(ReceiverStream::new(receiver)))
    }

    async fn verify(
        &self,
        request: Request<wire::ImageServiceVerifyRequest>,
    ) -> Result<Response<wire::ImageServiceVerifyResponse>, Status> {
        let roles = caller::roles(request.metadata());
        let request = request.into_inner();
        let answer = image_verification::verify(&self.machine, request, &roles);
        answer.await.map(Response::new)
    }

    async fn remove(
        &self,
        request: Request<wire::ImageServiceRemoveRequest>,
    ) -> Result<Response<()>, Status> {
        tracing::info!(
            "removal of {} asked for by {}",
            request.get_ref().image_ref,
            caller::peer(&request)
        );
        let (machine, name) = (self.machine.clone(), request.into_inner().image_ref);
        changing::to_its_end(async move {
            image_operations::remove(&machine, &name)
                .await
                .map_err(status)
        })
        .await?;
        Ok(Response::new(()))
    }
}
