//! `time.TimeService`: compares the machine's clock with a time server's.

use std::sync::{Arc, LazyLock};

use instar_api::time as wire;
use instar_api::time::time_service_server::TimeService;
use tonic::{Request, Response, Status};

use instar_pki::Role;

use super::caller::{self, Holder};
use super::shares::{Share, Shares};
use crate::base::error_chain::chain;
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

/// Limits on simultaneous queries; each may take a thread that waits for a DNS answer.
static QUESTIONS: LazyLock<Shares> = LazyLock::new(|| Shares::new(8, 6, 2));

async fn answer<T>(
    server: &str,
    request: &Request<T>,
) -> Result<Response<wire::TimeResponse>, Status> {
    let metadata = caller::reply_metadata(request.metadata());
    let place: Share = QUESTIONS.take(&Holder::of(request)).ok_or_else(|| {
        Status::resource_exhausted("time servers are being asked already; try again")
    })?;
    let Comparison { local, remote } = compare(server, place)
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

/// Returns whether a caller with these roles may have this server queried. Readers may use the node's own servers, but not any
/// address on its networks.
fn may_ask(server: &str, roles: &[Role], own: &[String]) -> Result<(), Status> {
    let may_ask_others = [Role::Admin, Role::Operator];
    if roles.iter().any(|role| may_ask_others.contains(role))
        || own.iter().any(|known| known == server)
    {
        return Ok(());
    }
    Err(Status::permission_denied(format!(
        "{server} is not among this node's time servers ({}); to compare with another one takes the role os:operator",
        match own {
            [] => "it has none".to_owned(),
            own => own.join(", "),
        }
    )))
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
        let roles = caller::roles(request.metadata());
        may_ask(&server, &roles, &self.machine.clock.servers())?;
        answer(&server, &request).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn readers_ask_the_nodes_own_servers() {
        let own = ["ntp.example.org".to_owned()];
        let may = |server, role| may_ask(server, &[role], &own).is_ok();
        assert!(may("ntp.example.org", Role::Reader));
        for server in ["10.0.0.1:53", "ntp.example.org:53", "example.org"] {
            assert!(!may(server, Role::Reader), "{server}");
            assert!(may(server, Role::Operator), "{server}");
            assert!(may(server, Role::Admin), "{server}");
        }
        let refused = may_ask("x", &[Role::Reader], &[]).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
    }
}
