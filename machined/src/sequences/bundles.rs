//! Takes a bundle: verifies every byte of it, judges its images, unpacks them into the store.
//!
//! All or nothing is allowed: one image that is refused refuses the bundle, before anything of it is unpacked. Images for other
//! architectures than this machine's are left out; if there is no other, the bundle is refused.

mod report;
mod sticks;

pub use report::Report;
pub use sticks::watch_sticks;

use std::collections::BTreeSet;
use std::sync::Arc;

use instar_bundle::{Files, Image, Index, Refused, VerifiedBundle, verify};

use crate::base::blocking_io::{self, NoAnswer};
use crate::base::error_chain::chain;
use crate::bundles::{Event, NotApproved, Origin, approve};
use crate::config::BundleRules;
use crate::intent;
use crate::machine::{Configured, Machine};
use crate::oci::bundled::{BundledImageError, import, resolve};
use crate::oci::manifest::PLATFORM;
use crate::oci::verification::VerificationError;
use crate::oci::{Limits, PullError, ResolvedImage, Verified};
use crate::operation_lock::{Interrupted, Operations};

/// The origin of bundles that callers of the API bring.
pub const UPLOAD: &str = "upload";

/// Why a bundle is not taken.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// Some byte of it is not as it was written.
    #[error(transparent)]
    Altered(#[from] Refused),
    /// No image of it is for this machine.
    #[error("the bundle is for {found}, this machine is {wanted}", wanted = PLATFORM)]
    OtherArchitecture {
        /// The platforms of its images.
        found: String,
    },
    /// An image is of no use.
    #[error("an image of the bundle is of no use")]
    Image(#[from] BundledImageError),
    /// The rules refuse an image.
    #[error(transparent)]
    NotAllowed(#[from] Box<VerificationError>),
    /// Nobody has approved an image.
    #[error(transparent)]
    NotApproved(#[from] NotApproved),
    /// There is no place for images yet.
    #[error("there is no place for images: /var is not mounted; wait until the machine has booted")]
    NoPlace,
    /// An image was not unpacked.
    #[error("an image was not imported; those before it are in the store")]
    Import(#[source] Box<PullError>),
    /// Another bundle is being taken.
    #[error("another bundle is being imported; try again when it is done")]
    Busy,
    /// The machine shuts down or reboots.
    #[error("the bundle was not taken")]
    Interrupted(#[from] Interrupted),
    /// The disk does not answer.
    #[error("the bundle was not verified")]
    NoAnswer(#[from] NoAnswer),
    /// The machine failed.
    #[error("{0:#}")]
    Machine(anyhow::Error),
}

/// An image of the bundle that is allowed.
type Allowed = Verified<ResolvedImage>;

/// Takes a bundle, and tells the report how far it is; returns the references that are in the store now.
///
/// # Errors
/// The bundle is refused, or something failed. [`tell_end`] reports it.
pub async fn take_bundle(
    machine: &Arc<Machine>,
    files: Files,
    origin: Origin,
    report: &Arc<Report>,
) -> Result<Vec<String>, BundleError> {
    let taking = take(machine, files, origin, report);
    tokio::select! {
        taken = taking => taken,
        interrupted = end_of_machine(&machine.operations) => Err(interrupted.into()),
    }
}

/// Tells how the taking of a bundle has ended, once its place may be cleared.
pub fn tell_end(report: &Report, taken: &Result<Vec<String>, BundleError>) {
    report.tell(match taken {
        Ok(images) => Event::Imported(images.clone()),
        Err(error) => Event::Failed(chain(error)),
    });
}

async fn take(
    machine: &Arc<Machine>,
    files: Files,
    origin: Origin,
    report: &Arc<Report>,
) -> Result<Vec<String>, BundleError> {
    if !machine.disk.status().borrow().var_mounted {
        return Err(BundleError::NoPlace);
    }
    let turn = match origin {
        Origin::Caller => machine.bundles.turn.try_acquire().ok(),
        // Nobody would plug it in again.
        Origin::Stick => machine.bundles.turn.acquire().await.ok(),
    };
    let _turn = turn.ok_or(BundleError::Busy)?;
    let bundle = verified(files, report).await?;
    let allowed = judge(machine, &bundle, origin)?;
    let name = |image: &Allowed| image.reference.to_string();
    let first = allowed.first().map(name).unwrap_or_default();
    report.tell(Event::Good(first, allowed.len()));
    let mut digests = BTreeSet::new();
    for (number, image) in allowed.iter().enumerate() {
        if number > 0 {
            report.tell(Event::Next(name(image)));
        }
        let (images, limits) = (&machine.images, Limits::default());
        let imported = import(&bundle, image, images, &limits, &|_| {}).await;
        let imported = imported.map_err(|error| BundleError::Import(Box::new(error)))?;
        digests.insert(imported.digest());
        // Each image by itself: a power cut leaves those that are whole.
        let kept = machine.bundles.kept.add(bundle.digest(), digests.clone());
        kept.map_err(BundleError::Machine)?;
    }
    Ok(allowed.iter().map(name).collect())
}

/// Reads every byte of the bundle. The files' own device limits the wait: an upload lies on /var, and a stick that is pulled out fails.
async fn verified(files: Files, report: &Arc<Report>) -> Result<VerifiedBundle, BundleError> {
    let report = report.clone();
    let verifying = blocking_io::to_its_end(move || {
        let (index, summary) = files.metadata()?;
        report.name(summary.digest);
        check_architecture(&index)?;
        report.tell(Event::Found(summary.bytes));
        let verified = verify(files, &mut |bytes| report.read(bytes));
        verified.map_err(BundleError::from)
    });
    verifying.await?
}

/// Checks that the bundle has an image for this machine, before gigabytes are compared.
fn check_architecture(index: &Index) -> Result<(), BundleError> {
    if index.images().iter().any(is_for_this_machine) {
        return Ok(());
    }
    let platforms = index
        .images()
        .iter()
        .map(|image| image.platform.to_string());
    let platforms: BTreeSet<String> = platforms.collect();
    let found = platforms.into_iter().collect::<Vec<_>>().join(", ");
    Err(BundleError::OtherArchitecture { found })
}

fn is_for_this_machine(image: &Image) -> bool {
    image.platform.os == PLATFORM.os && image.platform.architecture == PLATFORM.architecture
}

/// Judges all images for this machine by the rules in force. One that is refused refuses the bundle.
fn judge(
    machine: &Machine,
    bundle: &VerifiedBundle,
    origin: Origin,
) -> Result<Vec<Allowed>, BundleError> {
    let configured = machine.config();
    let configured: Option<&Configured> = configured.as_deref();
    let puller = intent::puller(configured);
    let rules = configured.map_or_else(BundleRules::default, |it| it.config.bundles.clone());
    let images = bundle.index().images().iter();
    let mut allowed = Vec::new();
    for image in images.filter(|image| is_for_this_machine(image)) {
        let resolved = resolve(bundle, image)?;
        let verified = puller.policy().verify_offline(bundle, image, resolved)?;
        let (digest, basis) = (bundle.digest(), verified.basis());
        approve(origin, digest, &rules.approved, &image.reference, basis)?;
        allowed.push(verified);
    }
    Ok(allowed)
}

/// Waits until an operation begins that ends the machine.
async fn end_of_machine(operations: &Operations) -> Interrupted {
    Interrupted {
        by: operations.end_of_machine().await,
    }
}
