//! Images whose version label contradicts the tag by which they are named: one of both is wrong, and nobody here can know which one.
//!
//! Only release tags (`2.6.2`, `2.6.2-rev1`, `2.6.2-rev1-b5.1`) are compared, and only with labels that are versions: other tags promise no
//! version, and other labels say nothing about one.

use std::error::Error;
use std::fmt;

use crate::oci::ImageConfig;
use crate::oci::manifest::VERSION_LABEL;
use crate::values::{Contradiction, Digest, ImageReference, ReleaseTag, Version};

/// Why an image is held that nobody has named by its digest.
#[derive(Debug)]
pub struct Held {
    image: ImageReference,
    digest: Digest,
    why: Box<Contradiction>,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { image, digest, why } = self;
        write!(
            f,
            "{image} means {digest} now, which is held: {why}; name the image by its digest in the config to run it all the same"
        )
    }
}

impl Error for Held {}

/// Checks that the image behind a name does not contradict it. A digest in the name says which image is meant, whatever its tag.
///
/// # Errors
/// It contradicts the tag.
pub fn check_tag(
    image: &ImageReference,
    digest: Digest,
    config: &ImageConfig,
) -> Result<(), Box<Held>> {
    let label = config.labels.get(VERSION_LABEL).map(String::as_str);
    match contradiction(image, label).filter(|_| image.digest().is_none()) {
        None => Ok(()),
        Some(why) => Err(Box::new(Held {
            image: image.clone(),
            digest,
            why,
        })),
    }
}

/// Returns how the tag of a name contradicts a version label.
pub(super) fn contradiction(
    image: &ImageReference,
    label: Option<&str>,
) -> Option<Box<Contradiction>> {
    let tag: ReleaseTag = image.tag()?.parse().ok()?;
    tag.check_label(&version(label?)?).err()
}

/// Reads a label's version, with or without a `v` in front. Other texts say nothing about a tag.
fn version(label: &str) -> Option<Version> {
    let with_v = || format!("v{label}").parse().ok();
    label.parse().ok().or_else(with_v)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_image_is_held_if_its_label_clearly_contradicts_its_tag() {
        let digest = Digest::of(b"image");
        let other = Digest::of(b"other");
        for (name, label, is_held) in [
            ("app:2.6.2", Some("2.7.0"), true),
            ("app:v2.6.2", Some("v2.7.0"), true),
            ("app:2.6.2-rev1", Some("2.6.2-rev2"), true),
            ("app:2.6.2", Some("2.6.2"), false),
            ("app:2.6.2", Some("2.6.2-rev1"), false),
            ("app:2.6", Some("2.6.2"), false),
            ("app:2.6.2", None, false),
            // What a base image may say of itself, and what is no version.
            ("app:2.6.2", Some("24.04"), false),
            ("app:2.6.2", Some("12"), false),
            ("app:2.6.2", Some("bookworm-20260901"), false),
            ("app:2.6.2", Some("15.6.47.11.1"), false),
            // No release tags.
            ("app", Some("2.7.0"), false),
            ("app:latest", Some("2.7.0"), false),
            ("app:2", Some("2.7.0"), false),
            ("app:2.6.2-alpine", Some("2.7.0"), false),
            // It was named by its digest.
            (&format!("app:2.6.2@{other}"), Some("2.7.0"), false),
            (&format!("app@{other}"), Some("2.7.0"), false),
        ] {
            let image: ImageReference = format!("r.io/{name}").parse().unwrap();
            let label = label.map(|label| (VERSION_LABEL.to_owned(), label.to_owned()));
            let config = ImageConfig {
                labels: label.into_iter().collect(),
                ..ImageConfig::default()
            };
            let checked = check_tag(&image, digest, &config);
            assert_eq!(checked.is_err(), is_held, "{name} {config:?}");
        }
    }

    #[test]
    fn the_reason_says_how_to_run_it_all_the_same() {
        let image: ImageReference = "r.io/app:2.6.2".parse().unwrap();
        let labels = [(VERSION_LABEL.to_owned(), "2.7.0".to_owned())];
        let config = ImageConfig {
            labels: labels.into(),
            ..ImageConfig::default()
        };
        let digest = Digest::of(b"image");
        let held = check_tag(&image, digest, &config).unwrap_err();
        assert_eq!(
            held.to_string(),
            format!(
                "r.io/app:2.6.2 means {digest} now, which is held: the tag 2.6.2 says version 2.6.2, and the image's label says v2.7.0; \
                 name the image by its digest in the config to run it all the same"
            )
        );
    }
}
