//! The version and patches of configs that a pool names; the version by an image or by a channel.

use instar_channel::Date;
use instar_rollout::{MachineName, Phase, Record, Release, Step};
use instar_rollout_driver::ConfigChange;
use instar_values::Version;

use crate::api::{Kind, Pool, Rollout};
use crate::cluster::Cluster;
use crate::left_behind;
use crate::node::NodeView;
use crate::policy::{self, Wanted};
use crate::record_store::Kept;
use crate::shown::Invalid;
use crate::step;
use crate::turns::{Last, Side, Sides, is_due};

/// The version and the change of configs that a pool names.
pub(crate) struct Named {
    /// None: any version.
    version: Option<NamedVersion>,
    /// None: any config.
    pub(crate) config: Option<ConfigChange>,
}

/// A version by its image.
enum NamedVersion {
    /// An image.
    Image(String),
    /// The release of the channel that comes next.
    Release(step::Step),
}

impl Named {
    /// The version and the change of configs that a pool with these nodes and these rollouts names.
    ///
    /// # Errors
    /// Nothing that could be rolled out; says why.
    pub(crate) fn of(
        cluster: &Cluster,
        pool: &Pool,
        nodes: &[NodeView],
        kept: &Kept,
    ) -> Result<Self, Invalid> {
        let bad = |reason| move |why: String| Invalid::new(reason, why);
        let wanted = policy::wanted(&pool.spec).map_err(bad("BadImage"))?;
        let version = match wanted {
            Wanted::Image(image) => Some(NamedVersion::Image(image)),
            Wanted::Channel(name) => {
                let release = of_channel(cluster, &name, nodes, kept)?;
                Some(NamedVersion::Release(release))
            }
            Wanted::AnyVersion => None,
        };
        let config = policy::config(&pool.spec).map_err(bad("BadConfig"))?;
        Ok(Self { version, config })
    }

    /// Whether a node may be part of a rollout of this kind.
    pub(crate) fn is_for(&self, kind: Kind, node: &NodeView) -> bool {
        match (kind, &self.version) {
            (Kind::Version, Some(NamedVersion::Release(release))) => release.is_for(node),
            (Kind::Version, _) | (Kind::Config, _) => true,
        }
    }

    /// Whether a node runs the version that the pool names. One that does not, as it failed at it, may refuse what only that version knows.
    pub(crate) fn runs_the_version(&self, kept: &Kept, node: &NodeView) -> bool {
        let mut left_behind = kept.status.left_behind.iter();
        if self.follows_a_channel() && left_behind.any(|one| one.node == node.name) {
            return false;
        }
        let last = kept.last(Kind::Version);
        let named = last.filter(|_| self.version.is_some() && self.is_for(Kind::Version, node));
        named.is_none_or(|(_, record)| node.version.as_ref() == Some(&record.target.version))
    }

    /// The nodes that may tell which version the image has: not those that have failed at it, which refuse it. For those alone nothing begins.
    pub(crate) fn may_tell(&self, kept: &Kept, nodes: &[NodeView]) -> Vec<NodeView> {
        let nodes = nodes.iter();
        let others = nodes.filter(|node| !self.is_left_behind(kept, node));
        others.cloned().collect()
    }

    /// Whether a node has failed at the release that comes next, and the others went on without it.
    fn is_left_behind(&self, kept: &Kept, node: &NodeView) -> bool {
        let release = self.release();
        release.is_some_and(|version| has_failed(kept, node, version))
    }

    /// The version of the release that comes next; none if the pool follows no channel.
    pub(crate) fn release(&self) -> Option<&Version> {
        match &self.version {
            Some(NamedVersion::Release(release)) => Some(&release.version),
            Some(NamedVersion::Image(_)) | None => None,
        }
    }

    /// Whether the version is the release of a channel: who runs a newer one is not taken back.
    fn follows_a_channel(&self) -> bool {
        self.release().is_some()
    }

    /// The image that nodes are to run. While a rollout brings this version of the channel, it is the image that it was begun with.
    pub(crate) fn image<'a>(&'a self, kept: &'a Kept) -> Option<&'a str> {
        match self.version.as_ref()? {
            NamedVersion::Image(image) => Some(image),
            NamedVersion::Release(release) => match kept.last(Kind::Version) {
                Some((rollout, record)) if is_of(&record.target, &release.version) => {
                    Some(&rollout.image)
                }
                _ => Some(&release.image),
            },
        }
    }

    /// The kinds of rollouts that the pool names, each beside the last rollout of its kind.
    pub(crate) fn sides<'a>(&self, kept: &'a Kept, nodes: &[NodeView]) -> Sides<'a> {
        // A node that is left behind does not try again by itself.
        let takes_part = |kind: Kind, node: &NodeView| {
            let is_left_behind = kind == Kind::Version && self.is_left_behind(kept, node);
            self.is_for(kind, node) && !is_left_behind
        };
        let side = |kind, is_meant: &dyn Fn(&Rollout, &Record) -> bool| Side {
            last: kept.last(kind).map(|(rollout, record)| Last {
                record,
                is_meant: is_meant(rollout, record),
                is_due: nodes
                    .iter()
                    .any(|node| takes_part(kind, node) && is_due(kind, node, record)),
            }),
        };
        // All of them run a release that was withdrawn: it sends nobody back. Nodes that are left behind are not waited for, but a rollout that has
        // not ended must not bring them the release that was withdrawn.
        let is_any = |is: &dyn Fn(&NodeView) -> bool| nodes.iter().any(is);
        let run_newer =
            self.follows_a_channel() && !is_any(&|node| takes_part(Kind::Version, node));
        let are_all_newer = run_newer && !is_any(&|node| self.is_for(Kind::Version, node));
        let image = self.image(kept);
        let version = image.map(|image| {
            // An operator from before configs that took over for a moment leaves a rollout of configs as one of a version, with its image. Only a
            // version leads to an image.
            let is_meant = |rollout: &Rollout, record: &Record| {
                let has_ended_newer = run_newer && record.phase == Phase::Done;
                let is_newer = are_all_newer || has_ended_newer;
                is_newer || rollout.image == image && record.target.image.is_some()
            };
            side(Kind::Version, &is_meant)
        });
        let config = self.config.as_ref().map(|change| {
            side(
                Kind::Config,
                &|rollout: &Rollout, _: &Record| match change {
                    ConfigChange::Patches(texts) => *texts == rollout.config_patches,
                    ConfigChange::Files(_) => false,
                },
            )
        });
        Sides { version, config }
    }
}

/// The release of a channel that comes next for these nodes.
fn of_channel(
    cluster: &Cluster,
    name: &str,
    nodes: &[NodeView],
    kept: &Kept,
) -> Result<step::Step, Invalid> {
    let none = |why: &str| Invalid::new("NoRelease", format!("channel {name}: {why}"));
    let channel = cluster.channel(name);
    let channel = channel.ok_or_else(|| none("there is none of this name"))?;
    let status = channel.status.clone().unwrap_or_default();
    // Its reader may wait for a silent server, or for its next look.
    let now = Date::from_seconds(instar_rollout_driver::now().0);
    if let Some(expired) = status.expired(now) {
        return Err(none(&expired));
    }
    let steps = step::steps(&status);
    let has_failed = |node: &NodeView, version: &Version| has_failed(kept, node, version);
    match step::next(&steps, nodes, has_failed) {
        Ok(Some(next)) => Ok(next.clone()),
        Ok(None) if status.message.is_empty() => Err(none("its list was not read yet")),
        Ok(None) => Err(none(&status.message)),
        Err(why) => Err(none(&why)),
    }
}

/// Whether a node has failed at this version, in the last rollout of one or in one before it, and that rollout was done without it.
fn has_failed(kept: &Kept, node: &NodeView, version: &Version) -> bool {
    let last = kept.last(Kind::Version);
    last.is_some_and(|(_, record)| is_left_behind(record, node, version))
        || left_behind::has_failed(&kept.status.left_behind, node, version)
}

/// Whether a node has failed at this version in a rollout that was done without it.
fn is_left_behind(record: &Record, node: &NodeView, version: &Version) -> bool {
    let entry = record.machines.get(&MachineName::from(node.name.as_str()));
    let has_failed = entry.is_some_and(|entry| matches!(entry.step, Step::Failed { .. }));
    has_failed && record.phase == Phase::Done && is_of(&record.target, version)
}

/// Whether a release has this version of a channel.
fn is_of(release: &Release, version: &Version) -> bool {
    release.version.parse().as_ref() == Ok(version)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Member, Policy};
    use serde_json::json;

    use super::*;
    use crate::api::PoolStatus;
    use crate::turns::{Next, NextRollout};

    fn node(version: &str) -> NodeView {
        let object = json!({
            "metadata": {"name": "n1", "labels": {crate::api::VERSION_LABEL: version}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        NodeView::of(&serde_json::from_value(object).unwrap())
    }

    /// A rollout that is done: of this version's image, or of configs.
    fn done(version: &str) -> Record {
        let is_version = version.starts_with('v');
        let target = Release {
            version: version.to_owned(),
            digest: None,
            image: is_version.then(|| format!("r/i:{version}")),
        };
        let members = [(MachineName::from("n1"), Member::default())];
        let mut record = Record::begin(target, vec![Policy::default()], members.into()).unwrap();
        record.phase = Phase::Done;
        for entry in record.machines.values_mut() {
            entry.step = Step::Updated {
                at: instar_rollout::Moment(1),
            };
        }
        record
    }

    fn kept(rollouts: &[(&str, &[&str], &str)]) -> Kept {
        let mut kept = Kept::of(PoolStatus::default()).unwrap();
        for (image, patches, version) in rollouts {
            let rollout = Rollout {
                image: (*image).to_owned(),
                config_patches: patches.iter().map(|text| (*text).to_owned()).collect(),
                ..Rollout::default()
            };
            kept.begin(rollout, done(version));
        }
        kept
    }

    fn named(image: &str, patches: &[&str]) -> Named {
        let texts: Vec<String> = patches.iter().map(|text| (*text).to_owned()).collect();
        Named {
            version: (!image.is_empty()).then(|| NamedVersion::Image(image.to_owned())),
            config: (!texts.is_empty()).then_some(ConfigChange::Patches(texts)),
        }
    }

    #[test]
    fn a_pool_has_what_was_rolled_out_last_of_each_kind() {
        use Kind::{Config, Version};
        use Next::{Again, Another};
        let version: (&str, &[&str], &str) = ("r/i:v2", &[], "v2");
        let config: (&str, &[&str], &str) = ("r/i:v2", &["{}"], "config 1");
        for (named, kept, runs, expected) in [
            (
                named("r/i:v2", &["{}"]),
                kept(&[]),
                "v1",
                NextRollout::Begin(Version, Another),
            ),
            (
                named("r/i:v2", &["{}"]),
                kept(&[version]),
                "v2",
                NextRollout::Begin(Config, Another),
            ),
            (
                named("r/i:v2", &["{}"]),
                kept(&[version, config]),
                "v2",
                NextRollout::GoOn,
            ),
            (
                named("r/i:v2", &["a: 1"]),
                kept(&[version, config]),
                "v2",
                NextRollout::Begin(Config, Another),
            ),
            (
                named("r/i:v3", &["{}"]),
                kept(&[version, config]),
                "v2",
                NextRollout::Begin(Version, Another),
            ),
            (
                named("r/i:v2", &["{}"]),
                kept(&[version, config]),
                "v1",
                NextRollout::Begin(Version, Again),
            ),
            (
                named("", &["{}"]),
                kept(&[]),
                "v1",
                NextRollout::Begin(Config, Another),
            ),
            (named("", &["{}"]), kept(&[config]), "v1", NextRollout::GoOn),
            // An operator from before configs was here: it has dropped the patches, and what was set aside.
            (
                named("r/i:v2", &["{}"]),
                kept(&[("r/i:v2", &[], "config 1")]),
                "v2",
                NextRollout::Begin(Version, Another),
            ),
        ] {
            let newest = kept
                .newest()
                .map(|(rollout, record)| (rollout.kind(), record));
            let turn = named.sides(&kept, &[node(runs)]).turn(newest);
            assert_eq!(turn, expected);
        }
    }

    #[test]
    fn a_node_that_does_not_run_the_version_is_not_asked_for_its_config() {
        let version: (&str, &[&str], &str) = ("r/i:v2", &[], "v2");
        for (named, kept, runs, expected) in [
            (named("r/i:v2", &["{}"]), kept(&[version]), "v2", true),
            (named("r/i:v2", &["{}"]), kept(&[version]), "v1", false),
            // The pool leaves the version alone.
            (named("", &["{}"]), kept(&[version]), "v1", true),
            (named("", &["{}"]), kept(&[]), "v1", true),
        ] {
            assert_eq!(named.runs_the_version(&kept, &node(runs)), expected);
        }
    }

    fn named_node(name: &str, version: &str) -> NodeView {
        NodeView {
            name: name.to_owned(),
            ..node(version)
        }
    }

    /// A rollout of a version, over these nodes, that is done: nodes with a `-` have failed.
    fn done_over(version: &str, nodes: &[&str]) -> (Rollout, Record) {
        let mut record = done(version);
        let updated = record.machines.values().next().unwrap().clone();
        record.machines.clear();
        for node in nodes {
            let mut entry = updated.clone();
            if node.ends_with('-') {
                let why = "it burns".to_owned();
                let at = instar_rollout::Moment(1);
                entry.step = Step::Failed { at, why };
            }
            let name = MachineName::from(node.trim_end_matches('-'));
            record.machines.insert(name, entry);
        }
        let rollout = Rollout {
            image: format!("r/i:{version}"),
            ..Rollout::default()
        };
        (rollout, record)
    }

    /// The releases of a channel, the newest first.
    fn releases(releases: &[(&str, Option<&str>)]) -> Vec<step::Step> {
        let releases = releases
            .iter()
            .map(|(version, from)| crate::api::ChannelRelease {
                version: (*version).to_owned(),
                image: format!("r/i:{version}"),
                upgrades_from: from.map(str::to_owned),
            });
        step::steps(&crate::api::ChannelStatus {
            releases: releases.collect(),
            ..crate::api::ChannelStatus::default()
        })
    }

    #[test]
    fn a_node_that_failed_on_a_step_of_the_way_keeps_nobody_from_the_steps_after_it() {
        let ladder = [("v0.3.0", Some(">=v0.2.0")), ("v0.2.0", None)];
        let next = |of: &[(&str, Option<&str>)], kept: &Kept, others: &str| {
            let nodes = [named_node("n1", "v0.1.0"), named_node("n2", others)];
            let steps = releases(of);
            let failed = |node: &NodeView, version: &Version| has_failed(kept, node, version);
            let release = step::next(&steps, &nodes, failed).unwrap().unwrap().clone();
            let version = release.version.to_string();
            let named = Named {
                version: Some(NamedVersion::Release(release)),
                config: None,
            };
            let newest = kept.newest();
            let newest = newest.map(|(rollout, record)| (rollout.kind(), record));
            (version, named.sides(kept, &nodes).turn(newest))
        };
        let begins = NextRollout::Begin(Kind::Version, Next::Another);
        let mut kept = kept(&[]);
        let (rollout, record) = done_over("v0.2.0", &["n1-", "n2"]);
        kept.begin(rollout, record);
        let (version, turn) = next(&ladder, &kept, "v0.2.0");
        assert_eq!((version.as_str(), turn), ("v0.3.0", begins));
        let (rollout, record) = done_over("v0.3.0", &["n2"]);
        kept.begin(rollout, record);
        let (version, turn) = next(&ladder, &kept, "v0.3.0");
        assert_eq!((version.as_str(), turn), ("v0.3.0", NextRollout::GoOn));
        let longer = [&[("v0.4.0", Some(">=v0.3.0"))], &ladder[..]].concat();
        let (version, turn) = next(&longer, &kept, "v0.3.0");
        assert_eq!((version.as_str(), turn), ("v0.4.0", begins));
        // A person says `retry`.
        left_behind::try_again(&mut kept.status.left_behind);
        let (version, turn) = next(&longer, &kept, "v0.3.0");
        assert_eq!((version.as_str(), turn), ("v0.2.0", begins));
    }

    #[test]
    fn a_node_that_is_left_behind_is_asked_for_neither_the_image_nor_its_config() {
        let mut kept = kept(&[]);
        for (version, nodes) in [("v0.2.0", &["n1-", "n2"][..]), ("v0.3.0", &["n2"])] {
            let (rollout, record) = done_over(version, nodes);
            kept.begin(rollout, record);
        }
        let steps = releases(&[("v0.3.0", Some(">=v0.2.0")), ("v0.2.0", None)]);
        let named = Named {
            version: Some(NamedVersion::Release(steps[1].clone())),
            config: Some(ConfigChange::Patches(vec!["{}".to_owned()])),
        };
        let nodes = ["n1", "n2", "n5"].map(|name| named_node(name, "v0.1.0"));
        let told = named.may_tell(&kept, &nodes);
        let told: Vec<&str> = told.iter().map(|node| node.name.as_str()).collect();
        assert_eq!(told, ["n2", "n5"]);
        assert!(named.may_tell(&kept, &nodes[..1]).is_empty());
        let named = Named {
            version: Some(NamedVersion::Release(steps[0].clone())),
            ..named
        };
        assert!(!named.runs_the_version(&kept, &nodes[0]));
        assert!(named.runs_the_version(&kept, &named_node("n2", "v0.3.0")));
    }

    #[test]
    fn nodes_that_run_a_release_that_was_withdrawn_have_their_version() {
        let status = crate::api::ChannelStatus {
            version: Some("v0.2.0".to_owned()),
            image: Some("r/i:v0.2.0".to_owned()),
            ..crate::api::ChannelStatus::default()
        };
        let named = Named {
            version: Some(NamedVersion::Release(step::steps(&status).remove(0))),
            config: Some(ConfigChange::Patches(vec!["{}".to_owned()])),
        };
        let kept = kept(&[("r/i:v0.3.0", &[], "v0.3.0")]);
        let newest = kept.newest();
        let newest = newest.map(|(rollout, record)| (rollout.kind(), record));
        for (runs, expected) in [
            ("v0.3.0", NextRollout::Begin(Kind::Config, Next::Another)),
            ("v0.1.0", NextRollout::Begin(Kind::Version, Next::Another)),
        ] {
            let turn = named.sides(&kept, &[node(runs)]).turn(newest);
            assert_eq!(turn, expected, "{runs}");
        }
    }

    #[test]
    fn a_node_that_is_left_behind_below_a_release_that_was_withdrawn_begins_nothing() {
        let begins = |kind| NextRollout::Begin(kind, Next::Another);
        // n1 has failed at v0.3.0, the others went on to v0.4.0, and that is withdrawn.
        let mut kept = kept(&[]);
        for (version, nodes) in [("v0.3.0", &["n1-", "n2"][..]), ("v0.4.0", &["n2"])] {
            let (rollout, record) = done_over(version, nodes);
            kept.begin(rollout, record);
        }
        let named = Named {
            version: Some(NamedVersion::Release(
                releases(&[("v0.3.0", None)]).remove(0),
            )),
            config: Some(ConfigChange::Patches(vec!["{}".to_owned()])),
        };
        let turn = |kept: &Kept, others: &str| {
            let nodes = [("n1", "v0.2.0"), ("n2", others)];
            let nodes = nodes.map(|(name, runs)| NodeView {
                name: name.to_owned(),
                ..node(runs)
            });
            let newest = kept.newest();
            let newest = newest.map(|(rollout, record)| (rollout.kind(), record));
            named.sides(kept, &nodes).turn(newest)
        };
        assert_eq!(turn(&kept, "v0.4.0"), begins(Kind::Config));
        // Somebody else needs it.
        assert_eq!(turn(&kept, "v0.2.0"), begins(Kind::Version));
        // The release that was withdrawn does not go on because of it.
        let mut open = kept.clone();
        open.record.as_mut().unwrap().phase = Phase::Aborted;
        assert_eq!(turn(&open, "v0.4.0"), begins(Kind::Version));
        // A person says `retry`.
        left_behind::try_again(&mut kept.status.left_behind);
        assert_eq!(turn(&kept, "v0.4.0"), begins(Kind::Version));
    }
}
