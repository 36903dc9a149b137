//! Judges the images of a bundle: by the rules for images, and by the approvals of the bundle.

use instar_bundle::VerifiedBundle;

use super::{BundleError, is_for_this_machine, rules};
use crate::bundles::{Approval, Approvals, FoundImage, Origin, Taken, approve};
use crate::intent;
use crate::machine::Machine;
use crate::oci::bundled::resolve;
use crate::oci::manifest::VERSION_LABEL;
use crate::oci::{ImageConfig, ResolvedImage, Verified};

/// The labels that name an image's version: that of an installer, and that of the OCI's image specification.
const VERSIONS: [&str; 2] = ["dev.instar.version", VERSION_LABEL];

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

/// Judges all images for this machine by the rules in force. One that is refused refuses the bundle; one that nobody has approved does not
/// yet.
pub(super) fn judge(
    machine: &Machine,
    bundle: &VerifiedBundle,
    origin: Origin,
) -> Result<Judged, BundleError> {
    let puller = intent::puller(machine.config().as_deref());
    let rules = rules(machine);
    let digest = bundle.digest();
    let before = machine.bundles.kept.find(digest);
    let given = Approvals {
        config: &rules.approved,
        person: !rules.ask_at.is_empty() && before.is_some_and(|taken| taken.by_person),
    };
    let is_approved = origin == Origin::Caller || given.config.contains(&digest) || given.person;
    let images = bundle.index().images().iter();
    let (mut allowed, mut found) = (Vec::new(), Vec::new());
    for image in images.filter(|image| is_for_this_machine(image)) {
        let resolved = resolve(bundle, image)?;
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

fn version(config: &ImageConfig) -> Option<String> {
    let mut named = VERSIONS.iter();
    named.find_map(|label| config.labels.get(*label).cloned())
}
