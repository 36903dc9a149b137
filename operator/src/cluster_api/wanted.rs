//! The wanted state of a machine, as its objects say it, and the pool that brings its node there. Pure.
//!
//! CanUpdate asks this of the objects of a request before it promises anything; UpdateMachine, of the objects in the management cluster.

use std::collections::BTreeMap;
use std::fmt;

use instar_values::Version;
use serde_json::Value;

use super::config_patches;
use super::settings::Settings;
use crate::api::PoolSpec;
use crate::policy;

/// The specs of a machine's objects; null where there is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Specs<'a> {
    pub(super) machine: &'a Value,
    pub(super) infrastructure_machine: &'a Value,
    pub(super) bootstrap_config: &'a Value,
}

/// The wanted state of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The OS's image.
    pub(super) image: String,
    /// The version of Kubernetes, where that changes in place.
    pub(super) kubernetes: Option<Version>,
    /// The patches of its machine config: those of its bootstrap config, and that of Kubernetes. All of them, as nobody knows here which of them the
    /// node has already.
    pub(super) config_patches: Vec<String>,
}

impl Wanted {
    /// Reads it.
    ///
    /// # Errors
    /// No pool can bring a node there; says which field is the reason.
    pub(super) fn of(settings: &Settings, specs: Specs<'_>) -> Result<Self, String> {
        let image = settings.os_image.of(specs.infrastructure_machine);
        let image = image.and_then(Value::as_str).unwrap_or_default();
        if image.is_empty() {
            return Err(format!(
                "infrastructure machine {}: there is no image",
                settings.os_image
            ));
        }
        let mut wanted = Self {
            image: image.to_owned(),
            kubernetes: None,
            config_patches: Vec::new(),
        };
        if let Some(path) = &settings.config_patches
            && let Some(list) = path.of(specs.bootstrap_config)
        {
            let bad = |why: String| format!("bootstrap config {path}: {why}");
            wanted.config_patches = config_patches::listed(list).map_err(bad)?;
        }
        if let Some(patch) = &settings.kubernetes_patch
            && let Some(version) = specs.machine["version"].as_str()
        {
            let version: Version = version
                .parse()
                .map_err(|error| format!("machine /spec/version: {error}"))?;
            wanted.config_patches.push(patch.filled_in(&version));
            wanted.kubernetes = Some(version);
        }
        wanted.check(settings)?;
        Ok(wanted)
    }

    /// Whether the operator takes its pool.
    fn check(&self, settings: &Settings) -> Result<(), String> {
        let pool = self.pool(settings, BTreeMap::new());
        let bad = |why| format!("{}: {}: {why}", settings.os_image, self.image);
        policy::wanted(&pool).map_err(bad)?;
        policy::config(&pool)?;
        config_patches::check_that_they_can_be_repeated(&self.config_patches)
    }

    /// The spec of the pool that brings the node with these labels there.
    pub(super) fn pool(&self, settings: &Settings, labels: BTreeMap<String, String>) -> PoolSpec {
        PoolSpec {
            image: Some(self.image.clone()),
            config_patches: self.config_patches.clone(),
            ..settings.pool(labels)
        }
    }

    /// Whether a pool leads there.
    pub(super) fn is_of(&self, pool: &PoolSpec) -> bool {
        pool.image.as_ref() == Some(&self.image) && pool.config_patches == self.config_patches
    }
}

/// In words, as in "node worker is to run IMAGE with Kubernetes v1.37.0".
impl fmt::Display for Wanted {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.image)?;
        if let Some(version) = &self.kubernetes {
            write!(out, " with Kubernetes {version}")?;
        }
        match self.config_patches.len() - usize::from(self.kubernetes.is_some()) {
            0 => Ok(()),
            1 => write!(out, " and 1 patch of its config"),
            several => write!(out, " and {several} patches of its config"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn settings(settings: Value) -> Settings {
        let settings = serde_json::from_value(settings).unwrap();
        Settings::of_machine(&settings, &Value::Null).unwrap()
    }

    fn wanted(settings: &Settings, objects: [Value; 3]) -> Result<Wanted, String> {
        let [machine, infrastructure_machine, bootstrap_config] = &objects;
        let specs = Specs {
            machine,
            infrastructure_machine,
            bootstrap_config,
        };
        Wanted::of(settings, specs)
    }

    fn objects() -> [Value; 3] {
        [
            json!({"version": "v1.36.3"}),
            json!({"osImage": "r/i:v2"}),
            json!({"patches": ["machine: {sysctls: {a: '1'}}", "machine: {env: {B: c}}"]}),
        ]
    }

    #[test]
    fn without_settings_it_is_the_image_alone() {
        let wanted = wanted(&settings(json!({})), objects()).unwrap();
        assert_eq!(wanted.to_string(), "r/i:v2");
        assert_eq!(wanted.kubernetes, None);
        assert!(wanted.config_patches.is_empty());
    }

    #[test]
    fn patches_of_the_bootstrap_config_come_before_that_of_kubernetes() {
        let both = settings(json!({
            "kubernetesPatch": "kind: X\nimage: r/k:{version}", "configPatchesPath": "/spec/patches",
        }));
        let wanted = wanted(&both, objects()).unwrap();
        assert_eq!(
            wanted.config_patches,
            [
                "machine: {sysctls: {a: '1'}}",
                "machine: {env: {B: c}}",
                "kind: X\nimage: r/k:v1.36.3",
            ]
        );
        let words = "r/i:v2 with Kubernetes v1.36.3 and 2 patches of its config";
        assert_eq!(wanted.to_string(), words);
        let pool = wanted.pool(&both, BTreeMap::new());
        assert!(wanted.is_of(&pool));
        for other in [
            PoolSpec {
                config_patches: Vec::new(),
                ..pool.clone()
            },
            PoolSpec {
                image: None,
                ..pool.clone()
            },
        ] {
            assert!(!wanted.is_of(&other), "{other:?}");
        }
    }

    #[test]
    fn objects_without_a_version_or_patches_ask_for_none() {
        let both = settings(json!({
            "kubernetesPatch": "image: r/k:{version}", "configPatchesPath": "/spec/patches",
        }));
        for bootstrap in [Value::Null, json!({}), json!({"patches": []})] {
            let objects = [json!({}), json!({"osImage": "r/i:v2"}), bootstrap];
            assert_eq!(wanted(&both, objects).unwrap().to_string(), "r/i:v2");
        }
    }

    #[test]
    fn a_field_that_no_pool_can_have_is_named() {
        let both = settings(json!({
            "kubernetesPatch": "image: r/k:{version}", "configPatchesPath": "/spec/patches",
        }));
        let many = vec!["{}"; 16];
        for (place, spec, words) in [
            (0, json!({"version": "1.36"}), "machine /spec/version"),
            (0, json!({"version": "v1.36.3+a"}), "machine /spec/version"),
            (1, json!({}), "infrastructure machine /spec/osImage"),
            (
                1,
                json!({"osImage": ""}),
                "infrastructure machine /spec/osImage",
            ),
            (1, json!({"osImage": "r/i"}), "neither a tag nor a digest"),
            (2, json!({"patches": "x"}), "bootstrap config /spec/patches"),
            (
                2,
                json!({"patches": [{}]}),
                "bootstrap config /spec/patches",
            ),
            // With that of Kubernetes.
            (2, json!({ "patches": many }), "17 are more than 16"),
            (2, json!({"patches": ["a: b", "words"]}), "patch 2"),
            (2, json!({"patches": ["a: b", "a: [b]"]}), "patch 2"),
        ] {
            let mut objects = objects();
            objects[place] = spec;
            let why = wanted(&both, objects).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
