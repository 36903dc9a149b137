//! A document as JSON, for tools that change configs: with everything that a writer needs to give it back as it was.

use serde_json::Value as Json;

use super::{
    problem::{ConfigErrors, Problem},
    section::typed,
    yaml::{self, Node, Value},
};

/// Reads the text of one document as the node would; null if it is empty. `single` makes the value of a text; it is told whether the node
/// may take this text for a number or a truth value, because it stands there without quotes.
///
/// # Errors
/// The text is no YAML, uses a feature that a config may not use, or has several documents.
pub fn document_as_json(
    text: &str,
    single: &dyn Fn(&str, bool) -> Json,
) -> Result<Json, ConfigErrors> {
    let documents = yaml::documents(text.as_bytes(), text.len())?;
    match documents.as_slice() {
        [] => Ok(Json::Null),
        [document] => Ok(json(&document.root, single)),
        [_, second, ..] => Err(ConfigErrors::one(Problem {
            at: Some(second.root.at),
            document: None,
            path: String::new(),
            message: "another document begins here; put a line `---` before it".to_owned(),
        })),
    }
}

fn json(node: &Node, single: &dyn Fn(&str, bool) -> Json) -> Json {
    match &node.value {
        Value::Null => Json::Null,
        Value::Scalar { text, plain } => single(text, *plain && typed(text).is_some()),
        Value::List(items) => items.iter().map(|item| json(item, single)).collect(),
        // With the keys that have no value: who writes the document back must not lose them.
        Value::Map(entries) => entries
            .iter()
            .map(|entry| (entry.key.clone(), json(&entry.node, single)))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_node_may_take_for_a_number_is_told_from_text() {
        let read =
            |text: &str| document_as_json(text, &|text, is_typed| json!([text, is_typed])).unwrap();
        for text in ["0644", "1.10", "1e3", "0x1f", "-0", ".5", "true", "TRUE"] {
            assert_eq!(read(text), json!([text, true]), "{text}");
            assert_eq!(read(&format!("'{text}'")), json!([text, false]), "{text}");
        }
        for text in ["1_000", "yes", "nan", "1e999"] {
            assert_eq!(read(text), json!([text, false]), "{text}");
        }
        assert_eq!(read("{a: ~, b: [null]}"), json!({"a": null, "b": [null]}));
        assert_eq!(read("# nothing\n"), json!(null));
    }

    #[test]
    fn a_second_document_is_an_error() {
        let errors = document_as_json("a: 1\n...\nb: 2\n", &|text, _| text.into()).unwrap_err();
        assert!(errors.to_string().contains("line 3"), "{errors}");
    }
}
