//! Whether images of a bundle may be taken, beyond what the rules for images say.
//!
//! ```text
//! rules                      upload by a caller who may pull    stick
//! deny, not signed           refused                            refused
//! signed by the rule's key   taken                              taken
//! skip, no rule              taken, as a pull                   taken if the config approves the bundle's digest, else refused
//! ```
//!
//! A stick has no caller: whoever can plug it in is asked for nothing. So somebody whom the config trusts has to have said yes before: by a
//! signature, or by naming the bundle.

use std::collections::BTreeSet;

use crate::oci::verification::Basis;
use crate::values::{Digest, ImageReference};

/// Who brought a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A caller of the API who may pull images.
    Caller,
    /// Whoever plugged in a stick.
    Stick,
}

/// An image that nobody whom the config trusts has said yes to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{image} is not approved: no rule of ImageVerificationConfig names a key that has signed it, and BundleConfig does not approve \
     the bundle {bundle}; sign the image, or add the digest to BundleConfig"
)]
pub struct NotApproved {
    /// The image.
    pub image: Box<ImageReference>,
    /// The bundle.
    pub bundle: Digest,
}

/// Decides about an image that the rules allow.
///
/// # Errors
/// The image is on a stick, is not signed by a rule's key, and its bundle is not approved.
pub fn approve(
    origin: Origin,
    bundle: Digest,
    approved: &BTreeSet<Digest>,
    image: &ImageReference,
    basis: &Basis,
) -> Result<(), NotApproved> {
    let is_approved = match (origin, basis) {
        (Origin::Caller, _) | (Origin::Stick, Basis::Signed { .. }) => true,
        (Origin::Stick, Basis::NoRule | Basis::Skipped(_)) => approved.contains(&bundle),
    };
    match is_approved {
        true => Ok(()),
        false => Err(NotApproved {
            image: Box::new(image.clone()),
            bundle,
        }),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::oci::verification::RuleName;
    use crate::values::ImagePattern;

    #[test]
    fn a_stick_needs_a_signature_or_an_approval() {
        let (bundle, other) = (Digest::of(b"bundle"), Digest::of(b"other"));
        let image: ImageReference = "r.io/a:v1".parse().unwrap();
        let rule = || RuleName {
            number: 0,
            pattern: ImagePattern::new("*"),
        };
        let signed = || Basis::Signed {
            rule: rule(),
            key: other,
        };
        let all = [Basis::NoRule, Basis::Skipped(rule()), signed()];
        for (origin, approved, expected) in [
            (Origin::Caller, vec![], [true, true, true]),
            (Origin::Stick, vec![], [false, false, true]),
            (Origin::Stick, vec![other], [false, false, true]),
            (Origin::Stick, vec![other, bundle], [true, true, true]),
        ] {
            let approved = approved.into_iter().collect();
            for (basis, expected) in all.iter().zip(expected) {
                let decided = approve(origin, bundle, &approved, &image, basis);
                assert_eq!(decided.is_ok(), expected, "{origin:?} {basis:?}");
            }
        }
        let refused = approve(
            Origin::Stick,
            bundle,
            &BTreeSet::new(),
            &image,
            &Basis::NoRule,
        );
        assert!(
            refused
                .unwrap_err()
                .to_string()
                .contains(&bundle.to_string())
        );
    }
}
