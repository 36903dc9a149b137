//! The rules by which one release may follow another: the machine's floor, the versions that the image names, and its tag.
//!
//! They are wishes of the people who make releases, and a person who knows better may override them by force. Rules that nobody can
//! override (architecture, protocol, room) are in `check`.

use super::check::{Candidate, Refusal};
use super::floor::FloorInForce;
use super::wrong_tag::WrongTag;
use crate::values::Version;

/// Returns all objections to the candidate. `tag`: the tag by which the image was named; a tag that is not a release tag says nothing.
pub fn objections(
    candidate: &Candidate,
    tag: Option<&str>,
    running: &str,
    floor: &FloorInForce,
) -> Vec<Refusal> {
    [
        below_floor(&candidate.version, floor),
        not_after(candidate, running),
        WrongTag::of(&candidate.version, tag).map(Refusal::WrongTag),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the objection to a version below the floor, or to one that may be below it.
pub fn below_floor(version: &Version, floor: &FloorInForce) -> Option<Refusal> {
    if let Some(floor) = &floor.known
        && *version < floor.version
    {
        return Some(Refusal::BelowFloor {
            version: version.to_string(),
            floor: floor.version.to_string(),
            set_by: floor.set_by.clone(),
        });
    }
    let unread = floor.unread.as_ref()?;
    // A running version without a place in the order is below no other one.
    let running = unread.running.parse::<Version>().ok();
    let is_older = running.is_none_or(|running| *version < running);
    is_older.then(|| Refusal::FloorUnread {
        version: version.to_string(),
        running: unread.running.clone(),
        why: unread.why.clone(),
    })
}

/// Returns the objection to a release that may not follow the running version. A release always follows itself: it may be built anew.
fn not_after(candidate: &Candidate, running: &str) -> Option<Refusal> {
    let ranges = candidate.upgrades_from.as_ref()?;
    // A running version without a place in the order is in no range.
    let version = running.parse::<Version>().ok();
    let may_follow =
        version.is_some_and(|version| version == candidate.version || ranges.contains(&version));
    (!may_follow).then(|| Refusal::MayNotFollow {
        version: candidate.version.to_string(),
        ranges: ranges.to_string(),
        running: running.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::upgrade::{Floor, floor::UnreadFloor};

    fn candidate(version: &str, upgrades_from: Option<&str>) -> Candidate {
        Candidate {
            version: version.parse().unwrap(),
            architecture: "amd64".to_owned(),
            kernel: blake3::hash(b"k"),
            init: blake3::hash(b"i"),
            rootfs: blake3::hash(b"r"),
            rootfs_bytes: 1,
            rootfs_signature: None,
            floor: None,
            upgrades_from: upgrades_from.map(|ranges| ranges.parse().unwrap()),
            kernel_release: None,
        }
    }

    /// Returns the messages of all objections.
    fn told(
        (version, upgrades_from): (&str, Option<&str>),
        tag: Option<&str>,
        running: &str,
        floor: Option<&str>,
    ) -> Vec<String> {
        let floor = floor.map(|floor| floor.parse().unwrap());
        let floor = FloorInForce {
            known: Floor::of_release(floor.as_ref(), "v0.9.0"),
            unread: None,
        };
        let candidate = candidate(version, upgrades_from);
        let all = objections(&candidate, tag, running, &floor);
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn no_version_below_the_floor_is_taken() {
        for (version, floor, is_taken) in [
            ("v0.1.0", None, true),
            ("v0.2.0", Some("v0.2.0"), true),
            ("v0.3.0", Some("v0.2.0"), true),
            ("v0.10.0", Some("v0.9.0"), true),
            ("v0.1.9", Some("v0.2.0"), false),
            ("v0.2.0-rc.1", Some("v0.2.0"), false),
            ("v0.2.0-rc.2", Some("v0.2.0-rc.1"), true),
        ] {
            let told = told((version, None), None, "v0.9.0", floor);
            assert_eq!(told.is_empty(), is_taken, "{version} {floor:?}: {told:?}");
        }
        assert_eq!(
            told(("v0.1.0", None), None, "v0.9.0", Some("v0.2.0")),
            [
                "version v0.1.0 is below this machine's floor v0.2.0, which v0.9.0 set when it ran here; take v0.2.0 or a newer version, \
                 or use force"
            ]
        );
    }

    #[test]
    fn while_the_floor_cannot_be_read_no_older_version_is_taken() {
        for (version, running, is_taken) in [
            ("v0.1.9", "v0.2.0", false),
            ("v0.2.0-rc.1", "v0.2.0", false),
            ("v0.2.0", "v0.2.0", true),
            ("v0.3.0", "v0.2.0", true),
            ("v0.3.0", "nightly", false),
        ] {
            let floor = FloorInForce {
                known: None,
                unread: Some(UnreadFloor {
                    running: running.to_owned(),
                    why: "release-floor.json is damaged".to_owned(),
                }),
            };
            let candidate = candidate(version, None);
            let told = objections(&candidate, None, running, &floor);
            assert_eq!(told.is_empty(), is_taken, "{version} {running}: {told:?}");
            if let Some(objection) = told.first() {
                let text = objection.to_string();
                assert!(text.contains("release-floor.json is damaged"), "{text}");
                assert!(text.contains("use force"), "{text}");
            }
        }
    }

    #[test]
    fn a_release_follows_the_versions_that_it_names_and_itself() {
        for (ranges, running, is_taken) in [
            (None, "v0.1.0", true),
            (Some(">=v0.1.0 <v0.3.0"), "v0.1.0", true),
            (Some(">=v0.1.0 <v0.3.0"), "v0.2.0-rc.1", true),
            (Some(">=v0.1.0 <v0.3.0 || v0.5.1"), "v0.5.1", true),
            (Some(">=v0.1.0 <v0.3.0"), "v0.3.0", false),
            (Some(">=v0.1.0 <v0.3.0"), "v0.4.0", true),
            // It is in no order.
            (Some(">=v0.0.0-0"), "nightly", false),
        ] {
            let told = told(("v0.4.0", ranges), None, running, None);
            assert_eq!(told.is_empty(), is_taken, "{running} {ranges:?}: {told:?}");
        }
        assert_eq!(
            told(("v0.4.0", Some("v0.3.0")), None, "v0.1.0", None),
            [
                "version v0.4.0 may follow only v0.3.0, and v0.1.0 runs here; upgrade to one of these first, or use force"
            ]
        );
    }

    #[test]
    fn a_tag_that_contradicts_the_label_holds_the_image() {
        for (tag, is_taken) in [
            (None, true),
            (Some("latest"), true),
            (Some("v0.2.0-kernel"), true),
            (Some("v0.2.0"), true),
            (Some("0.2.0-rev1-b5.1"), true),
            (Some("v0.3.0"), false),
            (Some("0.3.0-rev1"), false),
        ] {
            let told = told(("v0.2.0", None), tag, "v0.1.0", None);
            assert_eq!(told.is_empty(), is_taken, "{tag:?}: {told:?}");
        }
        assert_eq!(
            told(("v0.2.0", None), Some("v0.3.0"), "v0.1.0", None),
            [
                "the tag v0.3.0 says version 0.3.0, and the image's label says v0.2.0; one of both is wrong: name the image by a tag of its \
                 version or by its digest, or use force"
            ]
        );
    }

    #[test]
    fn all_objections_are_found() {
        let all = told(
            ("v0.2.0", Some("v0.1.9")),
            Some("v0.3.0"),
            "v0.1.0",
            Some("v0.2.1"),
        );
        assert_eq!(all.len(), 3, "{all:?}");
    }
}
