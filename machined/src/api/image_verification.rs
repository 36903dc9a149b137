//! `ImageService/Verify`: says whether the rules in force allow an image, and by which signature. Nothing is pulled. If the image's registry
//! is away, the image of this name in the store is judged.

use std::sync::Arc;

use instar_api::machine as wire;
use tokio::sync::Semaphore;
use tonic::Status;

use crate::base::error_chain::chain;
use crate::intent;
use crate::machine::{Configured, Machine};
use crate::oci::verification::{Basis, Refusal, VerificationError};
use crate::oci::{PullError, Puller};
use crate::sequences::{Offer, offer};
use crate::values::{ImageReference, RegistryAuth, Secret};

/// Limit on the verifications at a time: each asks a registry several times.
const MOST: usize = 4;
static VERIFICATIONS: Semaphore = Semaphore::const_new(MOST);

/// Answers a call.
pub(super) async fn verify(
    machine: &Machine,
    request: wire::ImageServiceVerifyRequest,
) -> Result<wire::ImageServiceVerifyResponse, Status> {
    let name: ImageReference = request.image_ref.parse().map_err(|error| {
        let name = &request.image_ref;
        Status::invalid_argument(format!(
            "{name:?} is no name of an image: {}",
            chain(&error)
        ))
    })?;
    let _place = VERIFICATIONS.try_acquire().map_err(|_| {
        Status::resource_exhausted(format!(
            "{MOST} images are being verified already; try again when one of them is done"
        ))
    })?;
    let configured = machine.config();
    let puller = puller(configured.as_deref(), request.credentials)?;
    let offered = offer(machine, &puller, &name).await.map_err(status)?;
    let (is_verified, message) = match offered.basis() {
        Basis::NoRule | Basis::OfFile => (false, "no matched rule".to_owned()),
        Basis::Skipped(rule) => (
            false,
            format!("verification skipped by matched rule ({})", rule.id()),
        ),
        Basis::Signed { rule, key } => (
            true,
            format!(
                "verified by matched rule ({}): signed by the key {key}",
                rule.id()
            ),
        ),
    };
    let (named, message) = match &offered {
        Offer::AtRegistry(image) => (image.named_digest, message),
        Offer::Here(image) => {
            let message = format!("{message}; this is the image in the machine's store");
            (image.named_digest(), message)
        }
    };
    Ok(wire::ImageServiceVerifyResponse {
        verified: is_verified,
        message,
        digested_image_ref: name.at(named).to_string(),
    })
}

fn puller(
    configured: Option<&Configured>,
    credentials: Option<wire::ImageServiceCredentials>,
) -> Result<Arc<Puller>, Status> {
    let Some(wire::ImageServiceCredentials {
        host,
        username,
        password,
    }) = credentials
    else {
        return Ok(intent::puller(configured));
    };
    if host.is_empty() {
        return Err(Status::invalid_argument(
            "the credentials name no host: HOST[:PORT] of their registry is wanted",
        ));
    }
    let auth = RegistryAuth::Password {
        username,
        password: Secret::new(password),
    };
    Ok(Arc::new(intent::puller_with_credentials(
        configured, host, auth,
    )))
}

fn status(error: PullError) -> Status {
    if error.is_unreachable() {
        return Status::unavailable(chain(&error));
    }
    match &error {
        PullError::NotVerified(refused) => Status::permission_denied(reason(refused)),
        PullError::Resolve(resolving) if resolving.is_absence() => Status::not_found(chain(&error)),
        _ => Status::failed_precondition(chain(&error)),
    }
}

fn reason(refused: &VerificationError) -> String {
    match refused {
        VerificationError::Refused(refusal) => match &**refusal {
            Refusal::Denied { rule, .. } => {
                format!("verification denied by matched rule ({})", rule.id())
            }
            Refusal::NotSigned { .. } => format!("verification failed: {refusal}"),
        },
        VerificationError::Registry { .. } | VerificationError::Bundle { .. } => {
            format!("verification failed: {}", chain(refused))
        }
    }
}
