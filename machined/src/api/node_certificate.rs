//! `instar.NodeCertificateService`: shows the request for the machine's certificate, and takes the certificate that a person has signed.

use std::sync::Arc;

use instar_api::instar as wire;
use instar_api::instar::node_certificate_service_server::NodeCertificateService;
use instar_pki::Role;
use tonic::{Request, Response, Status};

use super::epoch_seconds::epoch_seconds;
use super::{caller, changing};
use crate::base::error_chain::chain;
use crate::intent::{GrantError, grant_certificate, show_request};
use crate::machine::Machine;

/// The service.
pub(super) struct NodeCertificateApi {
    machine: Arc<Machine>,
}

impl NodeCertificateApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        NodeCertificateApi { machine }
    }
}

#[tonic::async_trait]
impl NodeCertificateService for NodeCertificateApi {
    async fn show(
        &self,
        _request: Request<wire::ShowCertificateRequest>,
    ) -> Result<Response<wire::ShowCertificateResponse>, Status> {
        let shown =
            show_request(&self.machine).map_err(|error| Status::internal(format!("{error:#}")))?;
        Ok(Response::new(wire::ShowCertificateResponse {
            csr: shown.request,
            fingerprint: shown.fingerprint,
            signs_for_itself: shown.signs_for_itself,
            asks_control_plane: shown.asks_control_plane,
            ends: shown.ends.map_or(0, epoch_seconds),
        }))
    }

    async fn grant(
        &self,
        request: Request<wire::GrantCertificateRequest>,
    ) -> Result<Response<wire::GrantCertificateResponse>, Status> {
        let peer = caller::peer(&request).to_owned();
        // As for a config: apid authorized the caller when the call began, and the node may not be open to all any more.
        if self.machine.config().is_none()
            && !self.machine.is_open()
            && !caller::roles(request.metadata()).contains(&Role::Admin)
        {
            return Err(Status::permission_denied("not authorized"));
        }
        let wire::GrantCertificateRequest {
            certificate,
            authority,
        } = request.into_inner();
        let machine = self.machine.clone();
        let granting = async move {
            let taken = grant_certificate(&machine, &certificate, &authority).await;
            let taken = taken.map_err(|error| {
                tracing::warn!("a certificate from {peer} is refused: {}", chain(&error));
                status(&error)
            })?;
            tracing::info!("a certificate from {peer} is in force");
            Ok(wire::GrantCertificateResponse {
                kept: taken.is_kept,
                ends: epoch_seconds(taken.ends),
            })
        };
        Ok(Response::new(changing::to_its_end(granting).await?))
    }
}

fn status(error: &GrantError) -> Status {
    let text = chain(error);
    match error {
        GrantError::SignsForItself => Status::failed_precondition(text),
        GrantError::Refused(_) => Status::invalid_argument(text),
        GrantError::Failed(_) => Status::internal(text),
    }
}
