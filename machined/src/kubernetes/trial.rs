//! Other extensions on trial: they stay once the node has been ready with them for a while, and otherwise those of before come back.
//!
//! ```text
//!                       ready for STEADY
//!   ┌─────────┐ wanted ┌──────────┐────────────────► proven: they are gone back to from now on
//!   │ proven  ├───────►│ on trial │
//!   └─────────┘        └────┬─────┘
//!        ▲                  │ not ready within the limit
//!        └──────────────────┘ the digests that are new are noted: they failed together, and are not tried together again;
//!                             without a new one, as an extension was taken out, the set is
//! ```
//!
//! - A node that has proven nothing yet has nothing to go back to: its first extensions are tried without a limit.
//! - While nobody can tell whether the node is ready, because the cluster's API does not answer and kubelet itself is well, time counts only if the
//!   node was ready when the trial began, also before a reboot: extensions may have cut it off, and nobody but the node can undo that then.
//! - A service that has started again since the last look counts as one that does not run: it may be between two crashes.
//! - Other extensions run until the container has the plan: up to then the node proves nothing.
//! - The failure is forgotten once the config names other images, or gives them another limit: then they are tried again.
//! - A restart of machined begins a trial anew.
//!
//! Pure: facts and a time in, the choice out. What is done about it is in `sequences/kubernetes.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Followed, NodeService};
use crate::values::{Digest, ImageReference};

/// How long a node has to be ready before its extensions are proven: longer than a control plane takes to notice that a kubelet is silent
/// (50 s by default).
pub const STEADY: Duration = Duration::from_secs(60);

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
    /// The images that failed together, and why: those that were new then. In a record of an older version it is all images that ever failed.
    #[serde(default)]
    pub failed: Vec<(Digest, String)>,
    /// The set of images that failed without a new one in it, and why: it lacks one that was proven, and no image is to blame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_set: Option<(Images, String)>,
    /// The limit within which they failed, in seconds; none in a record of an older version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_within: Option<u64>,
    /// Whether the node was ready when a trial began that has not come to its end: the silence of the cluster's API counts in it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_ready: bool,
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
    /// Whether the container has the plan with them.
    is_given: bool,
    /// The services that were well at the last look: how often each had started again, and when its state changed.
    starts: BTreeMap<String, (u64, u64)>,
    /// The time that counts against the limit.
    spent: Duration,
    /// For how long the node has been ready without a break.
    ready_for: Duration,
}

/// The node, as it is seen at one look.
#[derive(Debug, Clone, Copy)]
pub struct Look<'a> {
    /// Whether it is ready.
    pub readiness: &'a Readiness,
    /// The services of its extensions.
    pub services: &'a [NodeService],
    /// The time since the last look, without what the machine itself took to carry the plan out; zero if nobody has looked.
    pub elapsed: Duration,
}

/// The extensions that run, and the news of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The images to run.
    pub images: Images,
    /// Why they are not those of the config.
    pub instead: Option<String>,
}

/// Chooses the extensions that run. A trial begins with its first look, and counts from there.
pub fn choose(
    record: &mut Record,
    trial: &mut Option<Trial>,
    wanted: &Images,
    look: Look<'_>,
    limit: Duration,
) -> Choice {
    if record.proven.as_ref() == Some(wanted) {
        record.forget_failed();
        record.was_ready = false;
        *trial = None;
        return Choice::of(wanted);
    }
    if let Some(back) = record.back_from(wanted, limit) {
        *trial = None;
        return back;
    }
    record.forget_failed();
    let known = trial.take();
    let known = known.filter(|under_way| under_way.images == *wanted);
    // One that was cut off before the first look, as by the trial of other extensions, stays one that was ready.
    record.was_ready |= known.is_none() && *look.readiness == Readiness::Ready;
    // Up to the first choice other extensions ran: that time neither proves these nor speaks against them.
    let elapsed = match known {
        Some(_) => look.elapsed,
        None => Duration::ZERO,
    };
    let mut under_way = known.unwrap_or_else(|| Trial {
        images: wanted.clone(),
        ..Trial::default()
    });
    let trouble = under_way.pass(Look { elapsed, ..look }, record.was_ready);
    if under_way.ready_for >= STEADY {
        record.proven = Some(wanted.clone());
        record.was_ready = false;
        return Choice::of(wanted);
    }
    if under_way.spent >= limit
        && let Some(why) = trouble
        && record.proven.is_some()
    {
        record.fail(wanted, &why, limit);
        if let Some(back) = record.back_from(wanted, limit) {
            return back;
        }
    }
    *trial = Some(under_way);
    Choice::of(wanted)
}

/// Returns the extensions that run while nobody knows all that the config names: those that were proven. A trial begins anew after that.
pub fn without_wanted(record: &Record, trial: &mut Option<Trial>) -> Option<Images> {
    *trial = None;
    record.proven.clone()
}

impl Trial {
    /// The container has the plan with these extensions.
    pub fn plan_is_given(&mut self) {
        self.is_given = true;
    }

    /// Counts the time up to a look of a node that was ready before the trial, or was not; returns why it was not ready in that time, if it was
    /// not.
    fn pass(&mut self, look: Look<'_>, was_ready: bool) -> Option<String> {
        let again = match self.is_given && !look.elapsed.is_zero() {
            true => self.started_again(look.services),
            false => None,
        };
        let trouble = match look.readiness {
            Readiness::NotReady(why) => Some(why.clone()),
            Readiness::Ready => again,
            Readiness::Unknown(why) => again.or_else(|| {
                let is_cut_off = was_ready && self.is_given;
                is_cut_off.then(|| format!("it was ready before, and is cut off since: {why}"))
            }),
        };
        match (&trouble, look.readiness) {
            (Some(_), _) => {
                self.ready_for = Duration::ZERO;
                self.spent += look.elapsed;
            }
            (None, Readiness::Ready) if self.is_given => self.ready_for += look.elapsed,
            (None, _) => {}
        }
        trouble
    }

    /// Returns which service has started again since the last look at which it was well. A start is another number of starts or, where
    /// those are counted anew, another time of it.
    fn started_again(&mut self, services: &[NodeService]) -> Option<String> {
        let well = services.iter().filter(|it| it.is_well());
        let starts = well.map(|it| (it.name.clone(), (it.restarts, it.since)));
        let before = std::mem::replace(&mut self.starts, starts.collect());
        let is_new = |it: &&NodeService| {
            let known = before.get(&it.name);
            known.is_some_and(|known| *known != (it.restarts, it.since))
        };
        let again = services.iter().find(is_new)?;
        let last = again.last.as_deref().unwrap_or("nobody knows why");
        Some(format!("{} has started again: {last}", again.name))
    }
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
    /// Returns the proven images, if the wanted ones have failed within this limit.
    fn back_from(&self, wanted: &Images, limit: Duration) -> Option<Choice> {
        let proven = self.proven.clone()?;
        if let Some(back) = self.back_from_fewer(&proven, wanted, limit) {
            return Some(back);
        }
        let failed: BTreeSet<Digest> = self.failed.iter().map(|(digest, _)| *digest).collect();
        let blamed = |chosen: &Chosen| failed.contains(&chosen.digest);
        let named: Vec<&str> = wanted
            .iter()
            .filter(|(_, chosen)| blamed(chosen))
            .map(|(name, _)| name.as_str())
            .collect();
        let is_wanted = |digest: &Digest| wanted.values().any(|it| it.digest == *digest);
        let (_, why) = self.failed.iter().find(|(digest, _)| is_wanted(digest))?;
        let have_failed = match self.failed_within {
            Some(within) => within == limit.as_secs() && failed.iter().all(is_wanted),
            // Nobody knows which of them failed together. An image that never failed makes of the wanted ones others.
            None => {
                let new = self.new_among(wanted);
                !new.is_empty() && new.is_subset(&failed)
            }
        };
        let (noun, before) = match named.len() {
            1 => ("extension", "the one before"),
            _ => ("extensions", "those before"),
        };
        have_failed.then(|| Choice {
            images: proven,
            instead: Some(format!(
                "the node was not ready with the {noun} {} that the config names, and is back with {before}: {why}; to try again, \
                 set another readyWithin in KubernetesConfig, or name another image",
                named.join(", ")
            )),
        })
    }

    /// The same for a set that failed without a new image in it.
    fn back_from_fewer(&self, proven: &Images, wanted: &Images, limit: Duration) -> Option<Choice> {
        let (failed, why) = self.failed_set.as_ref()?;
        if failed != wanted || self.failed_within != Some(limit.as_secs()) {
            return None;
        }
        let lacking = proven.keys().filter(|name| !wanted.contains_key(*name));
        let lacking: Vec<&str> = lacking.map(String::as_str).collect();
        let without = match lacking.is_empty() {
            true => String::new(),
            false => format!(", without {}", lacking.join(", ")),
        };
        Some(Choice {
            images: proven.clone(),
            instead: Some(format!(
                "the node was not ready with the extensions that the config names{without}, and is back with those before: {why}; to try \
                 again, set another readyWithin in KubernetesConfig, or name other extensions",
            )),
        })
    }

    /// Returns the images that are not proven among these.
    fn new_among(&self, wanted: &Images) -> BTreeSet<Digest> {
        let proven: BTreeSet<Digest> = digests(self.proven.iter().flatten()).collect();
        digests(wanted).filter(|it| !proven.contains(it)).collect()
    }

    /// Notes the images that are new among these: they have failed together. Without a new one it is the set that has failed.
    fn fail(&mut self, wanted: &Images, why: &str, limit: Duration) {
        let new = self.new_among(wanted);
        if new.is_empty() {
            self.failed_set = Some((wanted.clone(), why.to_owned()));
        }
        self.failed = new.into_iter().map(|it| (it, why.to_owned())).collect();
        self.failed_within = Some(limit.as_secs());
        self.was_ready = false;
    }

    fn forget_failed(&mut self) {
        self.failed.clear();
        self.failed_set = None;
        self.failed_within = None;
    }
}

/// Returns the digests of images.
fn digests<'a>(
    images: impl IntoIterator<Item = (&'a String, &'a Chosen)>,
) -> impl Iterator<Item = Digest> {
    images.into_iter().map(|(_, chosen)| chosen.digest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::kubernetes::ServiceState;

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

    /// A service that runs, and has started again so many times.
    fn service(restarts: u64, since: u64) -> NodeService {
        NodeService {
            name: "kubelet".to_owned(),
            extension: "k".to_owned(),
            state: ServiceState::Running,
            since,
            restarts,
            last: Some("exited with code 1".to_owned()),
            has_finished: false,
        }
    }

    /// Looks once; the container gets the plan at once.
    fn look(
        record: &mut Record,
        trial: &mut Option<Trial>,
        wanted: &Images,
        look: Look<'_>,
        limit: Duration,
    ) -> Choice {
        let choice = choose(record, trial, wanted, look, limit);
        if let Some(trial) = trial {
            trial.plan_is_given();
        }
        choice
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
            let seen = Look {
                readiness,
                services: &[],
                elapsed: TEN,
            };
            choice = look(record, trial, wanted, seen, LIMIT);
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

    /// Nobody reaches a node whose network its extensions have taken away: neither a reboot nor a rollout helps it.
    #[test]
    fn a_node_that_is_cut_off_goes_back_by_itself_and_one_without_its_cluster_goes_on() {
        let [old, new, third] = ["1", "2", "3"].map(|content| images(&[("k", content)]));
        let unknown = Readiness::Unknown("no answer".to_owned());
        // readiness at the first look, whether machined starts again then, what is wanted after that → it goes back
        let table = [
            (Readiness::Ready, false, &new, true),
            (Readiness::Ready, true, &new, true),
            (Readiness::Ready, false, &third, true),
            (unknown.clone(), false, &new, false),
            (not_ready(), false, &new, false),
        ];
        for (row, (first, starts_again, wanted, goes_back)) in table.into_iter().enumerate() {
            let (mut trial, mut record) = (None, Record::default());
            record.proven = Some(old.clone());
            pass(&mut record, &mut trial, &new, &first, 1);
            pass(&mut record, &mut trial, &new, &unknown, 2);
            if starts_again {
                trial = None;
                let kept = serde_json::to_string(&record).unwrap();
                record = serde_json::from_str(&kept).unwrap();
            }
            let choice = pass(&mut record, &mut trial, wanted, &unknown, 13);
            assert_eq!(choice.images == old, goes_back, "{row}");
            let why = choice.instead.unwrap_or_default();
            assert_eq!(why.contains("cut off since: no answer"), goes_back, "{why}");
            // The silence of what was proven speaks against nothing that comes after it.
            assert!(!record.was_ready, "{row}");
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
                    let seen = Look {
                        readiness: &readiness,
                        services: &[],
                        elapsed,
                    };
                    look(&mut record, &mut trial, wanted, seen, STEADY);
                }
                assert_eq!(record.proven, Some(old.clone()), "{readiness:?}");
                assert!(record.failed.is_empty(), "{readiness:?}");
            }
        }
    }

    /// A service that runs at each look, and has crashed in between, is none that runs.
    #[test]
    fn a_service_that_starts_again_and_again_is_not_proven() {
        /// The number of starts, and the time of the last one, at a look.
        type Starts = fn(u64) -> (u64, u64);
        let unknown = Readiness::Unknown("no answer".to_owned());
        let steady: Starts = |_| (3, 7);
        let crashes: Starts = |look| (look, look);
        let counted_anew: Starts = |look| (0, look);
        let by_the_plan: Starts = |look| (look.min(1), look.min(1));
        let once: Starts = |look| (look / 5, look / 5);
        // readiness, starts, looks → (the new ones are proven, they have failed)
        let table: [(&Readiness, Starts, u64, (bool, bool)); 7] = [
            (&Readiness::Ready, steady, 7, (true, false)),
            // The plan itself starts services again, after the first look.
            (&Readiness::Ready, by_the_plan, 7, (true, false)),
            (&Readiness::Ready, once, 9, (false, false)),
            (&Readiness::Ready, crashes, 13, (false, false)),
            (&Readiness::Ready, crashes, 14, (false, true)),
            (&Readiness::Ready, counted_anew, 14, (false, true)),
            (&unknown, crashes, 14, (false, true)),
        ];
        let (old, new) = (images(&[("k", "1")]), images(&[("k", "2")]));
        for (row, (readiness, starts, looks, expected)) in table.into_iter().enumerate() {
            let mut trial = None;
            let mut record = Record {
                proven: Some(old.clone()),
                ..Record::default()
            };
            for number in 0..looks {
                let (restarts, since) = starts(number);
                let seen = Look {
                    readiness,
                    services: &[service(restarts, since)],
                    elapsed: TEN,
                };
                look(&mut record, &mut trial, &new, seen, LIMIT);
            }
            let is_proven = record.proven.as_ref() == Some(&new);
            assert_eq!((is_proven, !record.failed.is_empty()), expected, "{row}");
            if expected.1 {
                let why = "kubelet has started again: exited with code 1";
                assert_eq!(record.failed[0].1, why);
            }
        }
    }

    /// Other extensions run until the plan is given: they prove nothing of those on trial. A node that gets no plan goes back all the same.
    #[test]
    fn nothing_is_proven_before_the_plan_is_given() {
        let (old, new) = (images(&[("k", "1")]), images(&[("k", "2")]));
        for (readiness, has_failed) in [(Readiness::Ready, false), (not_ready(), true)] {
            let (mut trial, mut record) = (None, Record::default());
            record.proven = Some(old.clone());
            for _ in 0..1000 {
                let seen = Look {
                    readiness: &readiness,
                    services: &[],
                    elapsed: TEN,
                };
                choose(&mut record, &mut trial, &new, seen, LIMIT);
            }
            assert_eq!(record.proven.as_ref(), Some(&old));
            assert_eq!(!record.failed.is_empty(), has_failed);
        }
    }

    /// The proven ones run meanwhile, and their plan is given: neither tells of those that were on trial.
    #[test]
    fn a_trial_begins_anew_once_its_images_are_known_again() {
        let (old, new) = (images(&[("k", "1")]), images(&[("k", "2")]));
        let (mut trial, mut record) = (None, Record::default());
        record.proven = Some(old.clone());
        pass(&mut record, &mut trial, &new, &Readiness::Ready, 6);
        let runs = without_wanted(&record, &mut trial);
        assert_eq!((runs, &trial), (Some(old.clone()), &None));
        pass(&mut record, &mut trial, &new, &Readiness::Ready, 6);
        assert_eq!(record.proven, Some(old));
        pass(&mut record, &mut trial, &new, &Readiness::Ready, 1);
        assert_eq!(record.proven, Some(new));
    }

    /// Who brings a good extension together with a broken one can bring it again with a mended one.
    #[test]
    fn a_bad_extension_condemns_no_good_one() {
        let of = |c: &str, k: &str| images(&[("c", c), ("k", k)]);
        let failed = || {
            let (mut trial, mut record) = (None, Record::default());
            record.proven = Some(of("c1", "k1"));
            let choice = pass(&mut record, &mut trial, &of("c2", "k2"), &not_ready(), 13);
            assert_eq!(choice.images, of("c1", "k1"));
            let why = choice.instead.unwrap();
            assert!(why.contains("extensions c, k that"), "{why}");
            assert!(why.contains("another readyWithin"), "{why}");
            record
        };
        // wanted after that, its limit, whether it is tried
        let mut more = of("c2", "k2");
        more.extend(images(&[("x", "x1")]));
        let table = [
            (of("c2", "k2"), LIMIT, false),
            (more, LIMIT, false),
            (of("c2", "k2"), LIMIT + TEN, true),
            (of("c2", "k3"), LIMIT, true),
            (of("c2", "k1"), LIMIT, true),
            (of("c1", "k2"), LIMIT, true),
        ];
        for (wanted, limit, is_tried) in table {
            let (mut record, mut trial) = (failed(), None);
            let seen = Look {
                readiness: &not_ready(),
                services: &[],
                elapsed: TEN,
            };
            let choice = look(&mut record, &mut trial, &wanted, seen, limit);
            assert_eq!(choice.images == wanted, is_tried, "{wanted:?} {limit:?}");
            assert_eq!(record.failed.is_empty(), is_tried);
        }
        // With the previous extensions in the config it is forgotten, and may be named again.
        let (mut record, mut trial) = (failed(), None);
        for (c, k) in [("c1", "k1"), ("c2", "k2")] {
            let choice = pass(&mut record, &mut trial, &of(c, k), &Readiness::Ready, 1);
            assert_eq!(choice, Choice::of(&of(c, k)));
        }
    }

    /// Nothing in it is new, and nothing in it is blamed: the extension that was proven with it comes back, and so may each of the others.
    #[test]
    fn an_extension_that_is_taken_out_is_gone_back_from() {
        let both = images(&[("c", "c1"), ("k", "k1")]);
        let alone = images(&[("k", "k1")]);
        let failed = || {
            let (mut trial, mut record) = (None, Record::default());
            record.proven = Some(both.clone());
            let choice = pass(&mut record, &mut trial, &alone, &not_ready(), 13);
            assert_eq!((&choice.images, &trial), (&both, &None));
            let why = choice.instead.unwrap();
            assert!(
                why.contains("the config names, without c, and is back"),
                "{why}"
            );
            // As it is kept over a reboot.
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
            record
        };
        // wanted after that, its limit, whether it is tried
        let table = [
            (alone.clone(), LIMIT, false),
            (alone.clone(), LIMIT + TEN, true),
            (images(&[("k", "k2")]), LIMIT, true),
            (images(&[("c", "c1"), ("k", "k2")]), LIMIT, true),
            (both.clone(), LIMIT, true),
        ];
        for (wanted, limit, is_tried) in table {
            let (mut record, mut trial) = (failed(), None);
            let seen = Look {
                readiness: &not_ready(),
                services: &[],
                elapsed: TEN,
            };
            let choice = look(&mut record, &mut trial, &wanted, seen, limit);
            assert_eq!(choice.images == wanted, is_tried, "{wanted:?} {limit:?}");
            assert_eq!(record.failed_set.is_none(), is_tried);
        }
    }

    /// It says of each image that it failed, and not of which others it was beside.
    #[test]
    fn a_record_of_an_older_version_is_read() {
        let record = serde_json::json!({
            "proven": images(&[("c", "c1"), ("k", "k1")]),
            "failed": [
                [Digest::of(b"old"), "x"],
                [Digest::of(b"c2"), "no port"],
                [Digest::of(b"k2"), "no port"],
            ],
        });
        let record: Record = serde_json::from_value(record).unwrap();
        for (c, k, is_tried) in [
            ("c2", "k2", false),
            ("c1", "k2", false),
            ("c2", "k3", true),
            ("c1", "k1", true),
        ] {
            let wanted = images(&[("c", c), ("k", k)]);
            let (mut record, mut trial) = (record.clone(), None);
            let choice = pass(&mut record, &mut trial, &wanted, &Readiness::Ready, 1);
            assert_eq!(choice.images == wanted, is_tried, "{c} {k}");
        }
        // An older version reads the record of this one.
        let mut newer = record;
        newer.fail(&images(&[("k", "k3")]), "x", LIMIT);
        let newer = serde_json::to_value(&newer).unwrap();
        assert_eq!(newer["failed"][0][0], serde_json::json!(Digest::of(b"k3")));
    }
}
