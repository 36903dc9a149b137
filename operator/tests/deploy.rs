//! The files that people install are those that the program prints: the manifest and the Helm chart are generated.
//! `INSTAR_BLESS=1 cargo test -p instar-operator --test deploy` writes them anew.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use instar_operator::{cluster_api, manifest};
use serde_json::Value;

fn is_generated(file: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("INSTAR_BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == text,
        "{file} is not what the program prints: INSTAR_BLESS=1 writes it"
    );
}

#[test]
fn the_files_are_generated() {
    is_generated("deploy/instar-operator.yaml", &manifest::all().unwrap());
    is_generated(
        "deploy/instar-capi-extension.yaml",
        &cluster_api::manifest::management().unwrap(),
    );
    is_generated(
        "chart/crds/instar.dev.yaml",
        &manifest::definitions().unwrap(),
    );
    is_generated(
        "chart/templates/operator.yaml",
        &manifest::template().unwrap(),
    );
}

/// The objects of a text, which may be a template whose values are filled in.
fn objects(text: &str, values: &[(&str, &str)]) -> Vec<Value> {
    let mut text = text.to_owned();
    for (name, value) in values {
        text = text.replace(&format!("{{{{ {name} }}}}"), value);
    }
    assert!(!text.contains("{{"), "a value without a meaning: {text}");
    let objects = text.split("---\n");
    objects
        .map(|object| serde_saphyr::from_str(object).unwrap())
        .collect()
}

/// The chart's expressions are values alone, so that filling them in is all that helm does with it.
#[test]
fn the_chart_has_the_objects_of_the_manifest() {
    let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("chart");
    let values = std::fs::read_to_string(chart.join("values.yaml")).unwrap();
    let values: Value = serde_saphyr::from_str(&values).unwrap();
    let value = |name: &str| values[name].as_str().unwrap();
    let rendered = objects(
        &manifest::template().unwrap(),
        &[
            (".Release.Namespace", "instar-system"),
            (".Values.image", value("image")),
            (".Values.talosconfigSecret", value("talosconfigSecret")),
            (
                ".Values.configTalosconfigSecret",
                value("configTalosconfigSecret"),
            ),
        ],
    );
    let mut plain = objects(&manifest::all().unwrap(), &[]);
    let definitions = objects(&manifest::definitions().unwrap(), &[]);
    plain.retain(|object| object["kind"] != "Namespace" && !definitions.contains(object));
    assert_eq!(plain, rendered);
    let about = std::fs::read_to_string(chart.join("Chart.yaml")).unwrap();
    let about: Value = serde_saphyr::from_str(&about).unwrap();
    assert_eq!(
        about["appVersion"],
        format!("v{}", env!("CARGO_PKG_VERSION"))
    );
}
