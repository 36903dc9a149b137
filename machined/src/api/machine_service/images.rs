//! Calls about images, by the methods of older clients.

use instar_api::machine as wire;
use tonic::codegen::BoxStream;
use tonic::{Request, Response};

use super::{MachineApi, Reply};
use crate::api::{caller, changing, image_operations, images};

pub(super) fn image_list(
    api: &MachineApi,
    request: Request<wire::ImageListRequest>,
) -> Reply<BoxStream<wire::ImageListResponse>> {
    images::old_list(&api.machine, caller::reply_metadata(request.metadata()))
}

pub(super) async fn image_pull(
    api: &MachineApi,
    request: Request<wire::ImagePullRequest>,
) -> Reply<wire::ImagePullResponse> {
    let metadata = caller::reply_metadata(request.metadata());
    let name = &request.get_ref().reference;
    tracing::info!("pull of {name} asked for by {}", caller::peer(&request));
    let (machine, name) = (api.machine.clone(), name.clone());
    changing::to_its_end(async move {
        let pulled = image_operations::pull(&machine, &name, &|_| {}).await;
        pulled.map(drop).map_err(images::status)
    })
    .await?;
    Ok(Response::new(wire::ImagePullResponse {
        messages: vec![wire::ImagePull { metadata }],
    }))
}
