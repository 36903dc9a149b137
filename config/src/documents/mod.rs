//! Every known kind of document, one file per group, and the detection of a document's kind.

mod block;
mod containers;
mod kubernetes;
mod links;
mod network;
mod own;
mod system;

use std::fmt;

use super::{
    problem::{Problem, Problems},
    shape::Kind,
    suggestion, v1alpha1,
    yaml::{Document, Node, Value},
};

pub(super) use own::OF_A_CONTAINER;

/// The version of Talos's documents.
const TALOS: &str = "v1alpha1";
/// The version of our own documents.
pub(super) const OWN: &str = "instar.dev/v1alpha1";

/// A document whose kind is known.
#[derive(Debug)]
pub(super) struct Identified<'a> {
    /// Its number in the file, from 1.
    pub(super) number: usize,
    pub(super) kind: &'static Kind,
    /// The name, which distinguishes documents of one kind.
    pub(super) name: Option<&'a str>,
    pub(super) root: &'a Node,
}

impl Identified<'_> {
    /// Whether this is the document `version: v1alpha1`.
    pub(super) fn is_machine(&self) -> bool {
        std::ptr::eq(self.kind, &v1alpha1::CONFIG)
    }

    /// The keys that name the kind.
    pub(super) fn envelope(&self) -> &'static [&'static str] {
        if self.is_machine() {
            &["version"]
        } else {
            &["apiVersion", "kind"]
        }
    }
}

impl fmt::Display for Identified<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "document {}, {}", self.number, self.kind.name)?;
        match self.name {
            Some(name) => write!(f, " {}", super::shape::shorten(name)),
            None => Ok(()),
        }
    }
}

/// The kinds of one version.
fn kinds(version: &str) -> Option<Vec<&'static [Kind]>> {
    match version {
        TALOS => Some(vec![
            block::KINDS,
            containers::KINDS,
            kubernetes::KINDS,
            links::KINDS,
            network::KINDS,
            system::KINDS,
        ]),
        OWN => Some(vec![own::KINDS]),
        _ => None,
    }
}

/// Finds the kind of a document; reports an error if it has none that is known.
pub(super) fn identify<'a>(document: &'a Document, problems: &Problems) -> Option<Identified<'a>> {
    let root = &document.root;
    let complain = |node: &Node, path: &str, message: String| {
        problems.push(Problem {
            at: Some(node.at),
            document: Some(format!("document {}", document.number)),
            path: path.to_owned(),
            message,
        });
        None
    };
    if !matches!(root.value, Value::Map(_)) {
        return complain(
            root,
            "",
            format!("a document is a map of fields, not {}", root.describe()),
        );
    }
    let identified = |kind| Identified {
        number: document.number,
        kind,
        name: root
            .get("name")
            .and_then(Node::text)
            .filter(|name| !name.is_empty()),
        root,
    };
    let Some(kind_node) = root.get("kind") else {
        return match root.get("version") {
            Some(version) if version.text() == Some(TALOS) => Some(Identified {
                name: None,
                ..identified(&v1alpha1::CONFIG)
            }),
            Some(version) => complain(
                version,
                "version",
                format!("the only version known is `{TALOS}`"),
            ),
            None => complain(
                root,
                "",
                format!(
                    "this says neither `version: {TALOS}` nor `apiVersion` and `kind`, so nobody knows what it is"
                ),
            ),
        };
    };
    let Some(version_node) = root.get("apiVersion") else {
        return complain(
            root,
            "apiVersion",
            format!("this field is required; `{TALOS}`, or `{OWN}` for our own kinds"),
        );
    };
    let Some(groups) = version_node.text().and_then(kinds) else {
        return complain(
            version_node,
            "apiVersion",
            format!("the versions known are `{TALOS}` and `{OWN}`"),
        );
    };
    match find_kind(&groups, kind_node.text().unwrap_or_default()) {
        Ok(kind) => Some(identified(kind)),
        Err(message) => complain(kind_node, "kind", message),
    }
}

/// The kind of this name.
///
/// # Errors
/// There is none; the message names the nearest one.
fn find_kind(groups: &[&'static [Kind]], written: &str) -> Result<&'static Kind, String> {
    let known = || groups.iter().flat_map(|group| group.iter());
    // Talos's published schema has other names for these than its programs, which refuse the schema's.
    let name = match written {
        "UnattendedInstall" => "UnattendedInstallConfig",
        "KubeSpanEndpoints" => "KubeSpanEndpointsConfig",
        other => other,
    };
    if let Some(kind) = known().find(|kind| kind.name == name) {
        return Ok(kind);
    }
    let written = super::shape::shorten(written);
    Err(
        match suggestion::closest(name, known().map(|kind| kind.name)) {
            Some(close) => format!("there is no kind `{written}`; did you mean `{close}`?"),
            None => format!("there is no kind `{written}` in this version"),
        },
    )
}

/// The fields of the kind of this name, in either version.
#[cfg(test)]
pub(super) fn fields(name: &str) -> Option<&'static [super::shape::Field]> {
    [TALOS, OWN]
        .into_iter()
        .filter_map(kinds)
        .flatten()
        .flatten()
        .find(|kind| kind.name == name)
        .map(|kind| kind.fields)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;
    use crate::shape::{Field, Shape};

    fn all() -> impl Iterator<Item = &'static Kind> {
        [TALOS, OWN]
            .into_iter()
            .flat_map(|version| kinds(version).unwrap())
            .flatten()
            .chain([&v1alpha1::CONFIG])
    }

    /// The kinds in a release's own registry, one per line: of 1.13.9; of the first releases of 1.14, with those of its published schema.
    const REGISTERED: [&str; 2] = [
        include_str!("../../tests/data/1.13/kinds"),
        include_str!("../../tests/data/1.14/kinds"),
    ];

    #[test]
    fn every_kind_that_a_release_of_talos_knows_is_known() {
        for kind in REGISTERED.iter().flat_map(|kinds| kinds.lines()) {
            assert!(fields(kind).is_some(), "{kind}");
        }
    }

    #[test]
    fn kinds_and_fields_are_listed_once() {
        fn unique(path: &str, fields: &[Field]) {
            let mut seen = BTreeSet::new();
            for field in fields {
                assert!(seen.insert(field.name), "{path}.{} twice", field.name);
                inner(&format!("{path}.{}", field.name), &field.shape);
            }
        }
        fn inner(path: &str, shape: &Shape) {
            match shape {
                Shape::Fields(fields) => unique(path, fields),
                Shape::List(item) | Shape::MapOf(item) | Shape::OneOrMore(item) => {
                    inner(path, item)
                }
                _ => {}
            }
        }
        let mut names = BTreeSet::new();
        for kind in all() {
            assert!(names.insert(kind.name), "{} twice", kind.name);
            unique(kind.name, kind.fields);
        }
        // The kinds of the published schema, one that it lacks, the main document, and ours.
        assert_eq!(names.len(), 88 + 1 + 1 + own::KINDS.len());
        for kind in OF_A_CONTAINER {
            assert!(names.contains(kind), "{kind}");
        }
    }
}
