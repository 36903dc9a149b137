//! Whether images of a bundle may be taken, after the rules for images have allowed them.
//!
//! ```text
//! rules                      upload by a caller who may pull    stick
//! deny, not signed           refused                            refused
//! signed by the rule's key   taken                              taken
//! skip, no rule              taken, as a pull                   taken if the config, or a person at the machine, approves the
//!                                                               bundle's digest; else refused
//! ```
//!
//! A stick has no caller: whoever can plug it in is asked for nothing. So somebody whom the config trusts has to have said yes before: by a
//! signature, by naming the bundle, or at a terminal that the config names.

use std::collections::BTreeSet;

use super::contents::{Approval, FoundImage};
use crate::oci::verification::Basis;
use crate::values::Digest;

/// The way on which a bundle came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A caller of the API who may pull images.
    Caller,
    /// Whoever plugged in a stick.
    Stick,
}

/// Images that nobody whom the config trusts has said yes to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} not approved: no rule of ImageVerificationConfig names a key that has signed it, and BundleConfig does not approve the bundle \
     {bundle}",
    be(images)
)]
pub struct NotApproved {
    /// Their references.
    pub images: Vec<String>,
    /// The bundle.
    pub bundle: Digest,
}

fn be(images: &[String]) -> String {
    let verb = if images.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", images.join(", "))
}

/// The approvals of bundles as a whole.
#[derive(Debug, Clone, Copy)]
pub struct Approvals<'a> {
    /// The digests in the config.
    pub config: &'a BTreeSet<Digest>,
    /// Whether a person at the machine has approved this bundle, and still may.
    pub person: bool,
}

/// Decides about an image that the rules allow.
pub fn approve(origin: Origin, bundle: Digest, given: Approvals<'_>, basis: &Basis) -> Approval {
    match (origin, basis) {
        (_, Basis::Signed { rule, key }) => Approval::Signature {
            rule: rule.pattern.to_string(),
            key: *key,
        },
        (Origin::Caller, Basis::NoRule | Basis::Skipped(_) | Basis::OfFile) => Approval::Caller,
        (Origin::Stick, _) if given.config.contains(&bundle) => Approval::Config,
        (Origin::Stick, _) if given.person => Approval::Person,
        (Origin::Stick, Basis::NoRule | Basis::Skipped(_) | Basis::OfFile) => Approval::Nobody,
    }
}

/// Checks that all images are approved.
///
/// # Errors
/// Those that are not.
pub fn all_approved(bundle: Digest, images: &[FoundImage]) -> Result<(), NotApproved> {
    let open = images
        .iter()
        .filter(|image| matches!(image.approval, Approval::Nobody | Approval::NotJudged));
    let images: Vec<String> = open.map(|image| image.reference.clone()).collect();
    match images.is_empty() {
        true => Ok(()),
        false => Err(NotApproved { images, bundle }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::verification::RuleName;
    use crate::values::ImagePattern;

    #[test]
    fn a_stick_needs_a_signature_or_an_approval() {
        let (bundle, other) = (Digest::of(b"bundle"), Digest::of(b"other"));
        let rule = || RuleName {
            number: 0,
            pattern: ImagePattern::new("*"),
        };
        let signed = || Basis::Signed {
            rule: rule(),
            key: other,
        };
        let signature = || Approval::Signature {
            rule: "*".to_owned(),
            key: other,
        };
        let all = [Basis::NoRule, Basis::Skipped(rule()), signed()];
        for (origin, approved, person, expected) in [
            (Origin::Caller, vec![], false, Approval::Caller),
            (Origin::Stick, vec![], false, Approval::Nobody),
            (Origin::Stick, vec![other], false, Approval::Nobody),
            (Origin::Stick, vec![other], true, Approval::Person),
            (Origin::Stick, vec![other, bundle], false, Approval::Config),
            (Origin::Stick, vec![other, bundle], true, Approval::Config),
        ] {
            let config = approved.into_iter().collect();
            let given = Approvals {
                config: &config,
                person,
            };
            let expected = [expected.clone(), expected, signature()];
            for (basis, expected) in all.iter().zip(expected) {
                let decided = approve(origin, bundle, given, basis);
                assert_eq!(decided, expected, "{origin:?} {basis:?}");
            }
        }
    }

    #[test]
    fn an_error_names_the_images_that_are_not_approved_and_the_bundle() {
        let bundle = Digest::of(b"bundle");
        let image = |name: &str, approval| FoundImage {
            reference: name.to_owned(),
            version: None,
            approval,
        };
        let images = [
            image("a", Approval::Nobody),
            image("b", Approval::Config),
            image("c", Approval::Nobody),
        ];
        let refused = all_approved(bundle, &images);
        let text = refused.err().map(|error| error.to_string());
        let text = text.unwrap_or_default();
        assert!(text.starts_with("a, c are not approved"), "{text}");
        assert!(text.contains(&bundle.to_string()), "{text}");
        assert_eq!(all_approved(bundle, &images[1..2]), Ok(()));
    }
}
