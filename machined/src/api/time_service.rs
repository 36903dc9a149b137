//! `time.TimeService`: the machine's clock against a time server.

use std::sync::Arc;

use instar_api::time as wire;
use instar_api::time::time_service_server::TimeService;
use tonic::{Request, Response, Status};

use super::caller;
use crate::error_chain::chain;
use crate::machine::Machine;
use crate::services::timestamp;
use crate::time::{Comparison, compare};

/// The service.
pub(super) struct TimeApi {
    machine: Arc<Machine>,
}

impl TimeApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        TimeApi { machine }
    }
}

async fn answer<T>(
    server: &str,
    request: &Request<T>,
) -> Result<Response<wire::TimeResponse>, Status> {
    let metadata = caller::reply_metadata(request.metadata());
    let Comparison { local, remote } = compare(server)
        .await
        .map_err(|error| Status::unavailable(chain(&error)))?;
    let message = wire::Time {
        metadata,
        server: server.to_owned(),
        localtime: Some(timestamp(local)),
        remotetime: Some(timestamp(remote)),
    };
    Ok(Response::new(wire::TimeResponse {
        messages: vec![message],
    }))
}

#[tonic::async_trait]
impl TimeService for TimeApi {
    async fn time(&self, request: Request<()>) -> Result<Response<wire::TimeResponse>, Status> {
        let server = self.machine.clock.server().ok_or_else(|| {
            Status::failed_precondition(
                "the machine asks no time server: its config turns that off, or there is no config yet; name a server to \
                 compare with one",
            )
        })?;
        answer(&server, &request).await
    }

    async fn time_check(
        &self,
        request: Request<wire::TimeRequest>,
    ) -> Result<Response<wire::TimeResponse>, Status> {
        let server = request.get_ref().server.trim().to_owned();
        if server.is_empty() {
            return Err(Status::invalid_argument("no time server is named"));
        }
        answer(&server, &request).await
    }
}
