//! Checks that the files of each crate import in one direction: a stranger can read a crate from its leaves up.

#![allow(clippy::panic)]

use std::fs;
use std::path::Path;

use instar_rooms::{Arrows, circle, imports, members, root, told};

/// The page of a crate: it declares the files and gives some of their names away.
const PAGES: [&str; 2] = ["lib.rs", "main.rs"];

#[test]
fn of_a_crate_make_no_circle() {
    let folders = members().unwrap_or_else(|error| panic!("read the members: {error}"));
    assert!(folders.len() > 30, "{folders:?}");
    let wrong: Vec<String> = folders
        .into_iter()
        .filter_map(|folder| {
            circle_of(&root().join(&folder)).map(|told| format!("{folder}:\n{told}"))
        })
        .collect();
    assert!(
        wrong.is_empty(),
        "circles of files in\n{}",
        wrong.join("\n")
    );
}

fn circle_of(folder: &Path) -> Option<String> {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).ok()?;
    let name = manifest
        .lines()
        .find_map(|line| line.strip_prefix("name = "))?;
    let name = name.trim_matches('"').replace('-', "_");
    let imports = imports(&folder.join("src"), &name).unwrap_or_else(|error| {
        panic!("read {}: {error}", folder.display());
    });
    let mut arrows = Arrows::new();
    for import in &imports {
        let files = (import.importer.to_str()?, import.imported.to_str()?);
        if !PAGES.contains(&files.0) && !PAGES.contains(&files.1) {
            arrows.entry(files.0).or_default().insert(files.1, files);
        }
    }
    circle(&arrows).map(|circle| told(&circle))
}
