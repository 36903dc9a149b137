//! Checks that each result that is thrown away (`let _ =`) has its reason in a comment above it.

#![allow(clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use instar_rooms::root;

#[test]
fn results_that_are_ignored_have_a_reason() {
    let root = root();
    let mut files = Vec::new();
    find_sources(&root, &mut files);
    assert!(files.len() > 500, "only {} files", files.len());
    let bare: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let source = fs::read_to_string(file).unwrap_or_default();
            let lines = without_reason(&source).into_iter();
            lines
                .map(|line| format!("{}:{line}", file.display()))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(
        bare.is_empty(),
        "say above it why the result may be ignored:\n{}",
        bare.join("\n")
    );
}

/// Returns the lines that ignore a result without a comment above them, or above the run of these lines that they end.
fn without_reason(source: &str) -> Vec<usize> {
    let mut found = Vec::new();
    let mut has_reason = false;
    for (number, line) in source.lines().map(str::trim).enumerate() {
        let ignores = line.starts_with("let _ = ");
        if ignores && !has_reason {
            found.push(number + 1);
        }
        has_reason = line.starts_with("//") || (ignores && has_reason);
    }
    found
}

fn find_sources(directory: &Path, files: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in entries {
        let path = entry.path();
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        if is_source {
            files.push(path);
        } else if path.is_dir() && !["target", ".git"].iter().any(|name| path.ends_with(name)) {
            find_sources(&path, files);
        }
    }
}

#[test]
fn a_reason_is_a_comment_right_above() {
    assert_eq!(without_reason("a;\nlet _ = b;"), [2]);
    assert_eq!(
        without_reason("// c\nlet _ = b;\nlet _ = d;\na;\nlet _ = e;"),
        [5]
    );
}
