//! Whose turn it is in a pool: a rollout of a version, or one of configs. Pure.
//!
//! ```text
//!  the pool names another image ─────────► a rollout of the version
//!                                             │ done: all nodes run it that are not held
//!  and has other patches ────────────────►    ▼
//!                                          a rollout of configs
//!                                             │ done
//!  a node is due for one of both ────────►    ▼
//!  (it joined, or was released)            the same again, of a version before one of configs
//! ```
//!
//! The decision: the version goes first. A patch may set what only the new version knows, and each version takes the configs of those before it.
//! One rollout is the newest at each moment, and nothing is under way in the other one, which is set aside with its record as it was. So a rollout
//! of configs that was halted is halted still after the next version.
//!
//! A rollout that goes back is never replaced by another one, also while its next node cannot be asked: that node would keep the bad version, and
//! nothing would tell of it. The way back ends by itself, at the latest by the patience of the policy.

use instar_rollout::{MachineName, Phase, Record, Step};

use crate::api::Kind;
use crate::node::NodeView;

/// The decision about the next rollout of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextRollout {
    /// Begin a rollout.
    Begin(Kind, Next),
    /// Go on with the one that was set aside.
    TakeUp,
    /// Go on with the newest one.
    GoOn,
}

/// Which rollout begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// One of what the pool names now.
    Another,
    /// One of the same as before.
    Again,
}

/// One kind of rollout that a pool names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side<'a> {
    /// The last rollout of this kind.
    pub(crate) last: Option<Last<'a>>,
}

/// The last rollout of a kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last<'a> {
    pub(crate) record: &'a Record,
    /// Whether it brings what the pool names now.
    pub(crate) is_meant: bool,
    /// Whether a node has to get the same, now that it is done.
    pub(crate) is_due: bool,
}

impl Side<'_> {
    fn is_meant(&self) -> bool {
        self.last.is_some_and(|last| last.is_meant)
    }
}

/// The kinds of rollouts that a pool names; none for a kind that it does not name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sides<'a> {
    pub(crate) version: Option<Side<'a>>,
    pub(crate) config: Option<Side<'a>>,
}

impl Sides<'_> {
    /// Whether the pool still means the newest rollout, which is of this kind. Otherwise nothing new begins in it.
    pub(crate) fn mean(&self, kind: Kind) -> bool {
        let is_meant = |side: Option<Side<'_>>| side.is_some_and(|side| side.is_meant());
        match kind {
            Kind::Version => is_meant(self.version),
            Kind::Config => {
                is_meant(self.config) && self.version.is_none_or(|side| side.is_meant())
            }
        }
    }

    /// Decides. `newest`: the newest rollout.
    pub(crate) fn turn(&self, newest: Option<(Kind, &Record)>) -> NextRollout {
        let is_free = newest.is_none_or(|(_, record)| {
            let mut entries = record.machines.values();
            let goes_back = matches!(record.phase, Phase::GoingBack { .. });
            !goes_back && !entries.any(|entry| entry.step.is_under_way())
        });
        match is_free {
            true => self.next(newest),
            false => NextRollout::GoOn,
        }
    }

    /// The decision once nothing is under way.
    pub(crate) fn next(&self, newest: Option<(Kind, &Record)>) -> NextRollout {
        let newest_is_named = match newest {
            Some((Kind::Version, _)) => self.version.is_some(),
            Some((Kind::Config, _)) => self.config.is_some(),
            None => false,
        };
        // One that is neither, such as one that halted, goes on before anything else.
        let newest_is_over =
            newest.is_some_and(|(kind, record)| record.phase == Phase::Done || !self.mean(kind));
        for (kind, side) in [(Kind::Version, self.version), (Kind::Config, self.config)] {
            let Some(side) = side else {
                continue;
            };
            let Some(last) = side.last.filter(|last| last.is_meant) else {
                return NextRollout::Begin(kind, Next::Another);
            };
            let is_done = last.record.phase == Phase::Done;
            let is_newest = newest.is_some_and(|(newest, _)| newest == kind);
            match (is_newest, is_done) {
                (true, false) => return NextRollout::GoOn,
                (false, false) => return NextRollout::TakeUp,
                (false, true) if !newest_is_named => return NextRollout::TakeUp,
                (_, true) if last.is_due && newest_is_over => {
                    return NextRollout::Begin(kind, Next::Again);
                }
                (_, true) => {}
            }
        }
        NextRollout::GoOn
    }
}

/// Whether a node has to get what a rollout that is done has brought. One that failed has to wait for something else, or for a person.
pub(crate) fn is_due(kind: Kind, node: &NodeView, record: &Record) -> bool {
    let entry = record.machines.get(&MachineName::from(node.name.as_str()));
    let lacks_it = match (kind, entry.map(|entry| &entry.step)) {
        (_, Some(Step::Failed { .. })) => false,
        (Kind::Version, _) => node.version.as_ref() != Some(&record.target.version),
        // Its object does not tell its config. One that has it had its turn.
        (Kind::Config, None | Some(Step::Waiting | Step::Left { .. })) => true,
        (Kind::Config, Some(_)) => false,
    };
    lacks_it && node.hold.is_none() && node.unready.is_none()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Member, Moment, Policy, Release};
    use serde_json::json;

    use super::*;

    fn record(phase: Phase) -> Record {
        let target = Release {
            version: "v2".to_owned(),
            digest: None,
            image: Some("r/i:v2".to_owned()),
        };
        let members = [(MachineName::from("n1"), Member::default())];
        let mut record = Record::begin(target, vec![Policy::default()], members.into()).unwrap();
        record.phase = phase;
        record
    }

    fn with(step: Step) -> Record {
        let mut record = record(Phase::Done);
        let entry = record.machines.get_mut(&MachineName::from("n1")).unwrap();
        entry.step = step;
        record
    }

    fn node(version: &str) -> NodeView {
        let object = json!({
            "metadata": {"name": "n1", "labels": {crate::api::VERSION_LABEL: version}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        NodeView::of(&serde_json::from_value(object).unwrap())
    }

    /// A side by a word: `-` is not named, `new` was never rolled out, `other` and `other halted` were with something else; `done`, `due`, `halted` and `rolling` with
    /// what the pool names.
    fn side<'a>(
        word: &str,
        done: &'a Record,
        halted: &'a Record,
        rolling: &'a Record,
    ) -> Option<Side<'a>> {
        let last = |record, is_meant, is_due| {
            Some(Last {
                record,
                is_meant,
                is_due,
            })
        };
        let last = match word {
            "-" => return None,
            "new" => None,
            "other" => last(done, false, false),
            "other halted" => last(halted, false, false),
            "done" => last(done, true, false),
            "due" => last(done, true, true),
            "halted" => last(halted, true, false),
            _ => last(rolling, true, false),
        };
        Some(Side { last })
    }

    #[test]
    fn a_version_goes_before_configs() {
        use Kind::{Config, Version};
        use Next::{Again, Another};
        use NextRollout::{Begin, GoOn, TakeUp};
        let why = "n1: it burns".to_owned();
        let (done, rolling) = (record(Phase::Done), record(Phase::Rolling));
        let halted = record(Phase::Halted { why });
        for (version, config, newest, expected) in [
            ("new", "-", None, Begin(Version, Another)),
            ("new", "new", None, Begin(Version, Another)),
            ("-", "new", None, Begin(Config, Another)),
            // As it is with a version alone.
            ("rolling", "-", Some(Version), GoOn),
            ("other", "-", Some(Version), Begin(Version, Another)),
            ("done", "-", Some(Version), GoOn),
            ("due", "-", Some(Version), Begin(Version, Again)),
            ("halted", "-", Some(Version), GoOn),
            // Configs come once the version is done, and not before.
            ("rolling", "new", Some(Version), GoOn),
            ("halted", "new", Some(Version), GoOn),
            ("done", "new", Some(Version), Begin(Config, Another)),
            ("done", "other", Some(Version), Begin(Config, Another)),
            ("due", "new", Some(Version), Begin(Version, Again)),
            // What was set aside goes on as it was.
            ("done", "rolling", Some(Version), TakeUp),
            ("done", "halted", Some(Version), TakeUp),
            ("done", "done", Some(Version), GoOn),
            ("done", "due", Some(Version), Begin(Config, Again)),
            // Configs are under way, or were.
            ("done", "rolling", Some(Config), GoOn),
            ("due", "rolling", Some(Config), GoOn),
            ("due", "halted", Some(Config), GoOn),
            ("due", "done", Some(Config), Begin(Version, Again)),
            ("done", "due", Some(Config), Begin(Config, Again)),
            ("done", "other", Some(Config), Begin(Config, Another)),
            // The newest one came to no end, and is not meant any more.
            ("done", "other halted", Some(Config), Begin(Config, Another)),
            ("due", "other halted", Some(Config), Begin(Version, Again)),
            ("due", "other", Some(Config), Begin(Version, Again)),
            ("other", "rolling", Some(Config), Begin(Version, Another)),
            ("other", "halted", Some(Config), Begin(Version, Another)),
            ("new", "done", Some(Config), Begin(Version, Another)),
            // The newest one is not named any more.
            ("done", "-", Some(Config), TakeUp),
            ("-", "done", Some(Version), TakeUp),
            ("-", "new", Some(Version), Begin(Config, Another)),
        ] {
            let of = |word: &str| side(word, &done, &halted, &rolling);
            let sides = Sides {
                version: of(version),
                config: of(config),
            };
            let record = match newest {
                Some(Version) if version == "rolling" => &rolling,
                Some(Version) if version == "halted" => &halted,
                Some(Config) if config == "rolling" => &rolling,
                Some(Config) if config.ends_with("halted") => &halted,
                _ => &done,
            };
            let newest = newest.map(|kind| (kind, record));
            let turn = sides.turn(newest);
            assert_eq!(turn, expected, "{version}, {config}, newest {newest:?}");
        }
    }

    #[test]
    fn nothing_begins_while_a_node_is_under_way() {
        let switching = Step::Switching {
            since: Moment(1),
            mark: 0,
        };
        let (under_way, done) = (with(switching), record(Phase::Done));
        for kind in [Kind::Version, Kind::Config] {
            let of = |word| side(word, &done, &done, &done);
            let sides = Sides {
                version: of("other"),
                config: of("other"),
            };
            assert_eq!(sides.turn(Some((kind, &under_way))), NextRollout::GoOn);
            assert_ne!(sides.next(Some((kind, &under_way))), NextRollout::GoOn);
            assert!(!sides.mean(kind));
        }
    }

    #[test]
    fn nothing_begins_while_a_rollout_goes_back() {
        let why = || "n1: it burns".to_owned();
        let done = record(Phase::Done);
        let of = |word| side(word, &done, &done, &done);
        let sides = Sides {
            version: of("other"),
            config: of("other"),
        };
        // Its nodes may be away, so that none is under way.
        let goes_back = record(Phase::GoingBack { why: why() });
        let went_back = record(Phase::WentBack { why: why() });
        let begins = NextRollout::Begin(Kind::Version, Next::Another);
        for kind in [Kind::Version, Kind::Config] {
            assert_eq!(sides.turn(Some((kind, &goes_back))), NextRollout::GoOn);
            assert_eq!(sides.turn(Some((kind, &went_back))), begins);
        }
    }

    #[test]
    fn configs_are_not_meant_while_another_version_waits() {
        let done = record(Phase::Done);
        let of = |word| side(word, &done, &done, &done);
        for (version, config, meant) in [
            ("done", "done", [true, true]),
            ("other", "done", [false, false]),
            ("done", "other", [true, false]),
            ("-", "done", [false, true]),
            ("done", "-", [true, false]),
        ] {
            let sides = Sides {
                version: of(version),
                config: of(config),
            };
            let means = [Kind::Version, Kind::Config].map(|kind| sides.mean(kind));
            assert_eq!(means, meant, "{version}, {config}");
        }
    }

    #[test]
    fn a_node_is_due_unless_it_has_had_its_turn() {
        let (at, why) = (Moment(1), "it burns".to_owned());
        let failed = Step::Failed { at, why };
        let left = Step::Left { why: String::new() };
        for (step, version, config) in [
            (Step::Waiting, true, true),
            (left, true, true),
            (Step::Updated { at }, true, false),
            (failed, false, false),
        ] {
            let record = with(step);
            let due = [Kind::Version, Kind::Config].map(|kind| is_due(kind, &node("v1"), &record));
            assert_eq!(due, [version, config], "{record:?}");
        }
        let left = with(Step::Left { why: String::new() });
        assert!(!is_due(Kind::Version, &node("v2"), &left));
        assert!(is_due(Kind::Config, &node("v2"), &left));
        let joined = NodeView {
            name: "n2".to_owned(),
            ..node("v2")
        };
        assert!(is_due(Kind::Config, &joined, &left));
        let held = NodeView {
            hold: Some("mine".to_owned()),
            ..node("v1")
        };
        let unready = NodeView {
            unready: Some("away".to_owned()),
            ..node("v1")
        };
        for other in [held, unready] {
            assert!(!is_due(Kind::Version, &other, &left));
            assert!(!is_due(Kind::Config, &other, &left));
        }
    }
}
