//! Commands that need no node.

use super::*;

#[test]
fn configuration_that_is_missing_or_bad() {
    let directory = tempfile::tempdir().unwrap();
    run(directory.path(), &["version"])
        .exits(2)
        .tells("gen config");
    std::fs::write(directory.path().join("talosconfig"), "contexts: 5\n").unwrap();
    run(directory.path(), &["version"])
        .exits(2)
        .tells("talosconfig");
    let other = generate("127.0.0.1:1");
    run(other.path(), &["version", "--context", "nope"])
        .exits(2)
        .tells("it has demo");
    run(other.path(), &["nonsense"]).exits(2);
}

#[test]
fn generating_twice_is_refused() {
    let directory = generate("127.0.0.1:1");
    run(directory.path(), &["gen", "config", "demo", "127.0.0.1:1"])
        .exits(5)
        .tells("--force");
    run(
        directory.path(),
        &["gen", "config", "demo", "127.0.0.1:1", "--force"],
    )
    .exits(0);
    run(directory.path(), &["gen", "config", "demo", "http://x"]).exits(2);
}

#[test]
fn completions_and_help_need_no_node() {
    let directory = tempfile::tempdir().unwrap();
    assert!(
        run(directory.path(), &["completion", "bash"])
            .exits(0)
            .out()
            .contains("instarctl")
    );
    assert!(
        run(directory.path(), &["--help"])
            .exits(0)
            .out()
            .contains("rolled back")
    );
}
