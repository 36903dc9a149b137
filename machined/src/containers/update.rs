//! The update of a container's image: a state machine without side effects. `image_updates.rs` asks the registry, and carries out the acts.
//!
//! ```text
//!             found another image                 approved
//!   Current ──────────────────────► Waiting ─────────────────┐
//!      ▲  ▲        a new version,   (approval)               ▼
//!      │  │        or not known        a rebuild ─────►  Waiting ── window opens ─► OnTrial
//!      │  │                                             (window)                    │     │
//!      │  └──────────────── up for long enough: it is kept ─────────────────────────┘     │
//!      │ another image is found, or                                                       │ not up in time
//!      └ an operator looks the name up ───────────────── Returned ◄───────────────────────┘
//!                                                 the previous image runs again
//! ```
//!
//! - An image whose label contradicts its tag, and another image behind a tag that names one build, is held: it waits, and nothing but
//!   another image behind the name ends that.
//! - An image that failed is not tried again, unless it is approved by its digest: not even if other images were behind the name meanwhile, as
//!   where mirrors of a registry disagree. An image that fails may take the machine down, so each further boot of its trial is counted.
//! - An operator's own look-up (a restart, another name in the config) counts as his decision: what he put in force is current.

use serde::{Deserialize, Serialize};

use super::image_digests::ImageDigests;
use super::wrong_tag;
use crate::values::{Digest, ImageReference, Level, ReleaseTag};

/// An image behind a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The digest of the index that the name pointed to, if it is known and there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Digest>,
    /// Its version, by its label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Its build time (RFC 3339), if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
}

impl Release {
    /// The digests by which its registry is asked for it.
    pub fn digests(&self) -> ImageDigests {
        ImageDigests {
            digest: self.digest,
            index: self.index,
        }
    }
}

/// Why an image waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// It is a rebuild, or approved: it waits for the window, and for other work on the machine to end.
    Window,
    /// It needs an approval; the text says why.
    Approval(String),
    /// It cannot be the image that its tag names; the text says why.
    Held(String),
}

/// The standing of a container's image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// No other image is known behind the name.
    #[default]
    Current,
    /// Another image is behind the name.
    Waiting {
        /// The image.
        found: Release,
        /// Why it waits.
        reason: Reason,
    },
    /// The other image is in force and has to prove itself.
    OnTrial {
        /// The image.
        found: Release,
        /// The digest that was in force before.
        before: Digest,
        /// The digest of its index, if it is known and there was one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        before_index: Option<Digest>,
        /// The kernel's boot in which the trial was seen last. A version before this one has noted none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        boot: Option<String>,
        /// How often the machine has restarted during the trial.
        #[serde(default, skip_serializing_if = "is_zero")]
        restarts: u8,
    },
    /// The other image was not up in time; the one before is in force again.
    Returned {
        /// The image that failed.
        failed: Release,
        /// Why, in words.
        why: String,
    },
}

fn is_zero(number: &u8) -> bool {
    *number == 0
}

/// An observation, or a decision of an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The registry was asked: this image is behind the name.
    Found {
        /// The image.
        found: Release,
        /// The verdict on it.
        verdict: Verdict,
    },
    /// The registry was asked: the image in force is behind the name.
    Confirmed,
    /// An operator approved this digest.
    Approved(Digest),
    /// The window is open and nothing else is under way.
    MaySwitch {
        /// The image in force.
        in_force: ImageDigests,
        /// The kernel's boot.
        boot: String,
    },
    /// The machine has come up in this boot of the kernel.
    Booted(String),
    /// The container was up for long enough.
    Proved,
    /// The container was not up in time.
    Failed(String),
    /// This digest is in force by another way than this machine.
    LookedUp(Digest),
}

/// An act that has to be carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Act {
    /// Put this image in force and restart the container.
    Switch(ImageDigests),
    /// Put the previous image in force again and restart the container.
    Return(ImageDigests),
}

/// The verdict on an image that was found behind a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// A rebuild of the same version.
    Rebuild,
    /// It needs an approval; the text says why.
    Approval(String),
    /// It is held; the text says why.
    Held(String),
}

/// Judges an image that was found, by its label, its tag, and the label of the image in force. With `is_asked_always`, rebuilds need an
/// approval too, and so does an image with a `failure`: it has failed here before.
pub fn judge(
    reference: &ImageReference,
    in_force: &Release,
    found: &Release,
    is_asked_always: bool,
    failure: Option<&str>,
) -> Verdict {
    let tag: Option<ReleaseTag> = reference.tag().and_then(|tag| tag.parse().ok());
    if let Some(contradiction) = wrong_tag::contradiction(reference, found.version.as_deref()) {
        return Verdict::Held(contradiction.to_string());
    }
    if let Some(tag) = tag.as_ref().filter(|tag| tag.level() == Level::Build) {
        return Verdict::Held(format!(
            "the tag {tag} names one build, and the image behind it is another one now"
        ));
    }
    if let Some(why) = failure {
        return Verdict::Approval(format!("it failed here: {why}"));
    }
    if is_asked_always {
        return Verdict::Approval("every image of this container needs an approval".to_owned());
    }
    match (&in_force.version, &found.version) {
        (Some(before), Some(now)) if is_same_release(before, now) => Verdict::Rebuild,
        (Some(before), Some(now)) => {
            Verdict::Approval(format!("{now} is another version than {before}"))
        }
        // The tag pins the version.
        _ if tag.is_some_and(|tag| tag.is_whole_version()) => Verdict::Rebuild,
        _ => Verdict::Approval(
            "neither tag nor labels say whether it is the same version".to_owned(),
        ),
    }
}

/// Whether two labels name the same version and revision. A label may carry the number of the build, and a `v`, which not every build writes.
fn is_same_release(before: &str, now: &str) -> bool {
    let tags = (before.parse::<ReleaseTag>(), now.parse::<ReleaseTag>());
    match tags {
        (Ok(before), Ok(now)) => before.is_same_revision(&now),
        _ => before == now,
    }
}

impl Standing {
    /// Returns the standing after an event, and the act that follows from it. An event that means nothing in this standing changes nothing.
    pub fn after(self, event: Event) -> (Standing, Option<Act>) {
        match (self, event) {
            (standing, Event::Found { found, verdict }) => (standing.found(found, verdict), None),
            (
                Standing::Waiting {
                    found,
                    reason: Reason::Approval(_) | Reason::Window,
                },
                Event::Approved(digest),
            ) if found.digest == digest => (
                Standing::Waiting {
                    found,
                    reason: Reason::Window,
                },
                None,
            ),
            (Standing::Returned { failed, .. }, Event::Approved(digest))
                if failed.digest == digest =>
            {
                let again = Standing::Waiting {
                    found: failed,
                    reason: Reason::Window,
                };
                (again, None)
            }
            (
                Standing::Waiting {
                    found,
                    reason: Reason::Window,
                },
                Event::MaySwitch { in_force, boot },
            ) => {
                let act = Act::Switch(found.digests());
                let trial = Standing::OnTrial {
                    found,
                    before: in_force.digest,
                    before_index: in_force.index,
                    boot: Some(boot),
                    restarts: 0,
                };
                (trial, Some(act))
            }
            (on_trial @ Standing::OnTrial { .. }, Event::Booted(now)) => {
                (on_trial.booted(now), None)
            }
            (Standing::OnTrial { .. }, Event::Proved) => (Standing::Current, None),
            (
                Standing::OnTrial {
                    found,
                    before,
                    before_index,
                    ..
                },
                Event::Failed(why),
            ) => {
                let before = ImageDigests {
                    digest: before,
                    index: before_index,
                };
                let returned = Standing::Returned { failed: found, why };
                (returned, Some(Act::Return(before)))
            }
            (Standing::OnTrial { found, .. }, Event::LookedUp(digest))
                if found.digest != digest =>
            {
                (Standing::Current, None)
            }
            (Standing::Waiting { .. } | Standing::Returned { .. }, Event::Confirmed) => {
                (Standing::Current, None)
            }
            (
                Standing::Waiting { found, .. } | Standing::Returned { failed: found, .. },
                Event::LookedUp(digest),
            ) if found.digest == digest => (Standing::Current, None),
            (standing, _) => (standing, None),
        }
    }

    /// Returns the standing once this image was found behind the name; the one in force is never found.
    fn found(self, found: Release, verdict: Verdict) -> Standing {
        let reason = match verdict {
            Verdict::Rebuild => Reason::Window,
            Verdict::Approval(why) => Reason::Approval(why),
            Verdict::Held(why) => Reason::Held(why),
        };
        match self {
            // A trial ends first.
            on_trial @ Standing::OnTrial { .. } => on_trial,
            Standing::Returned { failed, why } if failed.digest == found.digest => {
                Standing::Returned { failed, why }
            }
            // An approval counts for the image that was approved.
            Standing::Waiting {
                found: known,
                reason: Reason::Window,
            } if known.digest == found.digest && !matches!(reason, Reason::Held(_)) => {
                Standing::Waiting {
                    found: known,
                    reason: Reason::Window,
                }
            }
            _ => Standing::Waiting { found, reason },
        }
    }

    /// Returns the standing in this boot of the kernel. A boot that was not known before is the first one.
    fn booted(mut self, now: String) -> Standing {
        if let Standing::OnTrial { boot, restarts, .. } = &mut self
            && boot.as_ref() != Some(&now)
        {
            *restarts = restarts.saturating_add(u8::from(boot.is_some()));
            *boot = Some(now);
        }
        self
    }

    /// Returns the digests that must not be collected.
    pub fn needed(&self) -> Vec<Digest> {
        match self {
            Standing::Current | Standing::Returned { .. } => Vec::new(),
            Standing::Waiting { found, .. } => vec![found.digest],
            Standing::OnTrial { found, before, .. } => vec![found.digest, *before],
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn index(name: &str) -> Digest {
        Digest::of(format!("index of {name}").as_bytes())
    }

    fn digests(name: &str) -> ImageDigests {
        ImageDigests {
            digest: Digest::of(name.as_bytes()),
            index: Some(index(name)),
        }
    }

    fn release(name: &str, version: Option<&str>) -> Release {
        Release {
            digest: Digest::of(name.as_bytes()),
            index: Some(index(name)),
            version: version.map(str::to_owned),
            created: None,
        }
    }

    #[test]
    fn every_image_has_a_verdict() {
        let approval = |why: &str| Verdict::Approval(why.to_owned());
        let unknown = "neither tag nor labels say whether it is the same version";
        let each = "every image of this container needs an approval";
        let newer = "2.7.0 is another version than 2.6.2";
        let other = "the tag 2.6.2 says version 2.6.2, and the image's label says v2.7.0";
        let held = || Verdict::Held(other.to_owned());
        let (old, next) = (Some("2.6.2"), Some("2.7.0"));
        let moved = || {
            let why = "the tag 2.6.2-rev1-b5.1 names one build, and the image behind it is another one now";
            Verdict::Held(why.to_owned())
        };
        for (tag, before, now, asked, expected) in [
            ("2.6.2", old, old, false, Verdict::Rebuild),
            ("2.6.2", None, old, false, Verdict::Rebuild),
            ("2.6.2", None, None, false, Verdict::Rebuild),
            ("2.6.2", old, old, true, approval(each)),
            (
                "2.6",
                old,
                Some("2.6.3"),
                false,
                approval("2.6.3 is another version than 2.6.2"),
            ),
            // The tag may lead to any 2.6.
            ("2.6", old, None, false, approval(unknown)),
            ("2.6", None, Some("2.6.3"), false, approval(unknown)),
            ("2.6", None, None, false, approval(unknown)),
            ("2.6", old, old, false, Verdict::Rebuild),
            ("2.6.2-rev1", None, None, false, Verdict::Rebuild),
            ("2.6.2-rev1-b5.1", None, None, false, moved()),
            (
                "2.6.2-rev1-b5.1",
                Some("2.6.2-rev1-b5.1"),
                Some("2.6.2-rev1-b5.1"),
                true,
                moved(),
            ),
            ("2.6.2", old, next, false, held()),
            ("stable", old, next, false, approval(newer)),
            ("stable", old, old, false, Verdict::Rebuild),
            ("stable", None, None, false, approval(unknown)),
            ("stable", old, None, false, approval(unknown)),
        ] {
            let reference = format!("r.io/app:{tag}").parse().unwrap();
            let (from, to) = (release("a", before), release("b", now));
            let verdict = judge(&reference, &from, &to, asked, None);
            assert_eq!(verdict, expected, "{tag} {before:?} {now:?}");
            let failed_before = judge(&reference, &from, &to, asked, Some("it died"));
            let expected = match expected {
                Verdict::Held(_) => expected,
                _ => approval("it failed here: it died"),
            };
            assert_eq!(failed_before, expected, "{tag} {before:?} {now:?}");
        }
    }

    /// Labels carry the number of the build, or a `v`.
    #[test]
    fn a_build_of_the_same_revision_is_a_rebuild() {
        for (before, now, is_rebuild) in [
            ("2.6.2-rev1-b5.1", "2.6.2-rev1-b5.2", true),
            ("2.6.2-rev1", "2.6.2-rev1-b5.2", true),
            ("2.6.2", "v2.6.2", true),
            ("2.6.2-rev1-b5.1", "2.6.2-rev2-b5.1", false),
            ("2.6.2", "2.6.2-rev1", false),
            ("2.6.2-rc.1", "2.6.2-rc.2", false),
            ("nightly", "nightly", true),
        ] {
            let reference = "r.io/app:stable".parse().unwrap();
            let (old, new) = (release("a", Some(before)), release("b", Some(now)));
            let expected = match is_rebuild {
                true => Verdict::Rebuild,
                false => Verdict::Approval(format!("{now} is another version than {before}")),
            };
            assert_eq!(judge(&reference, &old, &new, false, None), expected);
        }
    }

    #[test]
    fn every_transition() {
        let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
        let image = || release("new", None);
        let waiting = |reason| Standing::Waiting {
            found: image(),
            reason,
        };
        let (window, approval, held) = (
            waiting(Reason::Window),
            waiting(Reason::Approval("a".into())),
            waiting(Reason::Held("h".into())),
        );
        let trial = Standing::OnTrial {
            found: image(),
            before: old,
            before_index: Some(index("old")),
            boot: Some("one".into()),
            restarts: 0,
        };
        let returned = Standing::Returned {
            failed: image(),
            why: "w".into(),
        };
        let current = Standing::Current;
        let found = |verdict| Event::Found {
            found: image(),
            verdict,
        };
        let events = [
            found(Verdict::Rebuild),
            found(Verdict::Approval("a".into())),
            found(Verdict::Held("h".into())),
            Event::Approved(new),
            Event::MaySwitch {
                in_force: digests("old"),
                boot: "one".into(),
            },
            Event::Proved,
            Event::Failed("w".into()),
            Event::LookedUp(new),
            Event::LookedUp(old),
            Event::Confirmed,
        ];
        #[rustfmt::skip]
        let table = [
            //          rebuild     approval    held        approved   may switch  proved      failed      looked up  another   confirmed
            (&current,  [&window,   &approval,  &held,      &current,  &current,   &current,   &current,   &current,  &current,  &current]),
            (&window,   [&window,   &window,    &held,      &window,   &trial,     &window,    &window,    &current,  &window,   &current]),
            (&approval, [&window,   &approval,  &held,      &window,   &approval,  &approval,  &approval,  &current,  &approval, &current]),
            (&held,     [&window,   &approval,  &held,      &held,     &held,      &held,      &held,      &current,  &held,     &current]),
            (&trial,    [&trial,    &trial,     &trial,     &trial,    &trial,     &current,   &returned,  &trial,    &current,  &trial]),
            (&returned, [&returned, &returned,  &returned,  &window,   &returned,  &returned,  &returned,  &current,  &returned, &current]),
        ];
        for (before, expected) in table {
            for (event, expected) in events.iter().zip(expected) {
                let (after, act) = before.clone().after(event.clone());
                assert_eq!(after, *expected, "{before:?} {event:?}");
                let expected = match (before == &after, &after) {
                    (false, Standing::OnTrial { .. }) => Some(Act::Switch(digests("new"))),
                    (false, Standing::Returned { .. }) => Some(Act::Return(digests("old"))),
                    _ => None,
                };
                assert_eq!(act, expected, "{before:?} {event:?}");
            }
        }
    }

    /// As an image that makes the kernel panic: nobody is there to see its trial end.
    #[test]
    fn each_further_boot_of_a_trial_is_counted() {
        let trial = |boot: Option<&str>, restarts| Standing::OnTrial {
            found: release("new", None),
            before: Digest::of(b"old"),
            before_index: None,
            boot: boot.map(str::to_owned),
            restarts,
        };
        for (boot, now, restarts) in [
            (Some("one"), "one", 1),
            (Some("one"), "two", 2),
            // A record of an older version.
            (None, "two", 1),
        ] {
            let booted = Event::Booted(now.to_owned());
            let expected = (trial(Some(now), restarts), None);
            assert_eq!(trial(boot, 1).after(booted), expected, "{boot:?} {now}");
        }
        let current = Standing::Current.after(Event::Booted("two".to_owned()));
        assert_eq!(current, (Standing::Current, None));
    }

    #[test]
    fn another_image_replaces_the_one_that_waits_or_failed() {
        let rebuilt = Event::Found {
            found: release("newer", None),
            verdict: Verdict::Rebuild,
        };
        for before in [
            Standing::Waiting {
                found: release("new", None),
                reason: Reason::Held(String::new()),
            },
            Standing::Returned {
                failed: release("new", None),
                why: String::new(),
            },
        ] {
            let (after, _) = before.after(rebuilt.clone());
            assert_eq!(after.needed(), [Digest::of(b"newer")]);
        }
    }

    /// The version before this one knew no indexes.
    #[test]
    fn records_of_older_versions_are_read_and_theirs_read_past_an_index() {
        #[derive(Deserialize)]
        enum Older {
            OnTrial { found: OlderRelease, before: Digest },
        }
        #[derive(Deserialize)]
        struct OlderRelease {
            digest: Digest,
        }
        let (old, new) = (Digest::of(b"old"), Digest::of(b"new"));
        let written =
            format!("{{\"OnTrial\":{{\"found\":{{\"digest\":\"{new}\"}},\"before\":\"{old}\"}}}}");
        let read: Standing = serde_json::from_str(&written).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), written);
        let trial = Standing::OnTrial {
            found: release("new", None),
            before: old,
            before_index: Some(index("old")),
            boot: Some("one".into()),
            restarts: 2,
        };
        let written = serde_json::to_string(&trial).unwrap();
        let Older::OnTrial { found, before } = serde_json::from_str(&written).unwrap();
        assert_eq!((found.digest, before), (new, old));
        assert_eq!(serde_json::from_str::<Standing>(&written).unwrap(), trial);
    }
}
