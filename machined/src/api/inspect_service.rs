//! `inspect.InspectService`: which parts of the daemon feed which.

use instar_api::inspect as wire;
use instar_api::inspect::inspect_service_server::InspectService;
use tonic::{Request, Response, Status};

use super::caller;

/// The service. machined has domains that watch a store instead of controllers with declared inputs, so there are no edges to
/// show: the answer is there, and empty.
pub(super) struct InspectApi;

#[tonic::async_trait]
impl InspectService for InspectApi {
    async fn controller_runtime_dependencies(
        &self,
        request: Request<()>,
    ) -> Result<Response<wire::ControllerRuntimeDependenciesResponse>, Status> {
        let message = wire::ControllerRuntimeDependency {
            metadata: caller::reply_metadata(request.metadata()),
        };
        Ok(Response::new(wire::ControllerRuntimeDependenciesResponse {
            messages: vec![message],
        }))
    }
}
