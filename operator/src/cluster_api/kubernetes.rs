//! Kubernetes of a node: the versions that it may go to, and the patch of its machine config that brings it there.

use std::str::FromStr;

use instar_values::Version;

/// Where the version stands in the patch.
const PLACEHOLDER: &str = "{version}";

/// The patch that names the extension with Kubernetes, with a place for its version. The administrator writes it once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KubernetesPatch(String);

impl FromStr for KubernetesPatch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(PLACEHOLDER) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "the patch has no {PLACEHOLDER}, the place for the version, as in `image: registry.example/kubernetes:{PLACEHOLDER}`"
        ))
    }
}

impl KubernetesPatch {
    /// The patch for a version.
    pub(super) fn filled_in(&self, version: &Version) -> String {
        self.0.replace(PLACEHOLDER, &version.to_string())
    }
}

/// The version that kubelet tells. What is behind a `+` is the builder's own, and no part of a version.
///
/// # Errors
/// The text has no version.
pub(super) fn kubelet_version(text: &str) -> Result<Version, String> {
    let (version, _) = text.split_once('+').unwrap_or((text, ""));
    version
        .parse()
        .map_err(|_| format!("{text:?} is no version of Kubernetes"))
}

/// Whether a node may go from one version to the other: Kubernetes goes on by one minor version at most, and never back.
///
/// # Errors
/// It may not; says why.
pub(super) fn check_step(from: &Version, to: &Version) -> Result<(), String> {
    let ([major, minor, _], [next_major, next_minor, _]) = (from.numbers(), to.numbers());
    if to < from {
        return Err(format!("Kubernetes does not go back from {from} to {to}"));
    }
    if major == next_major && next_minor.saturating_sub(minor) <= 1 {
        return Ok(());
    }
    Err(format!(
        "Kubernetes goes to the next minor version at most, and from {from} to {to} are more: take them one after the other"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn a_node_goes_on_by_one_minor_version_at_most() {
        for (from, to, words) in [
            ("v1.36.3", "v1.36.3", ""),
            ("v1.36.3", "v1.36.4", ""),
            ("v1.36.3", "v1.37.0", ""),
            ("v1.36.3", "v1.37.9", ""),
            ("v1.37.0-rc.1", "v1.37.0", ""),
            ("v1.36.3", "v1.38.0", "more"),
            ("v1.36.3", "v2.0.0", "more"),
            ("v1.36.3", "v2.36.3", "more"),
            ("v1.36.3", "v1.36.2", "does not go back"),
            ("v1.37.0", "v1.36.9", "does not go back"),
            ("v1.37.0", "v1.37.0-rc.1", "does not go back"),
        ] {
            let may = check_step(&version(from), &version(to));
            let why = may.err().unwrap_or_default();
            assert_eq!(why.is_empty(), words.is_empty(), "{from} {to}: {why}");
            assert!(why.contains(words), "{from} {to}: {why}");
        }
    }

    #[test]
    fn kubelet_tells_a_version_with_words_of_its_builder() {
        assert_eq!(kubelet_version("v1.36.3"), Ok(version("v1.36.3")));
        assert_eq!(kubelet_version("v1.36.3+site.1"), Ok(version("v1.36.3")));
        for bad in ["", "1.36.3", "v1.36", "+v1.36.3"] {
            assert!(kubelet_version(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_patch_has_a_place_for_the_version() {
        let patch: KubernetesPatch = "image: r/k:{version}\nurl: x/{version}".parse().unwrap();
        let filled = patch.filled_in(&version("v1.36.3"));
        assert_eq!(filled, "image: r/k:v1.36.3\nurl: x/v1.36.3");
        let refused = "image: r/k:v1.36.3".parse::<KubernetesPatch>();
        assert!(refused.unwrap_err().contains("no {version}"));
    }
}
