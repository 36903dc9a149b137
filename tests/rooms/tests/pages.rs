//! Checks that each crate has a page at its top that names the crate's one key decision, and the other choice.

#![allow(clippy::panic)]

use std::fs;

use instar_rooms::{members, root};

#[test]
fn every_crate_names_its_decision_and_the_other_choice() {
    let members = members().unwrap_or_else(|error| panic!("read the members: {error}"));
    assert!(members.len() > 15, "{members:?}");
    let silent: Vec<String> = members
        .into_iter()
        .filter(|folder| {
            let page = page(folder);
            !(page.contains("decision") && page.contains("choice"))
        })
        .collect();
    assert!(
        silent.is_empty(),
        "the `//!` at the top of these crates lacks the decision or the other choice: {silent:?}"
    );
}

/// Returns the page at the top of a crate: that of its library, or of its program if it has none.
fn page(folder: &str) -> String {
    let sources = ["lib.rs", "main.rs"].map(|file| root().join(folder).join("src").join(file));
    let source = sources
        .iter()
        .find_map(|file| fs::read_to_string(file).ok());
    let source =
        source.unwrap_or_else(|| panic!("{folder} has neither src/lib.rs nor src/main.rs"));
    let page = source.lines().take_while(|line| line.starts_with("//!"));
    page.collect::<Vec<_>>().join("\n")
}
