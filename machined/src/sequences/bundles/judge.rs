//! Judges the images of a bundle: by the rules for images, and by the approvals of the bundle.

use std::sync::Arc;
use std::time::Instant;

use instar_bundle::VerifiedBundle;

use super::{BundleError, is_for_this_machine, rules};
use crate::base::blocking_io::{self, ANSWER, NoAnswer};
use crate::base::byte_size::human_short;
use crate::bundles::{Approval, Approvals, FoundImage, Origin, Taken, approve};
use crate::intent;
use crate::machine::Machine;
use crate::oci::bundled::resolve;
use crate::oci::manifest::VERSION_LABEL;
use crate::oci::{ImageConfig, ResolvedImage, Verified};
use crate::values::Digest;

/// The labels that name an image's version: that of an installer, and that of the OCI's image specification.
const VERSIONS: [&str; 2] = ["dev.instar.version", VERSION_LABEL];

/// Limit on the documents of all images of a bundle, in bytes: they are in memory until the bundle is taken. Those of one image have some
/// ten KiB.
const MOST_OF_DOCUMENTS: u64 = 16 << 20;

/// An image of the bundle that the rules allow.
pub(super) type Allowed = Verified<ResolvedImage>;

/// The images of a bundle, all of which the rules allow.
pub(super) struct Judged {
    pub(super) allowed: Vec<Allowed>,
    /// The same in the same order, with the approval of each.
    pub(super) found: Vec<FoundImage>,
    /// Whether the bundle as a whole is approved: by the caller who brought it, by the config, or by a person.
    pub(super) is_approved: bool,
    /// Whether a person has approved the bundle, now or earlier.
    pub(super) by_person: bool,
}

impl Judged {
    /// The same after a person has approved the bundle.
    pub(super) fn approved_by_person(mut self) -> Self {
        self.is_approved = true;
        self.by_person = true;
        let open = self.found.iter_mut();
        for image in open.filter(|image| image.approval == Approval::Nobody) {
            image.approval = Approval::Person;
        }
        self
    }

    /// Notes who has approved the bundle, with what is remembered of it.
    pub(super) fn note(&self, taken: &mut Taken) {
        taken.approved |= self.is_approved;
        taken.by_person |= self.by_person;
    }
}

/// Judges all images for this machine, on a thread of its own: the documents are read from the stick again, and a hostile bundle has many.
pub(super) async fn judge(
    machine: &Arc<Machine>,
    bundle: &VerifiedBundle,
    origin: Origin,
) -> Result<Judged, BundleError> {
    let (machine, bundle) = (machine.clone(), bundle.clone());
    blocking_io::within(ANSWER, move || judged(&machine, &bundle, origin)).await?
}

/// Judges the images by the rules in force. One that is refused refuses the bundle; one that nobody has approved does not yet.
fn judged(
    machine: &Machine,
    bundle: &VerifiedBundle,
    origin: Origin,
) -> Result<Judged, BundleError> {
    let puller = intent::puller(machine.config().as_deref());
    let rules = rules(machine);
    let digest = bundle.digest();
    let before = before(machine, digest);
    let given = Approvals {
        config: &rules.approved,
        person: !rules.ask_at.is_empty() && before.is_some_and(|taken| taken.by_person),
    };
    let is_approved = origin == Origin::Caller || given.config.contains(&digest) || given.person;
    let images = bundle.index().images().iter();
    let (mut allowed, mut found) = (Vec::new(), Vec::new());
    let (began, mut documents) = (Instant::now(), 0);
    for image in images.filter(|image| is_for_this_machine(image)) {
        if began.elapsed() >= ANSWER {
            // Nobody waits any more.
            return Err(NoAnswer::Late(ANSWER).into());
        }
        let resolved = resolve(bundle, image)?;
        documents = with_documents(documents, &resolved)?;
        let version = version(&resolved.config);
        let verified = puller.policy().verify_offline(bundle, image, resolved)?;
        found.push(FoundImage {
            reference: image.reference.to_string(),
            version,
            approval: approve(origin, digest, given, verified.basis()),
        });
        allowed.push(verified);
    }
    Ok(Judged {
        allowed,
        found,
        is_approved,
        by_person: given.person,
    })
}

/// Returns what is remembered of a bundle. While that cannot be read, nobody has approved it before: it is asked for once more.
pub(super) fn before(machine: &Machine, bundle: Digest) -> Option<Taken> {
    let found = machine.bundles.kept.find(bundle);
    found.unwrap_or_else(|error| {
        tracing::warn!("the bundle {bundle} counts as new: {error:#}");
        None
    })
}

/// Adds the bytes of an image's documents to those of the images before.
fn with_documents(before: u64, image: &ResolvedImage) -> Result<u64, BundleError> {
    let index = image.index.as_ref().map_or(0, Vec::len);
    let own = image.manifest.len() + image.config_document.len() + index;
    let all = before.saturating_add(own as u64);
    match all > MOST_OF_DOCUMENTS {
        true => Err(BundleError::TooMuch {
            limit: human_short(MOST_OF_DOCUMENTS),
        }),
        false => Ok(all),
    }
}

fn version(config: &ImageConfig) -> Option<String> {
    let mut named = VERSIONS.iter();
    named.find_map(|label| config.labels.get(*label).cloned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_documents_of_many_images_are_not_taken_into_memory() {
        let document = |bytes: usize| vec![b' '; bytes];
        let image = |index: Option<Vec<u8>>| ResolvedImage {
            reference: "r.io/web:v1".parse().unwrap(),
            digest: Digest::of(b"image"),
            named_digest: Digest::of(b"image"),
            config: ImageConfig::default(),
            layers: Vec::new(),
            index,
            manifest: document(2),
            config_document: document(3),
        };
        assert_eq!(with_documents(1, &image(None)).unwrap(), 6);
        assert_eq!(with_documents(1, &image(Some(document(4)))).unwrap(), 10);
        let room = MOST_OF_DOCUMENTS - 5;
        assert!(with_documents(room, &image(None)).is_ok());
        let refused = with_documents(room + 1, &image(None)).unwrap_err();
        assert!(
            refused.to_string().contains("more than 16 MiB"),
            "{refused}"
        );
    }
}
