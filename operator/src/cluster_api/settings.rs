//! The settings of an ExtensionConfig, which come with every call.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::field_path::FieldPath;
use super::kubernetes::KubernetesPatch;
use crate::api::{Drain, NEVER_REPLACE, PoolSpec, Strategy};
use crate::policy;

/// The settings of the user.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Settings {
    /// Where an infrastructure machine names the OS's image.
    pub(super) os_image: FieldPath,
    /// How Kubernetes of a machine changes; without it, it does not in place.
    pub(super) kubernetes_patch: Option<KubernetesPatch>,
    /// Where a bootstrap config lists patches of the machine config; without it, no bootstrap config changes in place.
    pub(super) config_patches: Option<FieldPath>,
    /// Whether a machine that cannot be updated in place stays as it is, instead of being replaced.
    pub(super) never_replace: bool,
    /// How the pods of a node leave.
    pub(super) drain: Drain,
    /// The time that an update has, as a pool says it.
    pub(super) patience: Option<String>,
    /// The same time, also where nothing is set.
    pub(super) limit: Duration,
}

const NAMES: &str =
    "osImagePath, kubernetesPatch, configPatchesPath, neverReplace, drainTimeout, patience";

impl Settings {
    /// Reads those of a Machine with these annotations, which may be null: the Machine itself may be one that is never replaced.
    ///
    /// # Errors
    /// As [`Self::read`], also for the annotation.
    pub(super) fn of_machine(
        settings: &BTreeMap<String, String>,
        annotations: &Value,
    ) -> Result<Self, String> {
        let mut read = Self::read(settings)?;
        read.never_replace |= match annotations[NEVER_REPLACE].as_str() {
            None | Some("false") => false,
            Some("true") => true,
            Some(other) => {
                return Err(format!(
                    "annotation {NEVER_REPLACE}: {other} is neither true nor false"
                ));
            }
        };
        Ok(read)
    }

    /// Reads them.
    ///
    /// # Errors
    /// A setting is not known or has no meaning; says which. A misspelt `neverReplace` must not replace machines.
    fn read(settings: &BTreeMap<String, String>) -> Result<Self, String> {
        let mut read = Self {
            os_image: "/spec/osImage".parse()?,
            kubernetes_patch: None,
            config_patches: None,
            never_replace: false,
            drain: Drain::default(),
            patience: None,
            limit: Duration::ZERO,
        };
        for (name, value) in settings {
            let bad = |why: String| format!("settings.{name} of the ExtensionConfig: {why}");
            match name.as_str() {
                "osImagePath" => read.os_image = value.parse().map_err(bad)?,
                "kubernetesPatch" => read.kubernetes_patch = Some(value.parse().map_err(bad)?),
                "configPatchesPath" => read.config_patches = Some(value.parse().map_err(bad)?),
                "neverReplace" => {
                    let parsed = value.parse();
                    read.never_replace =
                        parsed.map_err(|_| bad(format!("{value} is neither true nor false")))?;
                }
                "drainTimeout" => read.drain.timeout = Some(value.clone()),
                "patience" => read.patience = Some(value.clone()),
                _ => return Err(bad(format!("there is no such setting, only {NAMES}"))),
            }
        }
        let policy = policy::policy(&read.pool(BTreeMap::new()))
            .map_err(|why| format!("settings of the ExtensionConfig: {why}"))?;
        read.limit = Duration::from_secs(policy.patience.0);
        Ok(read)
    }

    /// The spec of a pool of the node with these labels, before it names what the node is to become.
    pub(super) fn pool(&self, labels: BTreeMap<String, String>) -> PoolSpec {
        PoolSpec {
            node_selector: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector {
                match_labels: Some(labels),
                ..Default::default()
            },
            image: None,
            version: None,
            channel: None,
            strategy: Strategy::InPlace,
            config_patches: Vec::new(),
            policy: crate::api::Policy {
                patience: self.patience.clone(),
                ..Default::default()
            },
            drain: self.drain.clone(),
            after: Vec::new(),
            paused: false,
            approved_waves: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(settings: &[(&str, &str)]) -> Result<Settings, String> {
        let settings = settings.iter();
        let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Settings::of_machine(&settings.collect(), &Value::Null)
    }

    #[test]
    fn a_machine_itself_may_be_one_that_is_never_replaced() {
        let read = |value: &str| {
            let annotations = serde_json::json!({ NEVER_REPLACE: value });
            Settings::of_machine(&BTreeMap::new(), &annotations)
        };
        assert!(read("true").unwrap().never_replace);
        assert!(!read("false").unwrap().never_replace);
        assert!(read("yes").unwrap_err().contains(NEVER_REPLACE));
    }

    #[test]
    fn settings_have_defaults() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.os_image.to_string(), "/spec/osImage");
        assert!(!settings.never_replace);
        assert_eq!(settings.kubernetes_patch, None);
        assert_eq!(settings.config_patches, None);
        assert_eq!(settings.limit.as_secs(), 1800);
        let all = [
            ("osImagePath", "/spec/os/image"),
            ("kubernetesPatch", "image: r/k:{version}"),
            ("configPatchesPath", "/spec/strategicPatches"),
            ("neverReplace", "true"),
            ("drainTimeout", "5m"),
            ("patience", "1h"),
        ];
        let settings = read(&all).unwrap();
        assert!(settings.never_replace);
        assert!(settings.kubernetes_patch.is_some());
        let path = settings.config_patches.as_ref().unwrap();
        assert_eq!(path.to_string(), "/spec/strategicPatches");
        assert_eq!(settings.limit.as_secs(), 3600);
        let pool = settings.pool(BTreeMap::new());
        assert_eq!(pool.drain.timeout.as_deref(), Some("5m"));
        assert_eq!(pool.policy.patience.as_deref(), Some("1h"));
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (name, value) in [
            ("neverreplace", "true"),
            ("neverReplace", "yes"),
            ("osImagePath", "osImage"),
            ("kubernetesPatch", "image: r/k:v1.36.3"),
            ("configPatchesPath", "strategicPatches"),
            ("drainTimeout", "soon"),
            ("patience", "1 hour"),
        ] {
            let why = read(&[(name, value)]).unwrap_err();
            assert!(why.contains("ExtensionConfig"), "{why}");
        }
    }
}
