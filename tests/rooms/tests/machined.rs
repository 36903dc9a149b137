//! Checks the imports between machined's rooms: they lead down.

#![allow(clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use instar_rooms::{Arrows, Import, circle, imports, root, told};

/// The floors of the house from the ground up, and the rooms on each. A file may import from its own room, from rooms
/// on lower floors, and from others on its own floor where that makes no circle of rooms. docs/architecture.md
/// describes each room.
const FLOORS: [(&str, &[&str]); 9] = [
    (
        "domains",
        &[
            "boot_loader",
            "command_line",
            "conditions",
            "config_source",
            "containers",
            "disk",
            "etc_files",
            "files",
            "hang_guard",
            "init_link",
            "kernel_settings",
            "left_sockets",
            "meta",
            "modules",
            "mounts",
            "network",
            "operation_lock",
            "packet_capture",
            "record_file",
            "state_partition",
            "statistics",
            "terminals",
            "time",
            "trust",
        ],
    ),
    ("store", &["store"]),
    (
        "services",
        &[
            "services",
            "bundles",
            "follow",
            "kubernetes",
            "os_extensions",
            "pins",
            "temporary_registry",
        ],
    ),
    ("upgrade", &["upgrade"]),
    ("machine", &["machine", "status", "image_collection"]),
    ("intent", &["intent"]),
    ("sequences", &["sequences"]),
    ("api", &["api", "apid_service", "console", "log_forwarding"]),
    ("daemon", &["daemon", "decoders", "lib", "logging", "main"]),
];

/// The names of crates in the rooms. The compiler keeps these crates below all rooms.
const CRATES: [&str; 6] = ["apid", "base", "config", "oci", "sys", "values"];

/// Imports that still lead up, as (importer, imported). The list may only shrink.
const KNOWN: [(&str, &str); 0] = [];

#[test]
fn of_machined_import_what_is_below_them() {
    let imports = machined();
    let mut wrong = Vec::new();
    let mut known: BTreeSet<(&str, &str)> = KNOWN.into();
    for ((importer, imported), names) in by_files(&imports) {
        let (upper, lower) = (floor(importer), floor(imported));
        if upper < lower && !known.remove(&(importer, imported)) {
            let names = names.join(", ");
            wrong.push(format!(
                "{importer} ({}) imports {names} from {imported} ({}), which is above it",
                FLOORS[upper].0, FLOORS[lower].0
            ));
        }
    }
    for (importer, imported) in known {
        wrong.push(format!(
            "{importer} does not import {imported} any more: remove the pair from KNOWN"
        ));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn of_machined_make_no_circle() {
    let imports = machined();
    let known: BTreeSet<(&str, &str)> = KNOWN.into();
    let mut arrows = Arrows::new();
    for ((importer, imported), _) in by_files(&imports) {
        let (from, to) = (room(importer), room(imported));
        if from != to && !known.contains(&(importer, imported)) {
            let from = arrows.entry(from).or_default();
            from.entry(to).or_insert((importer, imported));
        }
    }
    if let Some(circle) = circle(&arrows) {
        panic!("a circle of rooms:\n{}", told(&circle));
    }
}

#[test]
fn are_on_the_floors_that_the_architecture_shows() {
    let file = root().join("docs/architecture.md");
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("read {file:?}: {error}"));
    for (floor, rooms) in FLOORS {
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| {floor} | `")));
        let row = row.unwrap_or_else(|| panic!("{file:?} has no row for the floor {floor}"));
        let shown = row.split('|').nth(2).unwrap_or_default();
        let shown: BTreeSet<&str> = shown.split('`').skip(1).step_by(2).collect();
        // The root of the crate only lists the rooms.
        let rooms = rooms.iter().copied().filter(|room| *room != "lib");
        assert_eq!(
            shown,
            rooms.collect(),
            "{file:?}: the rooms of the floor {floor}"
        );
    }
}

fn machined() -> BTreeSet<Import> {
    let src = root().join("machined/src");
    let mut imports =
        imports(&src, "machined").unwrap_or_else(|error| panic!("read {}: {error}", src.display()));
    imports.retain(|import| {
        let first = import.name.split("::").next().unwrap_or_default();
        import.imported != Path::new("lib.rs") || !CRATES.contains(&first)
    });
    assert!(
        imports.len() > 600,
        "only {} imports were found",
        imports.len()
    );
    imports
}

/// Returns the names that a file imports from another, by the two files.
fn by_files(imports: &BTreeSet<Import>) -> BTreeMap<(&str, &str), Vec<&str>> {
    let mut files: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for import in imports {
        let name = match import.name.as_str() {
            "" => "the module",
            name => name,
        };
        files
            .entry((text(&import.importer), text(&import.imported)))
            .or_default()
            .push(name);
    }
    files
}

fn text(path: &Path) -> &str {
    path.to_str()
        .unwrap_or_else(|| panic!("{} is not UTF-8", path.display()))
}

/// Returns the room of a file: its first directory, or the file itself outside of any directory.
fn room(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// Returns the floor of a file's room, counted from the ground.
fn floor(file: &str) -> usize {
    let room = room(file);
    let floor = FLOORS.iter().position(|(_, rooms)| rooms.contains(&room));
    floor.unwrap_or_else(|| panic!("{file} is in no room: give {room:?} a floor in FLOORS"))
}
