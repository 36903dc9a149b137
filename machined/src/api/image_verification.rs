//! `ImageService/Verify`: says whether the rules in force allow an image, and by which signature. Nothing is pulled. If the image's registry
//! is away, the image of this name in the store is judged.
//!
//! A reader has only images judged that the machine knows by name: any other name would make the machine connect to a host of the reader's choice.

use std::collections::BTreeSet;
use std::sync::Arc;

use instar_api::machine as wire;
use instar_pki::Role;
use tokio::sync::Semaphore;
use tonic::Status;

use crate::base::error_chain::chain;
use crate::config::MachineConfig;
use crate::intent;
use crate::machine::{Configured, Machine};
use crate::oci::verification::{Basis, Refusal, VerificationError};
use crate::oci::{PullError, Puller};
use crate::pins::PinFact;
use crate::sequences::{Offer, offer};
use crate::values::{Digest, ImageReference, RegistryAuth, Secret};

/// Limit on the verifications at a time: each asks a registry several times.
const MOST: usize = 4;
static VERIFICATIONS: Semaphore = Semaphore::const_new(MOST);

/// Answers a call of a caller with these roles.
pub(super) async fn verify(
    machine: &Machine,
    request: wire::ImageServiceVerifyRequest,
    roles: &[Role],
) -> Result<wire::ImageServiceVerifyResponse, Status> {
    let name: ImageReference = request.image_ref.parse().map_err(|error| {
        let name = &request.image_ref;
        Status::invalid_argument(format!(
            "{name:?} is no name of an image: {}",
            chain(&error)
        ))
    })?;
    may_name(&name, roles, || is_known(machine, &name))?;
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

/// Checks that a caller with these roles may have this image judged.
fn may_name(
    name: &ImageReference,
    roles: &[Role],
    is_known: impl Fn() -> bool,
) -> Result<(), Status> {
    let may_name_others = [Role::Admin, Role::Operator, Role::ImageVerifier];
    if roles.iter().any(|role| may_name_others.contains(role)) || is_known() {
        return Ok(());
    }
    Err(Status::permission_denied(format!(
        "{name} is neither in this machine's config nor pinned nor in its store; to have another image judged takes the role os:image:verifier \
         or os:operator"
    )))
}

/// Whether the machine's config, a pin or the store has this name.
fn is_known(machine: &Machine, name: &ImageReference) -> bool {
    let is_pinned = || machine.store.get::<PinFact>(&name.to_string()).is_some();
    let configured = machine.config();
    let in_config = configured.is_some_and(|it| names(&it.config).any(|known| known == name));
    let in_store = || {
        let mut images = machine.images.list().unwrap_or_default().into_iter();
        images.any(|it| has_name(it.names(), [it.digest(), it.named_digest()], name))
    };
    in_config || is_pinned() || in_store()
}

/// Whether an image of the store has this name, or this is one of its digests in the place that it came from: in another place it would name
/// another host.
fn has_name(names: &BTreeSet<ImageReference>, digests: [Digest; 2], name: &ImageReference) -> bool {
    let place = |it: &ImageReference| (it.registry().to_owned(), it.repository().to_owned());
    let has_digest = name.digest().is_some_and(|it| digests.contains(&it));
    names.contains(name) || has_digest && names.iter().any(|known| place(known) == place(name))
}

/// The images that a config names, but for those that it pins.
fn names(config: &MachineConfig) -> impl Iterator<Item = &ImageReference> {
    let containers = config.containers.iter().map(|it| &it.image);
    let installer = config.install.iter().filter_map(|it| it.image.as_ref());
    let kubernetes = config.kubernetes.iter().map(|it| &it.image);
    containers.chain(installer).chain(kubernetes)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config;

    #[test]
    fn a_reader_names_no_image_that_the_machine_does_not_know() {
        let name: ImageReference = "10.0.0.1:53/web:v1".parse().unwrap();
        for (roles, is_known, may) in [
            (&[Role::Reader][..], true, true),
            (&[Role::Reader], false, false),
            (&[], false, false),
            (&[Role::Reader, Role::ImageVerifier], false, true),
            (&[Role::ImageVerifier], false, true),
            (&[Role::Operator], false, true),
            (&[Role::Admin], false, true),
        ] {
            let answer = may_name(&name, roles, || is_known);
            assert_eq!(answer.is_ok(), may, "{roles:?} {is_known}");
            let code = answer.err().map(|refused| refused.code());
            let expected = (!may).then_some(tonic::Code::PermissionDenied);
            assert_eq!(code, expected);
        }
    }

    #[test]
    fn an_image_of_the_store_is_known_by_its_digest_only_where_it_came_from() {
        let (manifest, index) = (Digest::of(b"manifest"), Digest::of(b"index"));
        let parsed = |text: String| text.parse::<ImageReference>().unwrap();
        let names = BTreeSet::from([parsed("r.io/web:v1".to_owned())]);
        for (name, expected) in [
            ("r.io/web:v1".to_owned(), true),
            (format!("r.io/web@{manifest}"), true),
            (format!("r.io/web:v2@{index}"), true),
            ("r.io/web:v2".to_owned(), false),
            (format!("r.io/web@{}", Digest::of(b"other")), false),
            (format!("r.io/db@{manifest}"), false),
            (format!("10.0.0.1:53/web@{manifest}"), false),
        ] {
            let known = has_name(&names, [manifest, index], &parsed(name.clone()));
            assert_eq!(known, expected, "{name}");
        }
    }

    #[test]
    fn the_images_of_a_config_are_known() {
        let served = include_str!("../../../config/tests/data/served-1.14.yaml");
        let (first, _) = served.split_once("---\n").unwrap();
        let web = "apiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: r.io/web:v1\n";
        let text = [first, web].join("\n---\n");
        let config = config::parse(text.as_bytes()).unwrap().config;
        let web: ImageReference = "r.io/web:v1".parse().unwrap();
        assert!(names(&config).any(|known| *known == web));
        let other: ImageReference = "r.io/web:v2".parse().unwrap();
        assert!(!names(&config).any(|known| *known == other));
    }
}
