//! Checks the imports between machined's rooms: they lead down.

#![allow(clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use instar_rooms::{Import, imports};

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
    let mut arrows: BTreeMap<&str, BTreeMap<&str, (&str, &str)>> = BTreeMap::new();
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
fn files_of_machined_make_no_circle() {
    let imports = machined();
    let mut arrows: BTreeMap<&str, BTreeMap<&str, (&str, &str)>> = BTreeMap::new();
    for (importer, imported) in by_files(&imports).into_keys() {
        let from = arrows.entry(importer).or_default();
        from.insert(imported, (importer, imported));
    }
    if let Some(circle) = circle(&arrows) {
        panic!("a circle of files:\n{}", told(&circle));
    }
}

/// Returns a line for each pair of a circle.
fn told(circle: &[(&str, &str)]) -> String {
    let pairs = circle.iter();
    let lines = pairs.map(|(importer, imported)| format!("{importer} imports from {imported}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn machined() -> BTreeSet<Import> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machined/src");
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

/// Returns a circle in `arrows`, as the pairs of files that make it.
fn circle<'a>(
    arrows: &BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, &'a str)>>,
) -> Option<Vec<(&'a str, &'a str)>> {
    let mut done = BTreeSet::new();
    arrows
        .keys()
        .find_map(|room| walk(room, arrows, &mut Vec::new(), &mut done))
}

fn walk<'a>(
    room: &'a str,
    arrows: &BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, &'a str)>>,
    way: &mut Vec<(&'a str, (&'a str, &'a str))>,
    done: &mut BTreeSet<&'a str>,
) -> Option<Vec<(&'a str, &'a str)>> {
    if let Some(begin) = way.iter().position(|(before, _)| *before == room) {
        return Some(way[begin..].iter().map(|(_, files)| *files).collect());
    }
    if done.contains(room) {
        return None;
    }
    for (to, files) in arrows.get(room).into_iter().flatten() {
        way.push((room, *files));
        let found = walk(to, arrows, way, done);
        way.pop();
        if found.is_some() {
            return found;
        }
    }
    done.insert(room);
    None
}

#[test]
fn circles_are_found() {
    let arrow = |to| (to, ("importer", to));
    let mut arrows = BTreeMap::from([
        ("a", BTreeMap::from([arrow("b"), arrow("c")])),
        ("b", BTreeMap::from([arrow("c")])),
    ]);
    assert_eq!(circle(&arrows), None);
    arrows.insert("c", BTreeMap::from([arrow("b")]));
    assert_eq!(
        circle(&arrows),
        Some(vec![("importer", "c"), ("importer", "b")])
    );
}
