//! The documents of a YAML text, each with its own text.

use std::error::Error;
use std::fmt;

use instar_config::ConfigErrors;
use serde_json::Value;

use super::size::Size;

/// The line that begins a document.
const MARK: &str = "---";
/// Begins a text that was written without quotes and is a number or a truth value for the node, in a form that JSON does not keep: `0644`,
/// `1.10`. Whoever writes the value writes the text without quotes again. Unicode leaves this character to programs: no text has it.
pub(super) const PLAIN: char = '\u{fdd0}';

/// Why a text cannot be read as documents.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is no YAML, or one of its documents is larger than a config can be.
    Config(ConfigErrors),
    /// All of its documents are larger than a config can be; says by what.
    TooLarge(String),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(errors) => errors.fmt(f),
            Self::TooLarge(why) => f.write_str(why),
        }
    }
}

impl Error for Unreadable {}

/// A text split into its documents.
#[derive(Debug)]
pub(super) struct Documents {
    all: Vec<Document>,
}

/// One document.
#[derive(Debug)]
pub(super) struct Document {
    /// Whether a mark precedes it.
    marked: bool,
    /// Everything after the mark.
    text: String,
    /// Null if there are only comments.
    value: Value,
}

impl Document {
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn value(&self) -> &Value {
        &self.value
    }
}

/// The identity of a document: documents with the same identity are merged.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// The large document, which has no kind.
    Main,
    /// A document with a kind.
    Kind {
        api_version: String,
        kind: String,
        name: Option<String>,
    },
}

impl Identity {
    pub(super) fn of(document: &Value) -> Self {
        let text = |key: &str| match bare(document.get(key)?.clone()) {
            Value::String(text) => Some(text),
            // A name of digits is a name.
            number @ Value::Number(_) => Some(number.to_string()),
            _ => None,
        };
        match text("kind") {
            None => Identity::Main,
            Some(kind) => Identity::Kind {
                api_version: text("apiVersion").unwrap_or_default(),
                kind,
                name: text("name"),
            },
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Identity::Main => f.write_str("document without a kind"),
            Identity::Kind { kind, name, .. } => match name {
                Some(name) => write!(f, "{kind} named {name}"),
                None => f.write_str(kind),
            },
        }
    }
}

impl Documents {
    /// Splits a text. Nothing is lost: `to_string` returns the same text.
    pub(super) fn parse(text: &str) -> Result<Self, Unreadable> {
        let mut pieces = vec![(false, String::new())];
        for line in text.split_inclusive('\n') {
            // Inside a document every line that could look like this is indented (YAML 1.2.2, 9.1.2).
            let after = line.strip_prefix(MARK);
            match after.filter(|after| after.is_empty() || after.starts_with(char::is_whitespace)) {
                Some(after) => pieces.push((true, after.to_owned())),
                None => {
                    if let Some((_, piece)) = pieces.last_mut() {
                        piece.push_str(line);
                    }
                }
            }
        }
        let documents = pieces
            .into_iter()
            .filter(|(marked, text)| *marked || !text.is_empty());
        let (mut all, mut size) = (Vec::new(), Size::default());
        for (marked, text) in documents {
            let value = value(&text).map_err(Unreadable::Config)?;
            size.add(&value).map_err(Unreadable::TooLarge)?;
            all.push(Document {
                marked,
                text,
                value,
            });
        }
        Ok(Self { all })
    }

    /// The size of all of them.
    ///
    /// # Errors
    /// They are too large.
    pub(super) fn size(&self) -> Result<Size, String> {
        Size::of(self.all.iter().map(|document| &document.value))
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = Value> {
        self.all.into_iter().map(|document| document.value)
    }

    /// The index of the document with this identity.
    pub(super) fn find(&self, identity: &Identity) -> Option<usize> {
        let mut values = self.all.iter().map(|document| &document.value);
        values.position(|value| value.is_object() && Identity::of(value) == *identity)
    }

    /// The index of the document to use when none is named: the only one, or else the large one.
    pub(super) fn nameless(&self) -> Option<usize> {
        let mut places = (0..self.all.len()).filter(|place| self.all[*place].value.is_object());
        match (places.next(), places.next()) {
            (only, None) => only,
            _ => self.find(&Identity::Main),
        }
    }

    pub(super) fn get(&self, place: usize) -> &Document {
        &self.all[place]
    }

    pub(super) fn replace(&mut self, place: usize, text: String, value: Value) {
        let document = &mut self.all[place];
        (document.text, document.value) = (text, value);
    }

    pub(super) fn remove(&mut self, place: usize) {
        self.all.remove(place);
    }

    /// Adds a document at the end.
    pub(super) fn push(&mut self, text: String, value: Value) {
        if let Some(last) = self.all.last_mut()
            && !last.text.ends_with('\n')
        {
            last.text.push('\n');
        }
        let marked = !self.all.is_empty();
        let text = if marked { format!("\n{text}") } else { text };
        self.all.push(Document {
            marked,
            text,
            value,
        });
    }
}

impl fmt::Display for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for document in &self.all {
            if document.marked {
                f.write_str(MARK)?;
            }
            f.write_str(&document.text)?;
        }
        Ok(())
    }
}

/// The value of a document, as the node reads it: `off` and `yes` are text. What JSON would not give back as it was written is a text with
/// the mark [`PLAIN`].
pub(super) fn value(text: &str) -> Result<Value, ConfigErrors> {
    instar_config::document_as_json(text, &|text, is_typed| match is_typed {
        true => as_written(text),
        false => text.into(),
    })
}

fn as_written(text: &str) -> Value {
    let read = serde_json::from_str::<Value>(text).ok();
    let same = read.filter(|read| serde_json::to_string(read).is_ok_and(|written| written == text));
    same.unwrap_or_else(|| format!("{PLAIN}{text}").into())
}

/// The value without marks, for readers that write nothing back.
pub(super) fn bare(value: Value) -> Value {
    match value {
        Value::String(text) => match text.strip_prefix(PLAIN) {
            Some(text) => text.into(),
            None => Value::String(text),
        },
        Value::Array(items) => items.into_iter().map(bare).collect(),
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, bare(value)))
            .collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn every_byte_comes_back() {
        for (text, count) in [
            ("", 0),
            ("a: 1\n", 1),
            ("---\na: 1\n---\nb: |\n  ---\n  c\n", 2),
            ("# only words\n---\na: 1", 2),
            ("--- # first\na: 1\n---\n", 2),
            ("a: '---x'\n---x: 1\n", 1),
        ] {
            let documents = Documents::parse(text).unwrap();
            assert_eq!(documents.to_string(), text);
            assert_eq!(documents.all.len(), count, "{text:?}");
        }
    }

    /// Each document alone would be read.
    #[test]
    fn documents_count_together() {
        let document = format!("a: &a [{}]\nb: [*a, *a]\n", vec!["x"; 10_000].join(","));
        assert!(Documents::parse(&document).is_ok());
        let several = vec![document; 3].join("---\n");
        let refused = Documents::parse(&several).unwrap_err();
        assert!(matches!(refused, Unreadable::TooLarge(_)), "{refused}");
    }

    #[test]
    fn words_are_not_truth_values() {
        let read = value("a: off\nb: true\nc: 5\n").unwrap();
        assert_eq!(read, serde_json::json!({"a": "off", "b": true, "c": 5}));
    }

    #[test]
    fn documents_go_by_names_of_digits_too() {
        let of = |name: &str| Identity::of(&value(&format!("kind: X\nname: {name}\n")).unwrap());
        assert_ne!(of("5"), of("6"));
        assert_ne!(of("07"), of("7"));
        assert_eq!(of("07"), of("'07'"));
    }
}
