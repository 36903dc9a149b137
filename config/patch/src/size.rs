//! The limits on the size of a patch, and of its result. Patches come over networks, and a few bytes of one can stand for very many: an
//! alias repeats a part of a document, and an operation can copy the whole of it into itself.
//!
//! The limit is that of a node, which takes no larger config: see docs/machine-config.md.

use instar_config::MAX_CONFIG_BYTES;
use serde_json::Value;

/// Values of all documents.
const VALUES: usize = 50_000;
/// Bytes of their texts and keys.
const BYTES: usize = 2 * MAX_CONFIG_BYTES;
/// Lists and maps in each other.
const DEPTH: usize = 64;

/// How large values are, those that aliases repeat counted each time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size {
    /// The number of values: scalars, lists and maps.
    pub values: usize,
    /// The bytes of their texts and keys.
    pub bytes: usize,
}

impl Size {
    /// Adds a value.
    ///
    /// # Errors
    /// It is too large, alone or with what was added before.
    pub(super) fn add(&mut self, value: &Value) -> Result<(), String> {
        self.add_at(value, 0)
    }

    fn add_at(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        if depth > DEPTH {
            return Err(format!(
                "lists and maps would be nested deeper than {DEPTH} levels"
            ));
        }
        self.values += 1;
        match value {
            Value::String(text) => self.bytes += text.len(),
            Value::Array(items) => {
                for item in items {
                    self.add_at(item, depth + 1)?;
                }
            }
            Value::Object(map) => {
                for (key, value) in map {
                    self.bytes += key.len();
                    self.add_at(value, depth + 1)?;
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        match self.values <= VALUES && self.bytes <= BYTES {
            true => Ok(()),
            false => Err(format!(
                "it would be too large for a machine config: more than {VALUES} values or {BYTES} bytes of text"
            )),
        }
    }

    /// The size of these values together.
    ///
    /// # Errors
    /// They are too large.
    pub(super) fn of<'a>(values: impl IntoIterator<Item = &'a Value>) -> Result<Self, String> {
        let mut size = Self::default();
        for value in values {
            size.add(value)?;
        }
        Ok(size)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::documents::value;

    #[test]
    fn all_values_and_texts_count() {
        let size = Size::of([&json!({"ab": [1, "cde", null]}), &json!({})]).unwrap();
        assert_eq!(
            size,
            Size {
                values: 6,
                bytes: 5
            }
        );
    }

    #[test]
    fn what_no_node_takes_is_too_large() {
        let list = |length: usize| Value::from(vec![0; length]);
        assert!(Size::of([&list(VALUES - 1)]).is_ok());
        assert!(Size::of([&list(VALUES)]).is_err());
        assert!(Size::of([&list(VALUES / 2), &list(VALUES / 2)]).is_err());
        assert!(Size::of([&json!("x".repeat(BYTES + 1))]).is_err());
        let nested = |depth: usize| (0..depth).fold(json!(1), |inner, _| json!([inner]));
        assert!(Size::of([&nested(DEPTH)]).is_ok());
        assert!(Size::of([&nested(DEPTH + 1)]).is_err());
    }

    /// Nothing that a node takes is too large here.
    #[test]
    fn the_limit_is_no_narrower_than_a_nodes() {
        let list = |length: usize| format!("[{}]", vec!["a"; length].join(","));
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(value(&list(VALUES)).is_err());
        assert!(value(&nested(DEPTH + 1)).is_err());
        for text in [list(VALUES - 1), nested(DEPTH)] {
            let value = value(&text).unwrap();
            assert!(Size::of([&value]).is_ok());
        }
    }
}
