//! A look into a folder, for tests.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

/// The names in a folder, sorted.
pub(super) fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}
