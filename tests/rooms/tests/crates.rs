//! Checks the documents' lists of crates against the manifests: each crate and its users.

#![allow(clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use instar_rooms::{members, root};

/// Folders of crates that test the others or run inside test machines, and are no part of the product.
const BESIDE: [&str; 6] = [
    "fuzz",
    "tests/api-load",
    "tests/double",
    "tests/greeter",
    "tests/image-load",
    "tests/rooms",
];

#[test]
fn the_architecture_names_what_each_crate_uses() {
    let text = read("docs/architecture.md");
    let documented: BTreeSet<&str> = rows(&text, "## What each part may know").collect();
    let crates = crates();
    let wanted: BTreeSet<String> = crates
        .iter()
        .map(|(folder, used)| {
            let used: Vec<String> = used.iter().map(|folder| format!("`{folder}`")).collect();
            let used = match used.is_empty() {
                true => "none".to_owned(),
                false => used.join(", "),
            };
            format!("| `{folder}` | {used} |")
        })
        .collect();
    let missing: Vec<&String> = wanted
        .iter()
        .filter(|row| !documented.contains(row.as_str()))
        .collect();
    assert!(
        missing.is_empty() && documented.len() == wanted.len(),
        "docs/architecture.md, \"What each part may know\", lacks these rows, or has others:\n{missing:#?}"
    );
}

#[test]
fn the_map_of_crates_is_in_the_order_of_their_imports() {
    let text = read("CONTRIBUTING.md");
    let order: Vec<&str> = rows(&text, "## The map of crates")
        .flat_map(|row| row.split('|').nth(2).unwrap_or_default().split(", "))
        .map(|folder| folder.trim().trim_matches('`'))
        .collect();
    let place = |folder: &str| {
        let place = order.iter().position(|listed| *listed == folder);
        place.unwrap_or_else(|| {
            panic!("CONTRIBUTING.md, \"The map of crates\", has no row for {folder}")
        })
    };
    for (folder, used) in crates() {
        for used in used {
            assert!(
                place(&folder) < place(&used),
                "CONTRIBUTING.md, \"The map of crates\": {folder} uses {used}, which stands above it"
            );
        }
        place(&folder);
    }
}

/// Returns the first cells of a table's rows below a heading, without the table's head.
fn rows<'a>(text: &'a str, heading: &str) -> impl Iterator<Item = &'a str> {
    let (_, below) = text
        .split_once(&format!("\n{heading}\n"))
        .unwrap_or_else(|| panic!("there is no heading {heading:?}"));
    below
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
}

/// Returns the workspace's crates by their folders, each with the folders of the crates that it uses.
fn crates() -> BTreeMap<String, BTreeSet<String>> {
    let folders = members().unwrap_or_else(|error| panic!("read the members: {error}"));
    let manifest = |folder: &str| read(&format!("{folder}/Cargo.toml"));
    let named: BTreeMap<String, &String> = folders
        .iter()
        .map(|folder| {
            let text = manifest(folder);
            let name = text.lines().find_map(|line| line.strip_prefix("name = "));
            let name = name.unwrap_or_else(|| panic!("{folder}/Cargo.toml has no name"));
            (name.trim_matches('"').to_owned(), folder)
        })
        .collect();
    let mut crates = BTreeMap::new();
    for folder in folders
        .iter()
        .filter(|folder| !BESIDE.contains(&folder.as_str()))
    {
        let text = manifest(folder);
        let used = section(&text, "[dependencies]", "[").filter_map(|line| {
            let name = line.split([' ', '.', '=']).next()?;
            Some((*named.get(name)?).clone())
        });
        crates.insert(folder.clone(), used.collect());
    }
    assert!(crates.len() > 15, "{crates:?}");
    crates
}

/// Returns the lines after the line `begin`, up to one that begins with `end`.
fn section<'a>(text: &'a str, begin: &'a str, end: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines()
        .skip_while(move |line| *line != begin)
        .skip(1)
        .take_while(move |line| !line.starts_with(end))
}

fn read(file: &str) -> String {
    let path = root().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("read {}: {error}", path.display()))
}
