//! Tests of `validate`, which needs no node.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::{Run, authority, generate, run};

/// Validates the config of `gen config` followed by this text.
fn validate(directory: &Path, more: &str, options: &[&str]) -> Run {
    let made = std::fs::read_to_string(directory.join("machine.yaml")).unwrap();
    std::fs::write(directory.join("changed.yaml"), made + more).unwrap();
    let arguments = [&["validate", "--config", "changed.yaml"], options].concat();
    run(directory, &arguments)
}

#[test]
fn a_generated_config_is_valid_without_a_node() {
    let directory = generate("127.0.0.1:1");
    let checked = run(
        directory.path(),
        &[
            "validate",
            "-c",
            "machine.yaml",
            "-m",
            "cloud",
            "-o",
            "json",
        ],
    );
    checked.exits(0);
    assert_eq!(checked.json()["valid"], true);
    let warnings = &checked.json()["warnings"];
    assert_eq!(warnings.as_array().map(Vec::len), Some(0), "{warnings}");
    let text = std::fs::File::open(directory.path().join("machine.yaml")).unwrap();
    let from_input = Command::new(env!("CARGO_BIN_EXE_instarctl"))
        .args(["validate", "-c", "-"])
        .stdin(text)
        .output()
        .unwrap();
    let from_input = Run(from_input);
    let said = from_input.exits(0).out();
    assert_eq!(said, "standard input is valid\n");
}

#[test]
fn an_invalid_config_fails_with_the_place_of_each_problem() {
    let directory = generate("127.0.0.1:1");
    for (more, place) in [
        (
            "---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostnam: a\n",
            "HostnameConfig): hostnam: ",
        ),
        (
            "---\napiVersion: v1alpha1\nkind: TimeSyncConfig\nntp: {servers: [\"a b\"]}\n",
            "TimeSyncConfig): ntp.servers[0]: ",
        ),
        (
            "---\napiVersion: v1alpha1\nkind: HostConfig\nname: a\n",
            "kind: ",
        ),
    ] {
        let run = validate(directory.path(), more, &[]);
        run.exits(1).tells("changed.yaml is not valid:\nline ");
        run.tells(place);
        assert_eq!(run.out(), "");
    }
    let two = "---\napiVersion: v1alpha1\nkind: NoSuch\n---\napiVersion: v1alpha1\nkind: NorThis\n";
    validate(directory.path(), two, &[])
        .exits(1)
        .tells("NoSuch")
        .tells("NorThis");
    run(directory.path(), &["validate", "-c", "absent.yaml"])
        .exits(1)
        .tells("cannot read absent.yaml");
}

#[test]
fn an_authority_with_the_key_of_another_is_invalid() {
    let directory = generate("127.0.0.1:1");
    let key = BASE64_STANDARD.encode(authority(directory.path()).key_pem());
    let patch = format!("machine: {{ca: {{key: {key}}}}}");
    run(
        directory.path(),
        &[
            "gen",
            "config",
            "demo",
            "127.0.0.1:1",
            "--output-dir",
            "mixed",
            "--config-patch",
            &patch,
        ],
    )
    .exits(0);
    run(directory.path(), &["validate", "-c", "mixed/machine.yaml"])
        .exits(1)
        .tells("machine.ca: ");
}

#[test]
fn warnings_about_a_config_are_errors_where_it_has_to_be_strict() {
    let directory = generate("127.0.0.1:1");
    let not_served =
        "---\napiVersion: v1alpha1\nkind: KubeletConfig\nimage: example.org/kubelet:v1\n";
    let warned = validate(directory.path(), not_served, &[]);
    assert!(
        warned.exits(0).out().contains("warning: KubeletConfig: "),
        "{}",
        warned.out()
    );
    validate(directory.path(), not_served, &["--strict"])
        .exits(1)
        .tells("KubeletConfig: ");
    // A metal machine without a disk works, but keeps no data.
    let diskless = validate(directory.path(), "", &["-m", "metal"]);
    assert!(
        diskless
            .exits(0)
            .out()
            .contains("warning: machine.install: ")
    );
    validate(directory.path(), "", &["-m", "metal", "--strict"]).exits(1);
    validate(directory.path(), "", &["-m", "container"])
        .exits(2)
        .tells("--mode metal");
}
