//! Hostile input: it is refused soon, without a panic.

use std::{fmt::Write, time::Instant};

use super::{super::*, data, machine};

fn refused(text: &str) -> String {
    let start = Instant::now();
    let error = parse(text.as_bytes()).unwrap_err().to_string();
    // A generous limit, for a debug build on a busy machine. It must not take minutes.
    assert!(
        start.elapsed().as_secs() < 20,
        "{:?}: {error}",
        start.elapsed()
    );
    error
}

#[test]
fn too_long() {
    assert_eq!(
        refused(&"a: b\n".repeat(2 * 1024 * 1024)),
        "the config has 10485760 bytes, and at most 1048576 are read"
    );
}

#[test]
fn aliases_of_aliases() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let items = vec![format!("*a{}", i - 1); 10].join(", ");
        writeln!(text, "a{i}: &a{i} [{items}]").unwrap();
    }
    let error = refused(&text);
    assert!(error.contains("the config is too large"), "{error}");
}

#[test]
fn aliases_of_one_long_text() {
    let mut text = format!("a: &a {}\n", "x".repeat(500_000));
    for i in 0..1000 {
        writeln!(text, "b{i}: *a").unwrap();
    }
    let error = refused(&text);
    assert!(error.contains("the config is too large"), "{error}");
}

#[test]
fn an_alias_of_itself() {
    assert_eq!(
        refused("a: &a [*a]\n"),
        "line 1, column 8: this alias refers to a node that contains it"
    );
}

/// More containers would not start: init keeps no more descriptors for their output.
#[test]
fn more_containers_than_can_run() {
    let with = |count: usize| {
        let container = |number: usize| {
            format!(
                "---\napiVersion: v1alpha1\nkind: ContainerConfig\nname: c{number}\nimage: r.io/a:v1\n"
            )
        };
        let containers: String = (0..count).map(container).collect();
        format!("{}{containers}", machine())
    };
    assert!(parse(with(56).as_bytes()).is_ok());
    let error = refused(&with(57));
    assert!(error.contains("a machine runs at most 56"), "{error}");
    // The listener, the hand-over, the history, a prepared version and its description.
    const { assert!(56 + 5 <= instar_init_protocol::MAX_KEPT) };
}

#[test]
fn a_million_small_things() {
    assert!(refused(&"- x\n".repeat(250_000)).contains("too large"));
    assert!(refused(&"--- a\n".repeat(150_000)).contains("more than 1000 documents"));
    let keys: String = (0..40_000).fold(String::new(), |mut text, i| {
        writeln!(text, "key{i}: 1").unwrap();
        text
    });
    assert!(refused(&keys).contains("too large"));
}

#[test]
fn deep_nesting() {
    for text in [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "? ".repeat(100_000),
    ] {
        let error = refused(&text);
        assert!(error.len() < 1000, "{error}");
    }
}

#[test]
fn yaml_that_a_config_does_not_use() {
    for (text, message) in [
        (
            "a: !!binary aGk=\n",
            "line 1, column 13: tags (`!name`) are not used in a machine config",
        ),
        (
            "%YAML 1.1\n---\na: b\n",
            "line 1, column 1: this is not well-formed YAML: ",
        ),
        (
            "a: &b {c: d}\ne: {<<: *b}\n",
            "line 2, column 5: merge keys (`<<`) are not used in a machine config; write the fields out",
        ),
        ("[a]: b\n", "line 1, column 1: a key must be text"),
        (
            "a: 1\na: 2\n",
            "line 2, column 1: the key `a` is given twice in the same map",
        ),
    ] {
        let error = refused(text);
        assert!(error.starts_with(message), "{text}: {error}");
    }
}

/// Real configs with random damage never panic and never take long.
#[test]
fn damaged_configs_do_not_panic() {
    const PIECES: [&str; 24] = [
        "\n", " ", "  ", ":", "- ", "---\n", "{", "}", "[", "]", "&a ", "*a", "!", "|", ">", "\"",
        "'", "#", "%", "~", "\t", "\u{feff}", "0x", "é\u{0}",
    ];
    // A fixed seed, so that a failure can be reproduced.
    let mut dice = fastrand::Rng::with_seed(0x9e37_79b9_7f4a_7c15);
    for name in [
        "1.13/worker.yaml",
        "1.14/worker.yaml",
        "served-1.13.yaml",
        "served-1.14.yaml",
    ] {
        let original = std::fs::read(data(name)).unwrap();
        for _ in 0..250 {
            let mut bytes = original.clone();
            for _ in 0..=dice.usize(..8) {
                let at = dice.usize(..bytes.len());
                match dice.usize(..5) {
                    0 => bytes[at] = dice.u8(..),
                    1 => {
                        let end = (at + dice.usize(..200)).min(bytes.len());
                        bytes.drain(at..end);
                    }
                    2 => {
                        let end = (at + dice.usize(..200)).min(bytes.len());
                        let copy = bytes[at..end].to_vec();
                        let to = dice.usize(..bytes.len());
                        bytes.splice(to..to, copy);
                    }
                    3 => {
                        let piece = PIECES[dice.usize(..PIECES.len())];
                        bytes.splice(at..at, piece.bytes());
                    }
                    _ => bytes.truncate(at.max(1)),
                }
                if bytes.is_empty() {
                    bytes.push(b'a');
                }
            }
            if let Err(errors) = parse(&bytes) {
                assert!(!errors.problems().is_empty());
                assert!(!errors.to_string().is_empty());
            }
        }
    }
}

/// The fields of a document with values of the wrong type: each gives an error or a value, never a panic.
#[test]
fn every_field_takes_any_value() {
    let values = [
        "~",
        "\"\"",
        "x",
        "-1",
        "99999999999999999999",
        "[]",
        "[~]",
        "[[x]]",
        "{}",
        "{a: ~}",
        "1s",
        "é",
        "0",
    ];
    for name in ["served-1.13.yaml", "served-1.14.yaml"] {
        let text = std::fs::read_to_string(data(name)).unwrap();
        for (i, line) in text.lines().enumerate() {
            let Some((key, rest)) = line.split_once(": ").filter(|(key, _)| !key.contains('"'))
            else {
                continue;
            };
            if rest == "|" {
                continue;
            }
            for value in values {
                let damaged: String = text
                    .lines()
                    .enumerate()
                    .map(|(j, other)| {
                        if i == j {
                            format!("{key}: {value}\n")
                        } else {
                            format!("{other}\n")
                        }
                    })
                    .collect();
                // It may load or not, but it must not panic.
                let _ = parse(damaged.as_bytes());
            }
        }
    }
    assert!(parse(machine().as_bytes()).is_ok());
}
