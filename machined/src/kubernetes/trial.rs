//! Other extensions on trial: they stay once the node has been ready with them for a while, and otherwise those of before come back.
//!
//! ```text
//!                       ready for STEADY
//!   ┌─────────┐ wanted ┌──────────┐────────────────► proven: they are gone back to from now on
//!   │ proven  ├───────►│ on trial │
//!   └─────────┘        └────┬─────┘
//!        ▲                  │ not ready within the limit
//!        └──────────────────┘ the digests that are new are noted as failed, and are not tried again
//! ```
//!
//! - A node that has proven nothing yet has nothing to go back to: its first extensions are tried without a limit.
//! - While nobody can tell whether the node is ready, because the cluster's API does not answer and kubelet itself is well, no time counts.
//! - A restart of machined begins a trial anew.
//!
//! Pure: facts and a time in, the choice out. What is done about it is in `sequences/kubernetes.rs`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Followed;
use crate::values::{Digest, ImageReference};

/// How long a node has to be ready before its extensions are proven: longer than a control plane takes to notice that a kubelet is silent
/// (50 s by default).
pub const STEADY: Duration = Duration::from_secs(60);
/// Limit on the failed images that are remembered; the oldest are forgotten.
const MOST_FAILED: usize = 64;

/// The images of a node's extensions, by the names of the extensions.
pub type Images = BTreeMap<String, Chosen>;

/// The image of an extension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chosen {
    /// Its name in the config.
    pub image: ImageReference,
    /// The digest that this meant.
    pub digest: Digest,
}

/// The record of extensions that is kept over restarts and reboots.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The extensions that the node was ready with last.
    #[serde(default)]
    pub proven: Option<Images>,
    /// The files of extensions that follow their publishers, by the names of the extensions.
    #[serde(default)]
    pub followed: BTreeMap<String, Followed>,
    /// Images that failed, and why; oldest first.
    #[serde(default)]
    pub failed: Vec<(Digest, String)>,
}

/// Whether the node is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Readiness {
    /// The cluster says so, and its services run.
    Ready,
    /// It is not, for this reason.
    NotReady(String),
    /// Nobody can tell: its services run, and the cluster's API does not answer.
    Unknown(String),
}

/// A trial under way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trial {
    /// The images on trial.
    images: Images,
    /// The time that counts against the limit.
    spent: Duration,
    /// For how long the node has been ready without a break.
    ready_for: Duration,
}

/// The extensions that run, and the news of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The images to run.
    pub images: Images,
    /// Why they are not those of the config.
    pub instead: Option<String>,
}

/// Chooses the extensions that run. `elapsed` is the time since the last choice; a trial begins with its first one, and counts from there.
pub fn choose(
    record: &mut Record,
    trial: &mut Option<Trial>,
    wanted: &Images,
    readiness: &Readiness,
    elapsed: Duration,
    limit: Duration,
) -> Choice {
    if record.proven.as_ref() == Some(wanted) {
        *trial = None;
        return Choice::of(wanted);
    }
    if let Some(back) = record.back_from(wanted) {
        *trial = None;
        return back;
    }
    let known = trial.take();
    let known = known.filter(|under_way| under_way.images == *wanted);
    // Up to the first choice other extensions ran: that time neither proves these nor speaks against them.
    let elapsed = match known {
        Some(_) => elapsed,
        None => Duration::ZERO,
    };
    let mut under_way = known.unwrap_or_else(|| Trial {
        images: wanted.clone(),
        ..Trial::default()
    });
    match readiness {
        Readiness::Ready => under_way.ready_for += elapsed,
        Readiness::NotReady(_) => {
            under_way.ready_for = Duration::ZERO;
            under_way.spent += elapsed;
        }
        Readiness::Unknown(_) => {}
    }
    if under_way.ready_for >= STEADY {
        record.proven = Some(wanted.clone());
        return Choice::of(wanted);
    }
    if under_way.spent >= limit
        && let Readiness::NotReady(why) = readiness
        && record.proven.is_some()
    {
        record.fail(wanted, why);
        if let Some(back) = record.back_from(wanted) {
            return back;
        }
    }
    *trial = Some(under_way);
    Choice::of(wanted)
}

impl Choice {
    fn of(images: &Images) -> Self {
        Choice {
            images: images.clone(),
            instead: None,
        }
    }
}

impl Record {
    /// Returns the proven images, if one of the wanted has failed.
    fn back_from(&self, wanted: &Images) -> Option<Choice> {
        let proven = self.proven.clone()?;
        let failed = |chosen: &Chosen| self.failed.iter().find(|(it, _)| *it == chosen.digest);
        let (name, why) = wanted
            .iter()
            .find_map(|(name, chosen)| Some((name, &failed(chosen)?.1)))?;
        Some(Choice {
            images: proven,
            instead: Some(format!(
                "the node was not ready with the extension {name} that the config names, and is back with the one before: {why}"
            )),
        })
    }

    /// Notes the images that are new among these.
    fn fail(&mut self, wanted: &Images, why: &str) {
        let proven = self.proven.iter().flatten();
        let proven: Vec<Digest> = proven.map(|(_, chosen)| chosen.digest).collect();
        let new = wanted.values().filter(|it| !proven.contains(&it.digest));
        self.failed
            .extend(new.map(|it| (it.digest, why.to_owned())));
        let surplus = self.failed.len().saturating_sub(MOST_FAILED);
        self.failed.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LIMIT: Duration = Duration::from_secs(120);
    const TEN: Duration = Duration::from_secs(10);

    fn images(of: &[(&str, &str)]) -> Images {
        let images = of.iter().map(|(name, content)| {
            let chosen = Chosen {
                image: format!("r.io/{name}:{content}").parse().unwrap(),
                digest: Digest::of(content.as_bytes()),
            };
            ((*name).to_owned(), chosen)
        });
        images.collect()
    }

    fn not_ready() -> Readiness {
        Readiness::NotReady("kubelet has ended".to_owned())
    }

    /// Lets a number of looks pass; returns what runs after the last one.
    fn pass(
        record: &mut Record,
        trial: &mut Option<Trial>,
        wanted: &Images,
        readiness: &Readiness,
        looks: usize,
    ) -> Choice {
        let mut choice = Choice::of(wanted);
        for _ in 0..looks {
            choice = choose(record, trial, wanted, readiness, TEN, LIMIT);
        }
        choice
    }

    #[test]
    fn every_way_of_a_trial() {
        let (old, new) = (
            images(&[("k", "1"), ("c", "1c")]),
            images(&[("k", "2"), ("c", "1c")]),
        );
        let unknown = Readiness::Unknown("no answer".to_owned());
        // The first look begins the trial. readiness, looks → (runs the new ones, they are proven, they have failed)
        let table = [
            (Readiness::Ready, 6, (true, false, false)),
            (Readiness::Ready, 7, (true, true, false)),
            (not_ready(), 12, (true, false, false)),
            (not_ready(), 13, (false, false, true)),
            (unknown, 1000, (true, false, false)),
        ];
        for (readiness, looks, expected) in table {
            let (mut trial, mut record) = (None, Record::default());
            record.proven = Some(old.clone());
            let choice = pass(&mut record, &mut trial, &new, &readiness, looks);
            let is_proven = record.proven.as_ref() == Some(&new);
            let found = (choice.images == new, is_proven, !record.failed.is_empty());
            assert_eq!(found, expected, "{readiness:?} {looks}");
            assert_eq!(choice.instead.is_some(), !expected.0);
        }
    }

    #[test]
    fn what_failed_is_not_tried_again_and_what_was_proven_is_not_blamed() {
        let (old, new) = (
            images(&[("k", "1"), ("c", "1c")]),
            images(&[("k", "2"), ("c", "1c")]),
        );
        let (mut trial, mut record) = (None, Record::default());
        record.proven = Some(old.clone());
        pass(&mut record, &mut trial, &new, &not_ready(), 13);
        assert_eq!(
            record.failed,
            [(Digest::of(b"2"), "kubelet has ended".to_owned())]
        );
        let choice = pass(&mut record, &mut trial, &new, &Readiness::Ready, 100);
        assert_eq!((&choice.images, trial.is_none()), (&old, true));
        assert!(choice.instead.unwrap().contains("extension k"));
        // A third one is a trial of its own, and so is the return to the first.
        let third = images(&[("k", "3"), ("c", "1c")]);
        assert_eq!(
            pass(&mut record, &mut trial, &third, &Readiness::Ready, 7).images,
            third
        );
        assert_eq!(record.proven, Some(third));
    }

    #[test]
    fn the_first_extensions_have_no_limit() {
        let first = images(&[("k", "1")]);
        let (mut trial, mut record) = (None, Record::default());
        let choice = pass(&mut record, &mut trial, &first, &not_ready(), 1000);
        assert_eq!(choice, Choice::of(&first));
        assert_eq!(record, Record::default());
        pass(&mut record, &mut trial, &first, &Readiness::Ready, 6);
        assert_eq!(record.proven, Some(first));
    }

    #[test]
    fn ready_means_without_a_break() {
        let (old, new) = (images(&[("k", "1")]), images(&[("k", "2")]));
        let (mut trial, mut record) = (None, Record::default());
        record.proven = Some(old.clone());
        for _ in 0..5 {
            pass(&mut record, &mut trial, &new, &Readiness::Ready, 5);
            pass(&mut record, &mut trial, &new, &not_ready(), 1);
        }
        assert_eq!(record.proven, Some(old));
    }

    /// The time up to the first look is that of the extensions before, also if these were on trial themselves.
    #[test]
    fn a_trial_begins_with_its_first_look() {
        let [old, new, third] = ["1", "2", "3"].map(|content| images(&[("k", content)]));
        let long = STEADY.saturating_sub(Duration::from_secs(1));
        for readiness in [Readiness::Ready, not_ready()] {
            let (mut trial, mut record) = (None, Record::default());
            record.proven = Some(old.clone());
            for wanted in [&new, &third] {
                for elapsed in [long, TEN] {
                    choose(&mut record, &mut trial, wanted, &readiness, elapsed, STEADY);
                }
                assert_eq!(record.proven, Some(old.clone()), "{readiness:?}");
                assert!(record.failed.is_empty(), "{readiness:?}");
            }
        }
    }

    #[test]
    fn only_so_many_failures_are_remembered() {
        let mut record = Record {
            proven: Some(images(&[("k", "1")])),
            ..Record::default()
        };
        for number in 0..100 {
            record.fail(&images(&[("k", &format!("bad-{number}"))]), "x");
        }
        assert_eq!(record.failed.len(), MOST_FAILED);
        assert_eq!(record.failed.last().unwrap().0, Digest::of(b"bad-99"));
    }
}
