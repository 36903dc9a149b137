//! Settings of the cluster that kubelet and the programs of a control plane share, in either shape of Talos's config.

use std::collections::BTreeMap;

use super::{super::section::Section, Documents};

/// Returns the section of the cluster's network.
pub(super) fn network<'a>(documents: &Documents<'a>) -> Option<Section<'a>> {
    let of_cluster = documents.cluster.as_ref()?.section("network");
    of_cluster.or_else(|| documents.one("KubeNetworkConfig"))
}

/// Reads options, each with one value or several.
pub(super) fn arguments(section: &Section<'_>) -> BTreeMap<String, Vec<String>> {
    let given = section.json("extraArgs").unwrap_or_default();
    let text = |value: serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text),
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    let mut arguments = BTreeMap::new();
    for (name, value) in given {
        let values = match value {
            serde_json::Value::Array(values) => values.into_iter().map(text).collect(),
            value => text(value).map(|text| vec![text]),
        };
        // kubelet's unit splits its arguments at white space.
        let is_usable = |values: &Vec<String>| {
            let mut all = values.iter().chain([&name]);
            all.all(|text| !text.contains(char::is_whitespace))
        };
        match values.filter(is_usable) {
            Some(values) => drop(arguments.insert(name, values)),
            None => section.wrong_field(
                "extraArgs",
                format_args!("`{name}` needs a text without white space, or a list of those"),
            ),
        }
    }
    arguments
}
