//! The changes that a publisher makes to a list. Each is checked whole before it is made; [`published`] then makes the next list of it.

use std::collections::BTreeSet;

use instar_values::{Digest, Version};

use crate::list::place;
use crate::{Date, Follower, Label, List, NotACandidate, Offer, Release, choose};

/// Why a list is not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The channel has this version from another image.
    #[error(
        "{version} is in the channel already, with the image {digest}; a new build needs a new version, or withdraw and prune that one first"
    )]
    OtherImage {
        /// The version.
        version: Version,
        /// The digest in the channel.
        digest: Digest,
    },
    /// The channel has it.
    #[error("{0} is in the channel already")]
    Known(Version),
    /// The channel does not have it.
    #[error("{0} is not in the channel {1}")]
    Unknown(String, String),
    /// It was withdrawn.
    #[error(
        "{version} was withdrawn ({why}); a withdrawn release does not come back, publish a new version"
    )]
    Withdrawn {
        /// The version.
        version: Version,
        /// The reason.
        why: String,
    },
    /// It may not follow anything, or its floor is above itself.
    #[error("the floor {floor} of {version} is above the version itself")]
    Floor {
        /// The version.
        version: Version,
        /// Its floor.
        floor: Version,
    },
    /// Its image is no candidate for the channel.
    #[error(transparent)]
    NotACandidate(#[from] NotACandidate),
}

/// Adds a release.
///
/// # Errors
/// The channel has its version already.
pub fn add(list: &mut List, release: Release) -> Result<(), Refusal> {
    if let Some(known) = list.find(&release.version, &release.architecture) {
        let version = release.version.clone();
        return Err(match (&known.withdrawn, known.digest == release.digest) {
            (Some(why), _) => Refusal::Withdrawn {
                version,
                why: why.clone(),
            },
            (None, true) => Refusal::Known(version),
            (None, false) => Refusal::OtherImage {
                version,
                digest: known.digest,
            },
        });
    }
    if let Some(floor) = release
        .floor
        .as_ref()
        .filter(|floor| **floor > release.version)
    {
        return Err(Refusal::Floor {
            version: release.version.clone(),
            floor: floor.clone(),
        });
    }
    list.releases.push(release);
    list.releases
        .sort_by(|one, other| place(other).cmp(&place(one)));
    Ok(())
}

/// Takes a release of another channel over with the same image: nothing is built anew. What the other channel took says nothing about this
/// one: the labels of the image decide again, and the offer says for which machines it is.
///
/// # Errors
/// The other channel does not have it or has withdrawn it, its image is no candidate for this one, or this one has its version already.
pub fn promote(list: &mut List, from: &List, offer: Offer<'_>, date: Date) -> Result<(), Refusal> {
    let found = from.releases.iter().find(|it| it.digest == offer.digest);
    let found = found.ok_or_else(|| unknown(offer.digest, from))?;
    if let Some(why) = &found.withdrawn {
        return Err(Refusal::Withdrawn {
            version: found.version.clone(),
            why: why.clone(),
        });
    }
    let release = offer.release(&list.channel, date)?;
    add(list, release)
}

fn unknown(release: impl ToString, list: &List) -> Refusal {
    Refusal::Unknown(release.to_string(), list.channel.to_string())
}

/// Withdraws a release, for all architectures: no machine goes to it any more. Those that run it stay on it until a newer one comes.
///
/// # Errors
/// The channel does not have it.
pub fn withdraw(list: &mut List, version: &Version, why: &str) -> Result<(), Refusal> {
    change_all(list, version, |release| {
        release.withdrawn = Some(why.to_owned());
    })
}

/// Opens a release to all machines that was for those with a label.
///
/// # Errors
/// The channel does not have it.
pub fn open_to_all(list: &mut List, version: &Version) -> Result<(), Refusal> {
    change_all(list, version, |release| release.only_for.clear())
}

fn change_all(
    list: &mut List,
    version: &Version,
    change: impl Fn(&mut Release),
) -> Result<(), Refusal> {
    let all = list.releases.iter_mut();
    let mut found: Vec<_> = all.filter(|it| it.version == *version).collect();
    if found.is_empty() {
        return Err(unknown(version, list));
    }
    found.iter_mut().for_each(|release| change(release));
    Ok(())
}

/// The releases that stay when old ones go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keep {
    /// This many of the newest releases that are not withdrawn, for each architecture, for machines without labels and with each label of
    /// the list; at least one stays.
    pub newest: usize,
    /// Images that a medium or a machine needs.
    pub digests: BTreeSet<Digest>,
    /// Versions that a medium has or a machine runs. Each release stays that is on their way to the newest one.
    pub versions: BTreeSet<Version>,
}

/// Takes old releases out of a list, and returns them.
pub fn prune(list: &mut List, keep: &Keep) -> Vec<Release> {
    let needed = needed(list, keep);
    let (stay, gone) = std::mem::take(&mut list.releases)
        .into_iter()
        .partition(|release| needed.contains(&release.digest));
    list.releases = stay;
    gone
}

/// Returns the digests of the releases that stay.
fn needed(list: &List, keep: &Keep) -> BTreeSet<Digest> {
    let mut needed = keep.digests.clone();
    let architectures: BTreeSet<&str> = list
        .releases
        .iter()
        .map(|release| release.architecture.as_str())
        .collect();
    for architecture in architectures {
        let own = list
            .releases
            .iter()
            .filter(|it| it.architecture == architecture);
        let named = own.clone().filter(|it| keep.versions.contains(&it.version));
        needed.extend(named.map(|it| it.digest));
        for labels in kinds(list) {
            let offered = own.clone().filter(|it| it.withdrawn.is_none());
            let offered = offered.filter(|it| it.is_for(&labels));
            needed.extend(offered.take(keep.newest.max(1)).map(|it| it.digest));
            for version in &keep.versions {
                needed.extend(way(list, version, architecture, &labels));
            }
        }
    }
    needed
}

/// The kinds of machines that a list tells apart: those without a label, those with one of its labels, and those with all of them.
///
/// A release for some machines stands in nobody else's way: what is kept must be enough for each kind alone.
fn kinds(list: &List) -> BTreeSet<Vec<Label>> {
    let all: BTreeSet<Label> = list
        .releases
        .iter()
        .flat_map(|it| it.only_for.clone())
        .collect();
    let each = all.iter().map(|label| vec![label.clone()]);
    let mut kinds: BTreeSet<_> = each.collect();
    kinds.insert(Vec::new());
    kinds.insert(Vec::from_iter(all));
    kinds
}

/// The releases that a machine with this version and these labels goes to, one after the other.
fn way(list: &List, version: &Version, architecture: &str, labels: &[Label]) -> Vec<Digest> {
    let mut way = Vec::new();
    let mut version = version;
    // Each step leads to a newer version, so it ends.
    while let Some(next) = choose(
        list,
        &Follower {
            version: Some(version),
            digest: None,
            created: None,
            architecture,
            labels,
            floor: None,
            held: &|_| None,
        },
    )
    .release
    {
        way.push(next.digest);
        version = &next.version;
    }
    way
}

/// Makes the next list of a changed one.
pub fn published(list: &mut List, date: Date, expires: Option<Date>) {
    list.serial += 1;
    // A publisher whose clock went back does not go back with it.
    list.date = list.date.max(date);
    list.expires = expires;
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeMap;

    pub(crate) fn date(seconds: u64) -> Date {
        Date::from_seconds(seconds)
    }

    pub(crate) fn release(version: &str) -> Release {
        Release {
            version: version.parse().unwrap(),
            architecture: "amd64".to_owned(),
            image: format!("registry.example/installer:{version}")
                .parse()
                .unwrap(),
            digest: Digest::of(version.as_bytes()),
            date: date(100),
            floor: None,
            upgrades_from: None,
            only_for: Vec::new(),
            notes: String::new(),
            withdrawn: None,
        }
    }

    pub(crate) fn list_of(versions: &[&str]) -> List {
        let mut list = List::first("stable".parse().unwrap(), date(1));
        for version in versions {
            add(&mut list, release(version)).unwrap();
        }
        list
    }

    fn versions(releases: &[Release]) -> Vec<String> {
        releases.iter().map(|it| it.version.to_string()).collect()
    }

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn the_newest_version_comes_first_whenever_it_was_added() {
        let list = list_of(&["v0.2.0", "v0.10.0", "v0.3.0-rc.1", "v0.3.0"]);
        let expected = ["v0.10.0", "v0.3.0", "v0.3.0-rc.1", "v0.2.0"];
        assert_eq!(versions(&list.releases), expected);
        list.to_bytes().unwrap();
    }

    #[test]
    fn a_version_is_one_image_for_ever() {
        let mut list = list_of(&["v0.2.0"]);
        let known = add(&mut list, release("v0.2.0")).unwrap_err();
        assert_eq!(known, Refusal::Known(version("v0.2.0")));
        let rebuilt = Release {
            digest: Digest::of(b"rebuilt"),
            ..release("v0.2.0")
        };
        let other = add(&mut list, rebuilt.clone()).unwrap_err();
        assert!(matches!(other, Refusal::OtherImage { .. }), "{other}");
        let arm = Release {
            architecture: "arm64".into(),
            ..rebuilt
        };
        add(&mut list, arm).unwrap();
        withdraw(&mut list, &version("v0.2.0"), "loses data").unwrap();
        assert!(list.releases.iter().all(|it| it.withdrawn.is_some()));
        let withdrawn = add(&mut list, release("v0.2.0")).unwrap_err();
        assert!(
            matches!(withdrawn, Refusal::Withdrawn { .. }),
            "{withdrawn}"
        );
        let high = Release {
            floor: Some(version("v0.9.0")),
            ..release("v0.8.0")
        };
        let refused = add(&mut list, high).unwrap_err();
        assert!(matches!(refused, Refusal::Floor { .. }), "{refused}");
    }

    /// The labels of an official image.
    fn labels(version: &str) -> BTreeMap<String, String> {
        let all = [
            ("dev.instar.version", version),
            ("dev.instar.architecture", "amd64"),
            ("dev.instar.protocol", "1"),
            ("dev.instar.official", "true"),
        ];
        BTreeMap::from(all.map(|(label, value)| (label.to_owned(), value.to_owned())))
    }

    fn offer<'a>(release: &Release, labels: &'a BTreeMap<String, String>) -> Offer<'a> {
        Offer {
            image: release.image.clone(),
            digest: release.digest,
            labels,
            only_for: Vec::new(),
            notes: release.notes.clone(),
            unofficial: false,
        }
    }

    /// Promotes the first release of a list.
    fn promote_first(
        list: &mut List,
        from: &List,
        labels: &BTreeMap<String, String>,
    ) -> Result<(), Refusal> {
        let offer = offer(&from.releases[0], labels);
        promote(list, from, offer, date(500))
    }

    #[test]
    fn what_one_channel_took_is_no_candidate_for_another_by_that() {
        let (beta, mut stable) = (list_of(&["v0.3.0"]), list_of(&["v0.2.0"]));
        for (label, value) in [
            ("dev.instar.official", "no"),
            ("dev.instar.channels", "alpha,beta"),
            ("dev.instar.version", "v0.3.0-rc.1"),
        ] {
            let mut labels = labels("v0.3.0");
            labels.insert(label.to_owned(), value.to_owned());
            let refused = promote_first(&mut stable, &beta, &labels).unwrap_err();
            assert!(matches!(refused, Refusal::NotACandidate(_)), "{refused}");
        }
        assert_eq!(versions(&stable.releases), ["v0.2.0"]);
        let unofficial = BTreeMap::from_iter(
            labels("v0.3.0")
                .into_iter()
                .filter(|(label, _)| label != "dev.instar.official"),
        );
        let by_a_person = Offer {
            unofficial: true,
            ..offer(&beta.releases[0], &unofficial)
        };
        promote(&mut stable, &beta, by_a_person, date(500)).unwrap();
    }

    #[test]
    fn a_candidate_is_promoted_by_its_digest_as_it_is() {
        let (mut beta, mut stable) = (list_of(&["v0.3.0"]), list_of(&["v0.2.0"]));
        beta.releases[0].only_for = vec!["canary=yes".parse().unwrap()];
        beta.releases[0].notes = "faster".into();
        let (digest, labels) = (beta.releases[0].digest, labels("v0.3.0"));
        promote_first(&mut stable, &beta, &labels).unwrap();
        let promoted = stable.find(&version("v0.3.0"), "amd64").unwrap();
        assert_eq!(promoted.digest, digest);
        assert_eq!(
            (promoted.date, promoted.notes.as_str()),
            (date(500), "faster")
        );
        assert!(promoted.only_for.is_empty());
        let again = promote_first(&mut stable, &beta, &labels).unwrap_err();
        assert_eq!(again, Refusal::Known(version("v0.3.0")));
        let strange = Offer {
            digest: Digest::of(b"none"),
            ..offer(&beta.releases[0], &labels)
        };
        let none = promote(&mut stable, &beta, strange, date(600)).unwrap_err();
        assert!(matches!(none, Refusal::Unknown(..)), "{none}");
        withdraw(&mut beta, &version("v0.3.0"), "bad").unwrap();
        let mut third = list_of(&[]);
        let bad = promote_first(&mut third, &beta, &labels).unwrap_err();
        assert!(matches!(bad, Refusal::Withdrawn { .. }), "{bad}");
        let unknown = withdraw(&mut third, &version("v9.0.0"), "bad").unwrap_err();
        assert!(matches!(unknown, Refusal::Unknown(..)), "{unknown}");
    }

    #[test]
    fn a_release_for_some_machines_is_opened_to_all() {
        let mut list = list_of(&["v0.3.0"]);
        list.releases[0].only_for = vec!["canary=yes".parse().unwrap()];
        open_to_all(&mut list, &version("v0.3.0")).unwrap();
        assert!(list.releases[0].only_for.is_empty());
    }

    #[test]
    fn nothing_goes_that_a_medium_or_a_machine_needs() {
        let all = ["v0.6.0", "v0.5.0", "v0.4.0", "v0.3.0", "v0.2.0", "v0.1.0"];
        let mut list = list_of(&all);
        list.releases[0].upgrades_from = Some(">=v0.4.0".parse().unwrap());
        list.releases[1].withdrawn = Some("bad".into());
        for (named, keep, stay) in [
            ("one stays", Keep::default(), vec!["v0.6.0"]),
            (
                "withdrawn ones do not count",
                Keep {
                    newest: 2,
                    ..Keep::default()
                },
                vec!["v0.6.0", "v0.4.0"],
            ),
            (
                "an image that a medium has",
                Keep {
                    digests: [release("v0.2.0").digest].into(),
                    ..Keep::default()
                },
                vec!["v0.6.0", "v0.2.0"],
            ),
            (
                "a version that a machine runs, and its way to the newest one",
                Keep {
                    versions: [version("v0.1.0")].into(),
                    ..Keep::default()
                },
                vec!["v0.6.0", "v0.4.0", "v0.1.0"],
            ),
            (
                "a version that is not in the list needs its way too",
                Keep {
                    versions: [version("v0.0.9")].into(),
                    ..Keep::default()
                },
                vec!["v0.6.0", "v0.4.0"],
            ),
            (
                "a withdrawn version that a machine runs",
                Keep {
                    versions: [version("v0.5.0")].into(),
                    ..Keep::default()
                },
                vec!["v0.6.0", "v0.5.0"],
            ),
        ] {
            let mut pruned = list.clone();
            let gone = prune(&mut pruned, &keep);
            assert_eq!(versions(&pruned.releases), stay, "{named}");
            assert_eq!(gone.len() + stay.len(), all.len(), "{named}");
        }
    }

    fn only_for(list: &mut List, named: &str, labels: &[&str]) {
        let mut all = list.releases.iter_mut();
        let found = all.find(|it| it.version == version(named)).unwrap();
        found.only_for = labels.iter().map(|it| it.parse().unwrap()).collect();
    }

    /// Machines without labels, with one of them, and with all of them go different ways.
    #[test]
    fn nothing_goes_that_a_machine_with_other_labels_needs() {
        let all = ["v0.6.0", "v0.5.0", "v0.4.0", "v0.3.0", "v0.2.0"];
        let (canary, lab) = (["canary=yes"], ["site=lab"]);
        let plain = list_of(&all);
        let mut newest = plain.clone();
        only_for(&mut newest, "v0.6.0", &canary);
        // v0.4.0 is the stepping stone to v0.6.0 for most machines, and v0.5.0 is it for canaries.
        let mut stone = plain.clone();
        stone.releases[0].upgrades_from = Some(">=v0.4.0".parse().unwrap());
        only_for(&mut stone, "v0.5.0", &canary);
        let mut two = plain;
        only_for(&mut two, "v0.6.0", &canary);
        only_for(&mut two, "v0.5.0", &lab);
        let keep = |newest, versions: &[&str]| Keep {
            newest,
            versions: versions.iter().map(|it| version(it)).collect(),
            ..Keep::default()
        };
        for (named, list, keep, stay) in [
            (
                "the newest one is for some, and so is a version's way",
                &newest,
                keep(1, &["v0.3.0"]),
                vec!["v0.6.0", "v0.5.0", "v0.3.0"],
            ),
            (
                "the newest ones for all machines count by themselves",
                &newest,
                keep(2, &[]),
                vec!["v0.6.0", "v0.5.0", "v0.4.0"],
            ),
            (
                "a stepping stone for all under a newer one for some",
                &stone,
                keep(1, &["v0.1.0"]),
                vec!["v0.6.0", "v0.5.0", "v0.4.0"],
            ),
            (
                "machines with one label each",
                &two,
                keep(1, &["v0.3.0"]),
                vec!["v0.6.0", "v0.5.0", "v0.4.0", "v0.3.0"],
            ),
        ] {
            let mut pruned = list.clone();
            prune(&mut pruned, &keep);
            assert_eq!(versions(&pruned.releases), stay, "{named}");
        }
    }

    #[test]
    fn the_next_list_has_the_next_serial_and_never_an_earlier_date() {
        let mut list = list_of(&["v0.2.0"]);
        published(&mut list, date(100), None);
        published(&mut list, date(50), Some(date(200)));
        assert_eq!((list.serial, list.date), (3, date(100)));
        assert_eq!(list.expires, Some(date(200)));
    }
}
