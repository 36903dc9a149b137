//! `inspect.InspectService`: the dependencies between controllers.

use instar_api::inspect as wire;
use instar_api::inspect::inspect_service_server::InspectService;
use tonic::{Request, Response, Status};

use super::caller;

/// The service. Its answer is always empty: machined has domains that watch a store instead of controllers with declared inputs,
/// so there are no edges to show.
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
