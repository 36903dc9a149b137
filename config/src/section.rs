//! Reads a map of a document, field by field.
//!
//! The shape of the document ([`super::shape`]) is checked already, so an existing field has the right type. Here its value is checked; an
//! invalid one is reported, and reads as absent.

use std::{fmt::Display, str::FromStr, time::Duration};

use super::{
    documents::Identified,
    model::{Secret, quantity},
    problem::{Problem, Problems},
    shape::{boolean, integer, join},
    yaml::{Node, Value},
};

/// A map and its position.
#[derive(Clone)]
pub(super) struct Section<'a> {
    document: &'a Identified<'a>,
    node: &'a Node,
    path: String,
    problems: &'a Problems,
}

/// A single value and its position, usually an item of a list.
pub(super) struct Scalar<'a> {
    section: Section<'a>,
    pub(super) text: &'a str,
}

impl<'a> Section<'a> {
    pub(super) fn of(document: &'a Identified<'a>, problems: &'a Problems) -> Self {
        Self {
            document,
            node: document.root,
            path: String::new(),
            problems,
        }
    }

    fn node(&self, field: &str) -> Option<&'a Node> {
        self.node.get(field)
    }

    fn at(&self, node: &'a Node, field: &str) -> Section<'a> {
        Section {
            node,
            path: join(&self.path, field),
            ..self.clone()
        }
    }

    /// Reports that this map as a whole is wrong.
    pub(super) fn wrong(&self, message: impl Display) {
        self.problems.push(self.problem(message));
    }

    fn problem(&self, message: impl Display) -> Problem {
        Problem {
            at: Some(self.node.at),
            document: Some(self.document.to_string()),
            path: self.path.clone(),
            message: message.to_string(),
        }
    }

    /// Reports that a field is wrong or missing.
    pub(super) fn wrong_field(&self, field: &str, message: impl Display) {
        self.at(self.node(field).unwrap_or(self.node), field)
            .wrong(message);
    }

    /// Reports that a field is wrong in a config that is new to its machine: one that the machine has already is read without it.
    pub(super) fn wrong_field_if_new(&self, field: &str, message: impl Display) {
        let at = self.at(self.node(field).unwrap_or(self.node), field);
        self.problems.push_if_new(at.problem(message));
    }

    /// Whether a field sets something.
    pub(super) fn sets(&self, field: &str) -> bool {
        self.node(field).is_some_and(Node::is_set)
    }

    /// A field's text; `None` if it is absent or empty: Go writes empty text for "not set".
    pub(super) fn text(&self, field: &str) -> Option<&'a str> {
        self.node(field)?.text().filter(|text| !text.is_empty())
    }

    /// A field's text, even if it is empty.
    pub(super) fn raw_text(&self, field: &str) -> Option<&'a str> {
        self.node(field)?.text()
    }

    pub(super) fn owned(&self, field: &str) -> Option<String> {
        self.text(field).map(str::to_owned)
    }

    pub(super) fn secret(&self, field: &str) -> Option<Secret> {
        self.text(field).map(Secret::new)
    }

    pub(super) fn flag(&self, field: &str) -> Option<bool> {
        boolean(self.text(field)?)
    }

    pub(super) fn duration(&self, field: &str) -> Option<Duration> {
        quantity::duration(self.text(field)?)
    }

    /// A number, which must be within the range.
    pub(super) fn number<T>(&self, field: &str, range: std::ops::RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + PartialOrd + Display + Copy,
    {
        let value = integer(self.text(field)?)?;
        let found = T::try_from(value)
            .ok()
            .filter(|value| range.contains(value));
        if found.is_none() {
            self.wrong_field(
                field,
                format_args!(
                    "{value} is not within {} and {}",
                    range.start(),
                    range.end()
                ),
            );
        }
        found
    }

    /// A field's text, parsed as a type.
    pub(super) fn parsed<T>(&self, field: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let node = self.node(field)?;
        let text = self.text(field)?;
        Scalar {
            section: self.at(node, field),
            text,
        }
        .parsed()
    }

    /// The same, for a field that must be present and not empty.
    pub(super) fn required<T>(&self, field: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        if self.text(field).is_none() {
            self.wrong_field(field, "this field must not be empty");
        }
        self.parsed(field)
    }

    /// A map below this one as JSON, for a program of others that reads it.
    pub(super) fn json(&self, field: &str) -> Option<serde_json::Map<String, serde_json::Value>> {
        match json(self.node(field)?) {
            serde_json::Value::Object(map) => Some(map),
            _ => None,
        }
    }

    /// A map below this one.
    pub(super) fn section(&self, field: &str) -> Option<Section<'a>> {
        Some(self.at(self.node(field)?, field))
    }

    /// The maps of a list, or of a map whose keys are chosen by the user.
    pub(super) fn sections(&self, field: &str) -> Vec<(&'a str, Section<'a>)> {
        let Some(node) = self.node(field) else {
            return Vec::new();
        };
        let all = self.at(node, field);
        match &node.value {
            Value::Map(_) => node
                .entries()
                .map(|entry| (entry.key.as_str(), all.at(&entry.node, &entry.key)))
                .collect(),
            _ => all.indexed().map(|section| ("", section)).collect(),
        }
    }

    /// The texts of a list.
    pub(super) fn texts(&self, field: &str) -> Vec<Scalar<'a>> {
        let Some(node) = self.node(field) else {
            return Vec::new();
        };
        self.at(node, field)
            .indexed()
            .filter_map(|section| {
                let text = section.node.text()?;
                Some(Scalar { section, text })
            })
            .collect()
    }

    /// The texts of a list; `None` if it is absent.
    pub(super) fn list(&self, field: &str) -> Option<Vec<String>> {
        self.node(field)?;
        Some(
            self.texts(field)
                .into_iter()
                .map(|scalar| scalar.text.to_owned())
                .collect(),
        )
    }

    /// The texts of a list, each parsed as a type.
    pub(super) fn parsed_list<T>(&self, field: &str) -> Vec<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.texts(field)
            .iter()
            .filter_map(Scalar::parsed)
            .collect()
    }

    /// The texts of a map whose keys are chosen by the user, with the keys.
    pub(super) fn named_texts(&self, field: &str) -> Vec<(&'a str, Scalar<'a>)> {
        let sections = self.sections(field).into_iter();
        sections
            .filter_map(|(name, section)| {
                let text = section.node.text()?;
                Some((name, Scalar { section, text }))
            })
            .collect()
    }

    fn indexed(self) -> impl Iterator<Item = Section<'a>> {
        let items = self.node.items();
        items.iter().enumerate().map(move |(i, node)| Section {
            node,
            path: format!("{}[{i}]", self.path),
            ..self.clone()
        })
    }
}

impl Scalar<'_> {
    pub(super) fn parsed<T>(&self) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        self.text
            .parse()
            .map_err(|error: T::Err| self.wrong(error))
            .ok()
    }

    pub(super) fn wrong(&self, message: impl Display) {
        self.section.wrong(message);
    }

    /// Reports that the value is wrong in a config that is new to its machine.
    pub(super) fn wrong_if_new(&self, message: impl Display) {
        let problem = self.section.problem(message);
        self.section.problems.push_if_new(problem);
    }
}

/// Reads a text without quotes as the number or the truth value that it stands for; `None` if it is only text.
pub(super) fn typed(text: &str) -> Option<serde_json::Value> {
    let number = integer(text).map(serde_json::Value::from);
    let truth = boolean(text).map(serde_json::Value::from);
    let fraction = || serde_json::Number::from_f64(text.parse().ok()?);
    number.or(truth).or_else(|| fraction().map(Into::into))
}

/// Returns a node as JSON: of texts without quotes, `true` and `1.5` are no texts there. JSON has no infinite numbers, so `inf` is a text.
pub(super) fn json(node: &Node) -> serde_json::Value {
    match &node.value {
        Value::Null => serde_json::Value::Null,
        Value::Scalar { text, plain } => {
            let typed = plain.then(|| typed(text)).flatten();
            typed.unwrap_or_else(|| text.as_str().into())
        }
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(_) => node
            .entries()
            .map(|entry| (entry.key.clone(), json(&entry.node)))
            .collect(),
    }
}
