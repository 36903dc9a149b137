//! From a pool to the engine's policy, and to what its nodes are to have.

use std::time::Duration;

use instar_rollout::{Policy, Seconds};
use instar_rollout_driver::ConfigChange;
use serde_json::json;

use crate::api::{OnDrainTimeout, PoolSpec};
use crate::drain::Drain;

/// How long pods of one node have to go.
const DRAIN: Duration = Duration::from_secs(600);
/// Limits of a pool's patches, as its definition has them: their number, and the length of each.
const MOST_PATCHES: usize = 16;
const LONGEST_PATCH: usize = 16384;

/// The engine's policy of a pool.
///
/// # Errors
/// A field has a value that the engine does not take; says which, and why.
pub(crate) fn policy(spec: &PoolSpec) -> Result<Policy, String> {
    for wave in &spec.policy.waves {
        let select = &wave.select;
        let chosen = [
            select.count.is_some(),
            select.share.is_some(),
            select.label.is_some(),
        ];
        if chosen.into_iter().filter(|is_set| *is_set).count() != 1 {
            return Err(
                "policy.waves: a wave selects by exactly one of count, share and label".to_owned(),
            );
        }
    }
    // The document of the resource is that of the engine: the same names, the same texts.
    let document = serde_json::to_value(&spec.policy).unwrap_or_else(|_| json!({}));
    let mut policy: Policy =
        serde_json::from_value(document).map_err(|error| format!("policy: {error}"))?;
    if policy.at_once.is_none() && policy.share.is_none() {
        policy.at_once = Some(std::num::NonZeroU32::MIN);
    }
    drain_timeout(spec, policy.patience)?;
    Ok(policy)
}

/// The version that the nodes of a pool are to run, as the pool names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The image of this name, with a tag or a digest.
    Image(String),
    /// The newest release of this Channel.
    Channel(String),
    /// The version that they run: the pool is about their configs alone.
    AnyVersion,
}

/// The version that the nodes of a pool are to run, as the pool names it.
///
/// # Errors
/// It names both, or none and no patches, or an image without exactly one of tag, digest and version.
pub(crate) fn wanted(spec: &PoolSpec) -> Result<Wanted, String> {
    let image = match (&spec.image, &spec.channel) {
        (None, Some(channel)) if spec.version.is_none() => {
            return Ok(Wanted::Channel(channel.clone()));
        }
        (None, None) if spec.version.is_none() && !spec.config_patches.is_empty() => {
            return Ok(Wanted::AnyVersion);
        }
        (Some(image), None) => image,
        _ => {
            let why = "set either image (and version) or channel, or configPatches alone";
            return Err(why.to_owned());
        }
    };
    let last = image.rsplit('/').next().unwrap_or_default();
    let is_exact = last.contains(':') || image.contains('@');
    match (&spec.version, is_exact) {
        (None, true) => Ok(Wanted::Image(image.clone())),
        (Some(version), false) => Ok(Wanted::Image(format!("{image}:{version}"))),
        (None, false) => Err("image: it has neither a tag nor a digest: set version".to_owned()),
        (Some(_), true) => Err("version: the image has a tag or a digest already".to_owned()),
    }
}

/// The change that the configs of a pool's nodes are to get; none if it has no patches.
///
/// # Errors
/// A patch cannot be read, or there are too many, or one is too long; says which.
pub(crate) fn config(spec: &PoolSpec) -> Result<Option<ConfigChange>, String> {
    let patches = &spec.config_patches;
    if patches.len() > MOST_PATCHES {
        let number = patches.len();
        return Err(format!(
            "configPatches: {number} are more than {MOST_PATCHES}"
        ));
    }
    let too_long = |patch: &String| patch.chars().count() > LONGEST_PATCH;
    if let Some(place) = patches.iter().position(too_long) {
        let number = place + 1;
        return Err(format!(
            "configPatches: patch {number} has more than {LONGEST_PATCH} characters"
        ));
    }
    if patches.is_empty() {
        return Ok(None);
    }
    let change = ConfigChange::of_patches(patches.clone());
    let change = change.map_err(|failure| format!("configPatches: {}", failure.chain()))?;
    Ok(Some(change))
}

/// How long pods have to go. The patience is for all of a node's upgrade: a drain that takes it up ends as a node that did not prove itself.
///
/// # Errors
/// It is no duration, or as long as the patience.
pub(crate) fn drain_timeout(spec: &PoolSpec, patience: Seconds) -> Result<Duration, String> {
    let patience = Duration::from_secs(patience.0);
    let Some(text) = &spec.drain.timeout else {
        return Ok(DRAIN.min(patience / 2));
    };
    let seconds: Seconds = text
        .parse()
        .map_err(|error| format!("drain.timeout: {error}"))?;
    let timeout = Duration::from_secs(seconds.0);
    if timeout >= patience {
        return Err(format!(
            "drain.timeout: {seconds} is not less than policy.patience, {}, the time for the whole upgrade of a node: nothing would be left for \
             the upgrade itself",
            Seconds(patience.as_secs())
        ));
    }
    Ok(timeout)
}

/// The drain of a pool's nodes. `policy`: that of the pool; none if it is not valid. A timeout that does not fit stays as it was before.
pub(crate) fn drain(spec: &PoolSpec, policy: Option<&Policy>, before: Drain) -> Drain {
    let told = match (policy, &spec.drain.timeout) {
        (Some(policy), _) => drain_timeout(spec, policy.patience).ok(),
        (None, Some(_)) => drain_timeout(spec, Seconds(u64::MAX)).ok(),
        (None, None) => None,
    };
    Drain {
        timeout: told.unwrap_or(before.timeout),
        force: spec.drain.on_timeout == Some(OnDrainTimeout::Force),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Approval, OnFailure, Select};
    use kube::CustomResourceExt as _;
    use serde_json::Value;

    use super::*;

    fn spec(changes: Value) -> PoolSpec {
        let mut spec = json!({"nodeSelector": {}, "image": "r/i:v0.2.0"});
        for (key, value) in changes.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn the_drain_is_known_also_where_the_policy_is_not_valid() {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        let before = Drain {
            timeout: minutes(3),
            force: true,
        };
        let bad = json!({"windows": ["never"]});
        for (spec, timeout, force) in [
            (json!({}), 10, false),
            (
                json!({"drain": {"timeout": "20m", "onTimeout": "Force"}}),
                20,
                true,
            ),
            (
                json!({"policy": bad, "drain": {"timeout": "20m", "onTimeout": "Force"}}),
                20,
                true,
            ),
            (json!({"policy": bad}), 3, false),
            (
                json!({"drain": {"timeout": "soon", "onTimeout": "GiveUp"}}),
                3,
                false,
            ),
        ] {
            let spec = self::spec(spec);
            let drain = drain(&spec, policy(&spec).as_ref().ok(), before);
            assert_eq!((drain.timeout, drain.force), (minutes(timeout), force));
        }
    }

    #[test]
    fn every_field_reaches_the_engine() {
        let full = policy(&spec(json!({"policy": {
            "atOnce": 2, "share": 25, "rate": {"machines": 2, "per": "1h"},
            "waves": [{"select": {"label": "canary=yes"}, "soak": "10m"}, {"select": {"count": 3}}, {"select": {"share": 10}}],
            "windows": ["Sat,Sun 02:00-05:00 +01:00"], "prepareFirst": true, "approval": "waves",
            "maxFailures": 2, "onFailure": "rollback", "patience": "20m",
        }})))
        .unwrap();
        assert_eq!(full.at_once.map(|it| it.get()), Some(2));
        assert_eq!(full.share.map(u8::from), Some(25));
        assert_eq!(full.rate.unwrap().per, Seconds(3600));
        assert_eq!(full.waves[0].soak, Seconds(600));
        assert!(matches!(full.waves[1].select, Select::Count(count) if count.get() == 3));
        assert_eq!((full.windows.len(), full.prepare_first), (1, true));
        assert_eq!(
            (full.approval, full.on_failure),
            (Approval::Waves, OnFailure::Rollback)
        );
        assert_eq!((full.max_failures.get(), full.patience), (2, Seconds(1200)));
        let plain = policy(&spec(json!({}))).unwrap();
        assert_eq!(plain.at_once.map(|it| it.get()), Some(1));
        assert_eq!(plain.patience, Seconds(1800));
    }

    #[test]
    fn a_mistake_is_named() {
        for (changes, why) in [
            (
                json!({"policy": {"windows": ["Mon 25:00-26:00"]}}),
                "policy: ",
            ),
            (json!({"policy": {"patience": "soon"}}), "soon"),
            (json!({"policy": {"atOnce": 0}}), "policy: "),
            (json!({"policy": {"share": 101}}), "1 to 100"),
            (
                json!({"policy": {"waves": [{"select": {}}]}}),
                "exactly one",
            ),
            (
                json!({"policy": {"waves": [{"select": {"count": 1, "share": 2}}]}}),
                "exactly one",
            ),
            (json!({"drain": {"timeout": "1 h"}}), "drain.timeout"),
            (
                json!({"drain": {"timeout": "30m"}}),
                "drain.timeout: 30m is not less than policy.patience, 30m",
            ),
            (
                json!({"drain": {"timeout": "10m"}, "policy": {"patience": "5m"}}),
                "not less than policy.patience, 5m",
            ),
        ] {
            let error = policy(&spec(changes.clone())).unwrap_err();
            assert!(error.contains(why), "{changes}: {error}");
        }
    }

    #[test]
    fn a_drain_leaves_time_for_the_upgrade() {
        for (changes, seconds) in [
            (json!({}), 600),
            (json!({"policy": {"patience": "5m"}}), 150),
            (json!({"drain": {"timeout": "29m"}}), 1740),
        ] {
            let spec = spec(changes.clone());
            let patience = policy(&spec).unwrap().patience;
            let timeout = drain_timeout(&spec, patience).unwrap();
            assert_eq!(timeout.as_secs(), seconds, "{changes}");
        }
    }

    #[test]
    fn an_image_is_exact_or_a_channels() {
        let image = |name: &str| Some(Wanted::Image(name.to_owned()));
        let channel = Some(Wanted::Channel("stable".to_owned()));
        for (fields, expected) in [
            (json!({"image": "r:5000/i:v1"}), image("r:5000/i:v1")),
            (
                json!({"image": "r:5000/i@sha256:ab"}),
                image("r:5000/i@sha256:ab"),
            ),
            (
                json!({"image": "r:5000/i", "version": "v2"}),
                image("r:5000/i:v2"),
            ),
            (json!({"image": "r:5000/i"}), None),
            (json!({"image": "r:5000/i:v1", "version": "v2"}), None),
            (json!({"image": null, "channel": "stable"}), channel),
            (json!({"image": "r/i:v1", "channel": "stable"}), None),
            (
                json!({"image": null, "channel": "stable", "version": "v1"}),
                None,
            ),
            (json!({"image": null}), None),
            (
                json!({"image": null, "configPatches": ["{}"]}),
                Some(Wanted::AnyVersion),
            ),
            (
                json!({"image": null, "version": "v1", "configPatches": ["{}"]}),
                None,
            ),
            (
                json!({"image": "r:5000/i:v1", "configPatches": ["{}"]}),
                image("r:5000/i:v1"),
            ),
        ] {
            assert_eq!(wanted(&spec(fields.clone())).ok(), expected, "{fields}");
        }
    }

    #[test]
    fn patches_are_read_and_bounded() {
        let patches = |texts: Vec<String>| config(&spec(json!({ "configPatches": texts })));
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(patches(Vec::new()), Ok(None));
        let two: Vec<String> = texts(&["machine: {type: worker}", "[{op: remove, path: /a}]"]);
        let change = patches(two.clone()).unwrap();
        assert_eq!(change, Some(ConfigChange::Patches(two)));
        let long = "#".repeat(LONGEST_PATCH + 1);
        for (wrong, why) in [
            (texts(&["{}", "just words"]), "patch 2 is no patch"),
            (texts(&["@/etc/hostname"]), "cannot read the patch"),
            (texts(&["{}", &long]), "patch 2 has more than"),
            (vec!["{}".to_owned(); MOST_PATCHES + 1], "17 are more than"),
        ] {
            let error = patches(wrong).unwrap_err();
            assert!(
                error.starts_with("configPatches: ") && error.contains(why),
                "{error}"
            );
        }
    }

    #[test]
    fn the_definition_of_a_pool_has_the_same_limits() {
        let definition = serde_json::to_value(crate::api::Pool::crd()).unwrap();
        let spec =
            "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/configPatches";
        let patches = definition.pointer(spec).unwrap();
        assert_eq!(patches["maxItems"], MOST_PATCHES);
        assert_eq!(patches["items"]["maxLength"], LONGEST_PATCH);
    }
}
