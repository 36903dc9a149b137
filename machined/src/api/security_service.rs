//! `securityapi.SecurityService`: certificates for machines without the authority's key, if this machine has it. apid passes on nothing else
//! from the port of this method.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use instar_api::TOKEN_KEY;
use instar_api::events::EventPayload;
use instar_api::machine::{TaskEvent, task_event};
use instar_api::securityapi::security_service_server::SecurityService;
use instar_api::securityapi::{CertificateRequest, CertificateResponse};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::caller;
use crate::apid;
use crate::base::lock::Lock as _;
use crate::intent;
use crate::machine::Machine;
use crate::store::event_log::ActorId;
use crate::trust::{Lately, Refusal, Signed};

/// Interval between two lines of the log about refused requests: callers may be anybody.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// The service.
pub(super) struct SecurityApi {
    machine: Arc<Machine>,
    lately: Mutex<Lately>,
    refusals: Mutex<Refusals>,
}

/// Refusals that are not in the log yet.
#[derive(Default)]
struct Refusals {
    untold: u64,
    told: Option<Instant>,
}

impl Refusals {
    /// Counts a refusal; returns how many there were since the last line if it is time for another one.
    fn count(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        if self.told.is_some_and(|told| now < told + LOGGED_EVERY) {
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

impl SecurityApi {
    pub(super) fn new(machine: Arc<Machine>) -> Self {
        SecurityApi {
            machine,
            lately: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    fn note_refusal(&self, from: SocketAddr, refusal: &Refusal) {
        let count = self.refusals.locked().count(Instant::now());
        if let Some(count) = count {
            tracing::warn!(
                "no certificate for {}: {refusal} ({count} requests were refused since the last such line)",
                from.ip().to_canonical()
            );
        }
    }

    fn note(&self, from: SocketAddr, signed: &Signed) {
        let from = from.ip().to_canonical();
        tracing::info!(
            "a certificate for the worker {from}: {} names",
            signed.names.len()
        );
        if !signed.left_out.is_empty() {
            tracing::warn!(
                "the worker {from} asked for names of the control plane, which its certificate has not got: {:?}",
                signed.left_out
            );
        }
        for action in [task_event::Action::Start, task_event::Action::Stop] {
            let event = TaskEvent {
                task: format!("certificate for {from}"),
                action: action.into(),
            };
            let payload = EventPayload::Task(event);
            self.machine.events.emit(&ActorId::default(), payload);
        }
    }
}

#[tonic::async_trait]
impl SecurityService for SecurityApi {
    async fn certificate(
        &self,
        request: Request<CertificateRequest>,
    ) -> Result<Response<CertificateResponse>, Status> {
        let peer = caller::peer(&request).strip_prefix(apid::WORKER);
        let from: Option<SocketAddr> = peer.and_then(|peer| peer.parse().ok());
        let from = from.ok_or_else(|| {
            Status::permission_denied("certificates are signed for machines on their own port")
        })?;
        let token = request.metadata().get(TOKEN_KEY);
        let token = token.and_then(|token| token.to_str().ok());
        let token = token.unwrap_or_default().to_owned();
        let csr = String::from_utf8(request.into_inner().csr)
            .map_err(|_| Status::invalid_argument("the request is no PEM"))?;
        let ours = intent::for_workers(&self.machine)
            .await
            .map_err(|error| Status::internal(format!("{error:#}")))?
            .ok_or_else(|| {
                Status::failed_precondition("this machine signs no certificates for others")
            })?;
        let signed = {
            let mut lately = self.lately.locked();
            ours.sign(&csr, &token, from.ip(), SystemTime::now(), &mut lately)
        };
        match signed {
            Ok(signed) => {
                self.note(from, &signed);
                Ok(Response::new(CertificateResponse {
                    ca: signed.accepted.into_bytes(),
                    crt: signed.certificate.into_bytes(),
                }))
            }
            Err(refusal) => {
                self.note_refusal(from, &refusal);
                Err(status(&refusal))
            }
        }
    }
}

fn status(refusal: &Refusal) -> Status {
    let text = refusal.to_string();
    match refusal {
        Refusal::Token => Status::unauthenticated(text),
        Refusal::Request(_) => Status::invalid_argument(text),
        Refusal::Elsewhere(_) => Status::permission_denied(text),
        Refusal::TooMany => Status::resource_exhausted(text),
        Refusal::Authority(_) => Status::internal(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_a_line_a_minute() {
        let (mut refusals, now) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.count(now), Some(1));
        for _ in 0..1000 {
            assert_eq!(refusals.count(now + Duration::from_secs(59)), None);
        }
        assert_eq!(refusals.count(now + LOGGED_EVERY), Some(1001));
    }
}
