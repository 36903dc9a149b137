//! The owner's rules for images: which of them need a signature, and which may not be used at all.

use std::fmt;

use super::image_reference::ImageReference;
use super::public_key::PublicKey;

/// A pattern over registry and repository of an image's full name, without tag and digest. `*` stands for any characters, slashes too;
/// every other character stands for itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ImagePattern(String);

/// The effect of a rule on the images that match it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleEffect {
    /// The image is used without a signature.
    Skip,
    /// The image is not used.
    Deny,
    /// The image is used if it has a signature by this key.
    SignedBy(PublicKey),
}

/// A rule: the first one whose pattern matches decides about an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRule {
    /// The images that it is for.
    pub pattern: ImagePattern,
    /// Its effect on them.
    pub effect: RuleEffect,
}

impl ImagePattern {
    /// A pattern as it is written in the config.
    #[must_use]
    pub fn new(pattern: &str) -> Self {
        ImagePattern(pattern.to_owned())
    }

    /// The pattern as it is written in the config.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether an image matches. Its name is complete: `nginx` is `docker.io/library/nginx`.
    #[must_use]
    pub fn matches(&self, image: &ImageReference) -> bool {
        let name = format!("{}/{}", image.registry(), image.repository());
        self.matches_text(&name)
    }

    fn matches_text(&self, text: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else {
            return text == self.0;
        };
        let Some(mut text) = text.strip_prefix(first) else {
            return false;
        };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The leftmost place is enough: a later one leaves less for the parts that follow.
        for part in middle.split('*') {
            match text.find(part) {
                Some(at) => text = &text[at + part.len()..],
                None => return false,
            }
        }
        text.ends_with(last)
    }
}

impl fmt::Display for ImagePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_and_nothing_else_is_special() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "docker.io/library/nginx", true),
            ("", "", true),
            ("", "a", false),
            ("a", "a", true),
            ("a", "ab", false),
            ("ghcr.io/*", "ghcr.io/siderolabs/installer", true),
            ("ghcr.io/*", "ghcr.io.evil.example/a", false),
            ("*/installer", "ghcr.io/siderolabs/installer", true),
            ("*/installer", "ghcr.io/siderolabs/installer-base", false),
            ("ghcr.io/*/installer", "ghcr.io/a/b/installer", true),
            ("ghcr.io/*/installer", "ghcr.io/installer", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a**c", "ac", true),
            ("a*a", "a", false),
            ("ab*ba", "aba", false),
            ("*a*", "bab", true),
            ("*a*", "bbb", false),
            ("a?c", "abc", false),
            ("a[bc]", "ab", false),
            ("é*", "éa", true),
        ] {
            let matches = ImagePattern::new(pattern).matches_text(text);
            assert_eq!(matches, expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn names_are_completed_and_their_tags_do_not_count() {
        let image: ImageReference = "nginx:1.27".parse().unwrap();
        assert!(ImagePattern::new("docker.io/library/nginx").matches(&image));
        assert!(!ImagePattern::new("nginx").matches(&image));
        assert!(!ImagePattern::new("*:1.27").matches(&image));
    }
}
