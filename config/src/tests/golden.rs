//! The output of Talos's own tool loads, with exactly these warnings and this model.

use super::{super::*, assert_golden, data};

fn load(name: &str) -> Parsed {
    parse(&std::fs::read(data(&format!("{name}.yaml"))).unwrap())
        .unwrap_or_else(|errors| panic!("{name}:\n{errors}"))
}

fn golden(name: &str) -> MachineConfig {
    let parsed = load(name);
    let warnings: String = parsed
        .warnings
        .iter()
        .map(|warning| format!("{warning}\n"))
        .collect();
    assert_golden(&format!("{name}.warnings"), &warnings);
    // Replaced by a placeholder: a PEM in the golden file would tell its reader nothing.
    let mut config = parsed.config;
    assert!(
        config.trust.ca.starts_with("-----BEGIN CERTIFICATE-----\n"),
        "{}",
        config.trust.ca
    );
    config.trust.ca = "(PEM)".into();
    assert_golden(&format!("{name}.model"), &format!("{config:#?}\n"));
    config
}

#[test]
fn v1_13_controlplane() {
    let config = golden("1.13/controlplane");
    assert!(
        config
            .trust
            .ca_key
            .unwrap()
            .expose()
            .starts_with("-----BEGIN PRIVATE KEY-----\n")
    );
    assert_eq!(
        config.install.unwrap().selector,
        DiskSelector::Path("/dev/vda".parse().unwrap())
    );
}

#[test]
fn v1_13_worker() {
    assert_eq!(golden("1.13/worker").trust.ca_key, None);
}

#[test]
fn v1_14_controlplane() {
    let config = golden("1.14/controlplane");
    assert_eq!(config.machine_type, MachineType::ControlPlane);
    assert!(config.trust.ca_key.is_some());
}

#[test]
fn v1_14_worker() {
    assert_eq!(golden("1.14/worker").machine_type, MachineType::Worker);
}

/// All served settings give the same model in the new shape and in the old one.
#[test]
fn both_shapes_mean_the_same() {
    let old = golden("served-1.13");
    let new = golden("served-1.14");
    assert_eq!(old.hostname, new.hostname);
    assert_eq!(old.network, new.network);
    assert_eq!(old.time, new.time);
    assert_eq!(old.registries, new.registries);
    assert_eq!((old.sysctls, old.sysfs), (new.sysctls, new.sysfs));
    assert_eq!(old.kernel_modules, new.kernel_modules);
    assert_eq!(old.environment, new.environment);
    assert_eq!(old.install.unwrap().image, new.install.unwrap().image);
}

/// The examples in the documentation load without warnings.
#[test]
fn the_documented_examples_load() {
    let document = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../docs/machine-config.md"
    ))
    .unwrap();
    let examples: Vec<&str> = document.split("```yaml\n").skip(1).collect();
    let load = |example: &&str| {
        let (example, _) = example.split_once("```").unwrap();
        let parsed = super::with(example).unwrap_or_else(|errors| panic!("{example}{errors}"));
        assert!(parsed.warnings.is_empty(), "{:?}", parsed.warnings);
        parsed
    };
    let [one, rules, parsed]: [Parsed; 3] = examples
        .iter()
        .map(load)
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    assert_eq!(one.config.containers.len(), 1);
    assert_eq!(rules.config.image_rules.len(), 3);
    let [database, web] = parsed.config.containers.as_slice() else {
        panic!()
    };
    assert_eq!(database.name.as_str(), "database");
    assert!(web.health.as_ref().unwrap().required);
    assert_eq!(parsed.config.upgrade_gate.probes.len(), 1);
}

#[test]
fn no_secret_is_shown() {
    let parsed = load("1.13/controlplane");
    let shown = format!("{parsed:?}");
    assert!(!shown.contains("PRIVATE KEY"), "{shown}");
    assert!(!shown.contains("djoi8k.d1c8s6ua0nslqt64"), "{shown}");
    let shown = format!("{:?}", load("served-1.14"));
    for secret in ["hunter2", "PRIVATE KEY", "s3cret"] {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}
