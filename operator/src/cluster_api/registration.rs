//! Whether the settings of a call are an administrator's.
//!
//! Each call brings the settings of the ExtensionConfig, and anybody in reach may make a call. One of them is a patch of machine configs: so an
//! update goes on only by settings that an ExtensionConfig of the management cluster has, word by word.

use std::collections::BTreeMap;

use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use serde_json::Value;

use super::trouble::Trouble;

/// Checks them.
pub(super) async fn check(
    management: &Client,
    settings: &BTreeMap<String, String>,
) -> Result<(), Trouble> {
    let kind = GroupVersionKind::gvk("runtime.cluster.x-k8s.io", "v1beta2", "ExtensionConfig");
    let api: Api<DynamicObject> = Api::all_with(management.clone(), &ApiResource::from_gvk(&kind));
    let listed = api.list(&ListParams::default()).await;
    let listed = listed.map_err(Trouble::of("ExtensionConfigs cannot be listed"))?;
    let mut specs = listed.items.iter().map(|config| &config.data["spec"]);
    match specs.any(|spec| has(spec, settings)) {
        true => Ok(()),
        // A manager may have the previous settings for a moment.
        false => Err(Trouble::Passing(
            "no ExtensionConfig has the settings of the call: a manager that has those of before asks again with the new ones".to_owned(),
        )),
    }
}

/// Whether an ExtensionConfig with this spec has these settings, and no others.
fn has(spec: &Value, settings: &BTreeMap<String, String>) -> bool {
    let own = spec["settings"].as_object();
    let own = own.into_iter().flatten();
    let own = own.map(|(name, value)| Some((name.as_str(), value.as_str()?)));
    let asked = settings.iter();
    let asked = asked.map(|(name, value)| (name.as_str(), value.as_str()));
    own.collect::<Option<BTreeMap<_, _>>>() == Some(asked.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_are_the_same_word_by_word() {
        let asked = |settings: &[(&str, &str)]| {
            let settings = settings.iter();
            let settings = settings.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            settings.collect::<BTreeMap<_, _>>()
        };
        let patch = asked(&[("kubernetesPatch", "x: {version}"), ("patience", "1h")]);
        for (spec, settings, expected) in [
            (
                json!({"settings": {"patience": "1h", "kubernetesPatch": "x: {version}"}}),
                &patch,
                true,
            ),
            (
                json!({"settings": {"patience": "1h", "kubernetesPatch": "y: {version}"}}),
                &patch,
                false,
            ),
            (json!({"settings": {"patience": "1h"}}), &patch, false),
            (json!({}), &patch, false),
            (json!({}), &asked(&[]), true),
            (json!({"settings": null}), &asked(&[]), true),
            (json!({"settings": {"patience": "1h"}}), &asked(&[]), false),
        ] {
            assert_eq!(has(&spec, settings), expected, "{spec}");
        }
    }
}
