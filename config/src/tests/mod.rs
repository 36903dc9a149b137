//! Whole configs, good and bad, against golden files below `tests/data/config`.
//!
//! `INSTAR_BLESS=1 cargo test -p instar-config` rewrites the golden files; read the difference before you commit it.

#![allow(clippy::unwrap_used, clippy::panic)]

mod bad;
mod both_shapes;
mod extensions;
mod golden;
mod hostile;
mod kubernetes;
mod manifests;
mod served;

use std::path::PathBuf;

use super::{ConfigErrors, Parsed, parse};

/// The smallest valid machine document.
fn machine() -> String {
    let certificate = fixture_certificate();
    format!("version: v1alpha1\nmachine:\n  type: worker\n  ca:\n    crt: {certificate}\n")
}

/// The CA's certificate of a fixture, so that the tests need not make one.
fn fixture_certificate() -> String {
    let fixture = std::fs::read_to_string(data("1.14/worker.yaml")).unwrap();
    let line = fixture
        .lines()
        .find(|line| line.trim_start().starts_with("crt: "))
        .unwrap();
    line.trim_start().trim_start_matches("crt: ").to_owned()
}

/// Parses the smallest machine document together with these documents.
fn with(documents: &str) -> Result<Parsed, ConfigErrors> {
    parse(format!("{}---\n{documents}", machine()).as_bytes())
}

fn data(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests/data", path]
        .iter()
        .collect()
}

/// Compares with a golden file, or writes it if `INSTAR_BLESS` is set.
fn assert_golden(path: &str, found: &str) {
    let path = data(path);
    if std::env::var_os("INSTAR_BLESS").is_some() {
        std::fs::write(&path, found).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        expected == found,
        "{} differs; INSTAR_BLESS=1 writes it anew.\n--- expected\n{expected}\n--- found\n{found}",
        path.display()
    );
}
