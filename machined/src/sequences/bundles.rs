//! Takes a bundle: verifies every byte of it, judges its images, unpacks them into the store.
//!
//! All or nothing is allowed: one image that is refused refuses the bundle, before anything of it is unpacked. Images for other
//! architectures than this machine's are left out; if there is no other, the bundle is refused. Files of extensions that the machine has no
//! use for are left out as well.

mod ask;
mod files;
mod judge;
mod lists;
mod medium;
mod report;
mod sticks;
mod support;
mod upgrade;

pub use crate::bundles::UPLOAD;
pub use ask::NotAnswered;
pub use report::Report;
pub use sticks::watch_sticks;
pub use support::{CollectSupport, SupportPart};

use std::collections::BTreeSet;
use std::sync::Arc;

use instar_bundle::{Files, Image, Index, Refused, VerifiedBundle, verify};

use self::ask::Asked;
use self::judge::{Judged, judge};
use self::lists::take_lists;
use crate::base::blocking_io::{self, NoAnswer};
use crate::base::error_chain::chain;
use crate::bundles::upgrade::Installer;
use crate::bundles::{
    Approval, Event, FoundFile, FoundImage, FoundList, NotApproved, Origin, UseOfFile, all_approved,
};
use crate::config::BundleRules;
use crate::machine::Machine;
use crate::oci::bundled::{BundledImageError, Naming, import};
use crate::oci::manifest::PLATFORM;
use crate::oci::verification::{VerificationError, VerifiedImage};
use crate::oci::{Limits, PullError};
use crate::operation_lock::{Interrupted, Operations};
use crate::values::Digest;

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
    /// The documents of its images take too much memory.
    #[error(
        "the manifests and configs of the bundle's images have more than {limit}, which this machine does not take"
    )]
    TooMuch {
        /// The limit.
        limit: String,
    },
    /// The rules refuse an image.
    #[error(transparent)]
    NotAllowed(#[from] Box<VerificationError>),
    /// Nobody has approved an image.
    #[error(transparent)]
    NotApproved(#[from] NotApproved),
    /// A person at the machine was asked, and has not approved it.
    #[error(transparent)]
    NotAnswered(#[from] NotAnswered),
    /// There is no place for images yet.
    #[error("there is no place for images: /var is not mounted; wait until the machine has booted")]
    NoPlace,
    /// An image was not unpacked.
    #[error("image {number} of {count} was not imported{}", if *number > 1 { "; those before it are in the store" } else { "" })]
    Import {
        /// Its number, from 1.
        number: usize,
        /// Number of images.
        count: usize,
        /// The cause.
        source: Box<PullError>,
    },
    /// There are only files of extensions, and the machine keeps none.
    #[error(
        "the bundle brings only files of extensions, and this machine keeps none of them: {}",
        files.join(", ")
    )]
    NoFile {
        /// Their names.
        files: Vec<String>,
    },
    /// A file of an extension was not kept.
    #[error(
        "the file {name} was not kept; the bundle's images, and the files before it, are in the store"
    )]
    File {
        /// Its name.
        name: String,
        /// The cause.
        source: anyhow::Error,
    },
    /// Another bundle is being taken.
    #[error("another bundle is being taken, which came by {holder}; try again when it is done")]
    Busy {
        /// The origin of that one.
        holder: String,
    },
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

impl BundleError {
    /// Returns what a person at the machine can do about it.
    fn advice(&self) -> String {
        let advice = match self {
            BundleError::Altered(_) | BundleError::Image(_) => {
                "Copy the bundle onto the stick again, and compare its digest; if that does not help, make it again."
            }
            BundleError::OtherArchitecture { .. } => {
                return format!("Bring a bundle that was made for {PLATFORM}.");
            }
            BundleError::TooMuch { .. } => "Make several bundles, each with some of the images.",
            BundleError::NotAllowed(_) => {
                "The images need a signature by a key that this machine's config names, in ImageVerificationConfig."
            }
            BundleError::NotApproved(_) => {
                "Whoever manages this machine can sign the images, or add the bundle's digest to BundleConfig."
            }
            BundleError::NotAnswered(_)
            | BundleError::Interrupted(_)
            | BundleError::NoPlace
            | BundleError::Busy { .. } => {
                "Try again: plug the stick in once more, or upload it again."
            }
            BundleError::NoFile { .. } => {
                "Name the files by their digests in this machine's config, in ExtensionConfig, or add the bundle's digest to BundleConfig."
            }
            BundleError::Import { .. } | BundleError::File { .. } => {
                "If there is no room, remove images or files; else plug the stick in once more, or upload it again."
            }
            BundleError::NoAnswer(_) | BundleError::Machine(_) => {
                "A disk may be failing: look at the machine's log."
            }
        };
        advice.to_owned()
    }
}

/// A bundle that was taken.
#[derive(Debug)]
pub struct Taken {
    /// Its digest.
    pub bundle: Digest,
    /// The references that are in the store now.
    pub images: Vec<String>,
    /// The files of extensions, each with the use that the machine has for it.
    pub files: Vec<FoundFile>,
    /// The lists of channels, each with the use that the machine has for it.
    pub lists: Vec<FoundList>,
    /// The installer that the machine is to be upgraded with.
    pub installer: Option<Installer>,
}

/// Takes a bundle, and tells the report how far it is.
///
/// # Errors
/// The bundle is refused, or something failed. [`tell_end`] reports it.
pub async fn take_bundle(
    machine: &Arc<Machine>,
    files: Files,
    origin: Origin,
    report: &Arc<Report>,
) -> Result<Taken, BundleError> {
    let taking = take(machine, files, origin, report);
    tokio::select! {
        taken = taking => taken,
        interrupted = end_of_machine(&machine.operations) => Err(interrupted.into()),
    }
}

/// Tells how the taking of a bundle has ended, once its place may be cleared.
pub fn tell_end(report: &Report, taken: &Result<Taken, BundleError>) {
    report.tell(match taken {
        Ok(taken) => Event::Imported(taken.images.clone()),
        Err(error) => Event::Failed {
            reason: chain(error),
            advice: error.advice(),
        },
    });
}

async fn take(
    machine: &Arc<Machine>,
    files: Files,
    origin: Origin,
    report: &Arc<Report>,
) -> Result<Taken, BundleError> {
    if !machine.disk.status().borrow().var_mounted {
        return Err(BundleError::NoPlace);
    }
    let turn = &machine.bundles.turn;
    let _turn = match (turn.try_take(&report.origin()), origin) {
        (Ok(taking), _) => taking,
        (Err(holder), Origin::Caller) => return Err(BundleError::Busy { holder }),
        // Nobody would plug it in again.
        (Err(holder), Origin::Stick) => {
            report.tell(Event::Waits(holder.clone()));
            let taking = turn.take(&report.origin()).await;
            taking.ok_or(BundleError::Busy { holder })?
        }
    };
    let bundle = verified(files, report).await?;
    let judged = judge(machine, &bundle, origin).await?;
    report.judged(judged.found.clone());
    let installer = match origin {
        Origin::Caller => None,
        Origin::Stick => upgrade::plan(machine, bundle.digest(), &judged.allowed, report),
    };
    let judged = approved(machine, &bundle, origin, judged, report).await?;
    let (judged, files) = decided_files(machine, &bundle, origin, judged, report).await?;
    if judged.allowed.is_empty() && !files.iter().any(|it| it.use_of_it == UseOfFile::Kept) {
        report.files(files.clone());
        let files = files.into_iter().map(|file| file.name).collect();
        return Err(BundleError::NoFile { files });
    }
    let images = import_all(machine, &bundle, &judged, report).await?;
    files::keep_files(machine, &bundle, &files, &judged, report).await?;
    report.files(files.clone());
    // After the images: a release that a list names is here when the machine looks for it.
    let lists = take_lists(machine, &bundle).await;
    report.lists(lists.clone());
    Ok(Taken {
        bundle: bundle.digest(),
        images,
        files,
        lists,
        installer,
    })
}

/// Checks that all images are approved; asks a person for it if the config allows that.
async fn approved(
    machine: &Machine,
    bundle: &VerifiedBundle,
    origin: Origin,
    judged: Judged,
    report: &Arc<Report>,
) -> Result<Judged, BundleError> {
    let Err(open) = all_approved(bundle.digest(), &judged.found) else {
        return Ok(judged);
    };
    let rules = rules(machine);
    if origin == Origin::Caller || rules.ask_at.is_empty() {
        return Err(open.into());
    }
    ask::ask(Asked::Bundle, &rules.ask_at, report).await?;
    let judged = judged.approved_by_person();
    report.judged(judged.found.clone());
    Ok(judged)
}

/// Decides about the files of extensions. A person is asked about those of a stick that nobody has approved, if the config allows that;
/// without an approval they are left out, and the rest of the bundle is taken all the same.
async fn decided_files(
    machine: &Arc<Machine>,
    bundle: &VerifiedBundle,
    origin: Origin,
    judged: Judged,
    report: &Arc<Report>,
) -> Result<(Judged, Vec<FoundFile>), BundleError> {
    let files = files::decide(machine, bundle, judged.is_approved).await?;
    let rules = rules(machine);
    let is_open = files.iter().any(|it| it.use_of_it == UseOfFile::NotNamed);
    if origin == Origin::Caller || rules.ask_at.is_empty() || !is_open {
        return Ok((judged, files));
    }
    match ask::ask(Asked::Files, &rules.ask_at, report).await {
        Ok(()) => {
            let judged = judged.approved_by_person();
            let files = files::decide(machine, bundle, judged.is_approved).await?;
            Ok((judged, files))
        }
        Err(NotAnswered::Gone) => Err(NotAnswered::Gone.into()),
        Err(why) => {
            tracing::info!("files of extensions in a bundle are left out: {why}");
            Ok((judged, files))
        }
    }
}

/// Unpacks all images; returns the references by which they are in the store.
async fn import_all(
    machine: &Machine,
    bundle: &VerifiedBundle,
    judged: &Judged,
    report: &Arc<Report>,
) -> Result<Vec<String>, BundleError> {
    let name = |image: &judge::Allowed| image.reference.to_string();
    if let Some(first) = judged.allowed.first() {
        report.tell(Event::Good(name(first), judged.allowed.len()));
    }
    let naming = match judged.is_approved {
        true => Naming::Moves,
        false => Naming::MovesToNewer,
    };
    let mut references = Vec::new();
    for (number, image) in judged.allowed.iter().enumerate() {
        if number > 0 {
            report.tell(Event::Next(name(image)));
        }
        let (images, limits) = (&machine.images, Limits::default());
        let progress = |progress: crate::oci::Progress| {
            report.unpacked(progress.bytes, progress.total);
        };
        let imported = import(bundle, image, naming, images, &limits, &progress).await;
        let imported = imported.map_err(|error| BundleError::Import {
            number: number + 1,
            count: judged.allowed.len(),
            source: Box::new(error),
        })?;
        references.push(named(image, &imported));
        // Each image by itself: a power cut leaves those that are whole.
        let kept = machine.bundles.kept.change(bundle.digest(), |taken| {
            taken.brought(imported.digest());
            judged.note(taken);
        });
        kept.map_err(BundleError::Machine)?;
    }
    Ok(references)
}

/// The reference by which an image of a bundle is in the store: its name, unless another image keeps that.
fn named(image: &judge::Allowed, imported: &VerifiedImage) -> String {
    let (name, digest) = (&image.reference, image.digest());
    if imported.is_named(name) {
        return name.to_string();
    }
    tracing::warn!(
        "{name} stays the name of the image that has it: a bundle brings {digest}, which is not newer by its date, and nobody has approved \
         the bundle; name the image by its digest, or the bundle's digest in BundleConfig, and plug the stick in once more"
    );
    name.at(digest).to_string()
}

/// The rules for bundles that are in force.
fn rules(machine: &Machine) -> BundleRules {
    let configured = machine.config();
    configured.map_or_else(BundleRules::default, |it| it.config.bundles.clone())
}

/// Reads every byte of the bundle. A device that is too slow fails the reading, and so does a stick that is pulled out.
async fn verified(files: Files, report: &Arc<Report>) -> Result<VerifiedBundle, BundleError> {
    let report = report.clone();
    let verifying = blocking_io::to_its_end(move || {
        let (index, summary) = files.metadata()?;
        report.name(
            summary.digest,
            not_judged(&index),
            files::not_decided(&index),
        );
        check_architecture(&index)?;
        report.tell(Event::Found(summary.bytes));
        let verified = verify(files, &mut |bytes| report.read(bytes));
        verified.map_err(BundleError::from)
    });
    verifying.await?
}

/// Checks that the bundle has an image for this machine if it has any, before gigabytes are compared.
fn check_architecture(index: &Index) -> Result<(), BundleError> {
    if index.images().is_empty() || index.images().iter().any(is_for_this_machine) {
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

/// The images for this machine, as the index names them.
fn not_judged(index: &Index) -> Vec<FoundImage> {
    let images = index.images().iter();
    let images = images.filter(|image| is_for_this_machine(image));
    let found = images.map(|image| FoundImage {
        reference: image.reference.to_string(),
        version: None,
        approval: Approval::NotJudged,
    });
    found.collect()
}

/// Waits until an operation begins that ends the machine.
async fn end_of_machine(operations: &Operations) -> Interrupted {
    Interrupted {
        by: operations.end_of_machine().await,
    }
}
