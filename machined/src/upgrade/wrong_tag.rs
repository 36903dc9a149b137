//! An installer image behind a tag of another release: its tag or its label is wrong, and nobody here can know which of the two.

use crate::values::{Contradiction, ReleaseTag, Version};

/// The contradiction of an installer image's label to its tag, and the way out of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}; one of both is wrong: name the image by a tag of its version or by its digest")]
pub struct WrongTag(Box<Contradiction>);

impl WrongTag {
    /// Returns how an image of this version contradicts the tag by which it was named. A tag that is not a release tag says nothing.
    pub fn of(version: &Version, tag: Option<&str>) -> Option<Self> {
        let tag: ReleaseTag = tag?.parse().ok()?;
        tag.check_label(version).err().map(WrongTag)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_a_release_tag_of_another_version_is_wrong() {
        let version: Version = "v0.2.0".parse().unwrap();
        for (tag, is_wrong) in [
            (Some("v0.2.0"), false),
            (Some("latest"), false),
            (None, false),
            (Some("v0.3.0"), true),
        ] {
            assert_eq!(WrongTag::of(&version, tag).is_some(), is_wrong, "{tag:?}");
        }
        assert_eq!(
            WrongTag::of(&version, Some("v0.3.0")).unwrap().to_string(),
            "the tag v0.3.0 says version 0.3.0, and the image's label says v0.2.0; one of both is wrong: name the image by a tag of its \
             version or by its digest"
        );
    }
}
