//! The version and patches of configs that a pool names; the version by an image or by a channel.

use instar_rollout::{MachineName, Phase, Record, Release, Step};
use instar_rollout_driver::ConfigChange;
use instar_values::Version;

use crate::api::{Kind, Pool, Rollout};
use crate::cluster::Cluster;
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
                let record = kept.last(Kind::Version).map(|(_, record)| record);
                let release = of_channel(cluster, &name, nodes, record)?;
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
        let last = kept.last(Kind::Version);
        let named = last.filter(|_| self.version.is_some() && self.is_for(Kind::Version, node));
        named.is_none_or(|(_, record)| node.version.as_ref() == Some(&record.target.version))
    }

    /// Whether the version is the release of a channel: who runs a newer one is not taken back.
    fn follows_a_channel(&self) -> bool {
        matches!(self.version, Some(NamedVersion::Release(_)))
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
        let side = |kind, is_meant: &dyn Fn(&Rollout, &Record) -> bool| Side {
            last: kept.last(kind).map(|(rollout, record)| Last {
                record,
                is_meant: is_meant(rollout, record),
                is_due: nodes
                    .iter()
                    .any(|node| self.is_for(kind, node) && is_due(kind, node, record)),
            }),
        };
        // All of them run a release that was withdrawn: it sends nobody back.
        let run_newer =
            self.follows_a_channel() && !nodes.iter().any(|node| self.is_for(Kind::Version, node));
        let image = self.image(kept);
        let version = image.map(|image| {
            // An operator from before configs that took over for a moment leaves a rollout of configs as one of a version, with its image. Only a
            // version leads to an image.
            let is_meant = |rollout: &Rollout, record: &Record| {
                run_newer || rollout.image == image && record.target.image.is_some()
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
    record: Option<&Record>,
) -> Result<step::Step, Invalid> {
    let none = |why: &str| Invalid::new("NoRelease", format!("channel {name}: {why}"));
    let channel = cluster.channel(name);
    let channel = channel.ok_or_else(|| none("there is none of this name"))?;
    let status = channel.status.clone().unwrap_or_default();
    let steps = step::steps(&status);
    let has_failed = |node: &NodeView, version: &Version| {
        record.is_some_and(|record| is_left_behind(record, node, version))
    };
    match step::next(&steps, nodes, has_failed) {
        Ok(Some(next)) => Ok(next.clone()),
        Ok(None) if status.message.is_empty() => Err(none("its list was not read yet")),
        Ok(None) => Err(none(&status.message)),
        Err(why) => Err(none(&why)),
    }
}

/// Whether a node has failed at this version, and the rollout was done without it.
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
}
