//! Warns of images in a bundle that a machine may ask a registry for all the same.
//!
//! An image is used from a bundle by its reference. Where a machine asks its registry what a tag means now, the image in the bundle does
//! not help: the machine waits for the registry, or runs an older image. A digest has only one meaning.

use instar_values::{Digest, ImageReference};

/// The warning about a reference whose image has this digest, if there is one.
pub(super) fn warning(reference: &ImageReference, digest: Digest) -> Option<String> {
    if reference.digest().is_some() {
        return None;
    }
    let always = match reference.tag() {
        Some("latest") | None => {
            "; Kubernetes asks for it at each start (imagePullPolicy Always is the default for latest)"
        }
        Some(_) => ", also Kubernetes where imagePullPolicy is Always",
    };
    Some(format!(
        "{reference} is a tag: whoever asks for its meaning anew needs the registry{always}; name the image by its digest: {}",
        reference.at(digest)
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_a_digest_needs_no_registry() {
        let digest = Digest::of(b"image");
        let warning = |reference: &str| warning(&reference.parse().unwrap(), digest);
        assert_eq!(warning(&format!("r.io/a@{digest}")), None);
        assert_eq!(warning(&format!("r.io/a:v1@{digest}")), None);
        let latest = warning("r.io/a").unwrap();
        assert!(latest.starts_with("r.io/a:latest is a tag"), "{latest}");
        assert!(latest.contains("at each start"), "{latest}");
        let other = warning("r.io/a:v1").unwrap();
        assert!(other.contains("where imagePullPolicy is Always"), "{other}");
        assert!(other.ends_with(&format!("r.io/a@{digest}")), "{other}");
    }
}
