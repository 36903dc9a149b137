//! Compares a document with the shape of its kind.

use super::{
    documents::Identified,
    problem::{Position, Problem, Problems},
    shape::{Field, Shape, join},
    suggestion,
    yaml::{Node, Value},
};

/// Reports everything in a document that does not fit its kind.
pub(super) fn check(document: &Identified<'_>, problems: &Problems) {
    let walk = Walk { document, problems };
    walk.fields(document.root, "", document.kind.fields, document.envelope());
}

struct Walk<'a> {
    document: &'a Identified<'a>,
    problems: &'a Problems,
}

impl Walk<'_> {
    /// Compares a map with the fields of a shape. `envelope`: keys that name the kind of the document, and belong to every shape.
    fn fields(&self, node: &Node, path: &str, fields: &'static [Field], envelope: &[&str]) {
        let Value::Map(entries) = &node.value else {
            return self.wrong(node, path, "a map of fields");
        };
        for entry in entries {
            if envelope.contains(&entry.key.as_str()) {
                continue;
            }
            let path = join(path, &entry.key);
            match fields.iter().find(|field| field.name == entry.key) {
                Some(field) => self.value(&entry.node, &path, &field.shape),
                None => self.unknown(entry.at, path, &entry.key, fields),
            }
        }
        for field in fields.iter().filter(|field| field.required) {
            if node.get(field.name).is_none() {
                self.push(node.at, join(path, field.name), "this field is required");
            }
        }
    }

    fn unknown(&self, at: Position, path: String, key: &str, fields: &'static [Field]) {
        let names = || fields.iter().map(|field| field.name);
        let message = match suggestion::closest(key, names()) {
            Some(name) => format!("there is no such field; did you mean `{name}`?"),
            None if fields.is_empty() => "there is no such field; none is known here".to_owned(),
            None => format!(
                "there is no such field; known here: {}",
                names().collect::<Vec<_>>().join(", ")
            ),
        };
        self.push(at, path, message);
    }

    fn value(&self, node: &Node, path: &str, shape: &'static Shape) {
        match (shape, &node.value) {
            (Shape::Opaque, _) | (_, Value::Null) | (Shape::Text, Value::Scalar { .. }) => {}
            (Shape::Fields(fields), _) => self.fields(node, path, fields, &[]),
            (Shape::List(item), Value::List(items))
            | (Shape::OneOrMore(item), Value::List(items)) => {
                for (i, node) in items.iter().enumerate() {
                    let path = format!("{path}[{i}]");
                    if matches!(node.value, Value::Null) && !matches!(item, Shape::Opaque) {
                        self.push(node.at, path, "this item of the list is empty");
                    } else {
                        self.value(node, &path, item);
                    }
                }
            }
            (Shape::OneOrMore(item), _) => self.value(node, path, item),
            (Shape::OpaqueMap, Value::Map(_)) => {}
            (Shape::Options, Value::Map(entries)) => {
                for entry in entries {
                    let path = join(path, &entry.key);
                    self.value(&entry.node, &path, &Shape::OneOrMore(&Shape::Text));
                }
            }
            (Shape::TextMap, Value::Map(entries)) => {
                for entry in entries {
                    if !matches!(entry.node.value, Value::Scalar { .. } | Value::Null) {
                        self.wrong(&entry.node, &join(path, &entry.key), "a single value");
                    }
                }
            }
            (Shape::MapOf(item), Value::Map(entries)) => {
                for entry in entries {
                    self.value(&entry.node, &join(path, &entry.key), item);
                }
            }
            (scalar, Value::Scalar { text, plain }) => {
                if let Err(expected) = scalar.fits(text, *plain) {
                    self.push(node.at, path.to_owned(), expected);
                }
            }
            (other, _) => self.wrong(node, path, other.noun()),
        }
    }

    fn wrong(&self, node: &Node, path: &str, expected: &str) {
        self.push(
            node.at,
            path.to_owned(),
            format!("{expected} belongs here, not {}", node.describe()),
        );
    }

    fn push(&self, at: Position, path: String, message: impl Into<String>) {
        self.problems.push(Problem {
            at: Some(at),
            document: Some(self.document.to_string()),
            path,
            message: message.into(),
        });
    }
}
