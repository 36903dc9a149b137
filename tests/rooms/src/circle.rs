//! Circles of imports.

use std::collections::{BTreeMap, BTreeSet};

/// Imports between rooms or files: from one to another, by a pair of files, importer and imported.
pub type Arrows<'a> = BTreeMap<&'a str, BTreeMap<&'a str, (&'a str, &'a str)>>;

/// Returns a circle in `arrows`, as the pairs of files that make it.
pub fn circle<'a>(arrows: &Arrows<'a>) -> Option<Vec<(&'a str, &'a str)>> {
    let mut done = BTreeSet::new();
    arrows
        .keys()
        .find_map(|room| walk(room, arrows, &mut Vec::new(), &mut done))
}

fn walk<'a>(
    room: &'a str,
    arrows: &Arrows<'a>,
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

/// Returns a line for each pair of a circle.
pub fn told(circle: &[(&str, &str)]) -> String {
    let pairs = circle.iter();
    let lines = pairs.map(|(importer, imported)| format!("{importer} imports from {imported}"));
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
