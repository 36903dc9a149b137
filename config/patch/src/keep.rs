//! The text of a document after a change: only the changed parts are written anew, so that comments, order and style stay.

use std::str::FromStr;

use serde_json::{Map, Value};
use yaml_edit::{Document, Mapping, ScalarValue, Sequence, YamlValue};

use super::documents::{PLAIN, value};

/// The text, changed so that its value is `after` instead of `before`.
///
/// The result is read back. If its value is wrong, which an unforeseen style of writing may cause, the document is written anew and loses
/// its comments: a config must be right before it is beautiful.
pub(super) fn rewritten(text: &str, before: &Value, after: &Value) -> String {
    if before == after {
        return text.to_owned();
    }
    // The rest of the line with the document's mark.
    let head = match text.split_inclusive('\n').next() {
        Some(line) if line.trim().is_empty() || line.trim().starts_with('#') => line.len(),
        _ => 0,
    };
    let (head, body) = text.split_at(head);
    match edited(body, before, after) {
        Some(body) if value(&body).is_ok_and(|says| says == *after) => format!("{head}{body}"),
        _ => format!("{head}{}", written(after)),
    }
}

/// A new text of this value.
pub(super) fn written(value: &Value) -> String {
    let value = marked(value);
    // Every JSON value can be written as YAML; if that ever fails, JSON is YAML too.
    let text = serde_saphyr::to_string(&value).unwrap_or_else(|_| format!("{value}\n"));
    without_marks(&text)
}

/// The value with a mark for each fraction: writers of YAML have forms of their own for them.
fn marked(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => format!("{PLAIN}{number}").into(),
        Value::Array(items) => items.iter().map(marked).collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), marked(value)))
            .collect(),
        other => other.clone(),
    }
}

/// The marked text looks like no number, so that it was written without quotes; now it does.
fn without_marks(text: &str) -> String {
    text.replace(PLAIN, "")
}

fn edited(text: &str, before: &Value, after: &Value) -> Option<String> {
    let document = Document::from_str(text).ok()?;
    edit_map(
        &document.as_mapping()?,
        before.as_object()?,
        after.as_object()?,
    );
    Some(without_marks(&document.to_string()))
}

fn edit_map(map: &Mapping, before: &Map<String, Value>, after: &Map<String, Value>) {
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        map.remove(key.as_str());
    }
    for (key, new) in after {
        let key = key.as_str();
        match (before.get(key), new) {
            (Some(old), new) if old == new => {}
            (Some(Value::Object(old)), Value::Object(new)) if !old.is_empty() => {
                if let Some(inner) = map.get_mapping(key) {
                    edit_map(&inner, old, new);
                }
            }
            (Some(Value::Array(old)), Value::Array(new)) if !old.is_empty() && !new.is_empty() => {
                if let Some(list) = map.get_sequence(key) {
                    edit_list(&list, old, new);
                }
            }
            (_, new) => map.set(key, plain(new)),
        }
    }
}

/// Edits a list whose elements were changed, added or removed. Equal elements at its ends stay untouched, so that comments stay beside
/// their elements.
fn edit_list(list: &Sequence, before: &[Value], after: &[Value]) {
    let head = before.iter().zip(after).take_while(|(old, new)| old == new);
    let head = head.count();
    let (old, new) = (&before[head..], &after[head..]);
    let tail = old.iter().rev().zip(new.iter().rev());
    let tail = tail.take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    for (place, (old, new)) in (head..).zip(old.iter().zip(new)) {
        edit_element(list, place, old, new);
    }
    for place in (new.len()..old.len()).rev() {
        list.remove(head + place);
    }
    for (place, new) in new.iter().enumerate().skip(old.len()) {
        list.insert(head + place, plain(new));
    }
}

fn edit_element(list: &Sequence, place: usize, old: &Value, new: &Value) {
    if old == new {
        return;
    }
    let inner = list.get(place);
    let inner = inner.as_ref().and_then(|element| element.as_mapping());
    match (old, new, inner) {
        (Value::Object(old), Value::Object(new), Some(inner)) if !old.is_empty() => {
            edit_map(inner, old, new);
        }
        _ => {
            list.set(place, plain(new));
        }
    }
}

fn plain(value: &Value) -> YamlValue {
    match value {
        Value::Null => YamlValue::Scalar(ScalarValue::null()),
        Value::Bool(truth) => YamlValue::from(*truth),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => YamlValue::from(whole),
            None => YamlValue::from(format!("{PLAIN}{number}")),
        },
        Value::String(text) => YamlValue::from(text.as_str()),
        Value::Array(values) => YamlValue::Sequence(values.iter().map(plain).collect()),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| (key.clone(), plain(value)));
            YamlValue::Mapping(entries.collect())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    /// The text after `change` was applied to its value.
    fn changed(text: &str, change: impl FnOnce(&mut Value)) -> String {
        let before = value(text).unwrap();
        let mut after = before.clone();
        change(&mut after);
        let text = rewritten(text, &before, &after);
        assert_eq!(value(&text).unwrap(), after, "{text}");
        text
    }

    #[test]
    fn comments_stay_beside_what_they_are_about() {
        let text =
            "# head\na: 1 # one\n# of b\nb:\n  - x # first\n  - k: v # inner\n    l: w\n# tail\n";
        let now = changed(text, |value| {
            value["a"] = json!(2);
            value["b"][1]["k"] = json!("new");
            value["b"]
                .as_array_mut()
                .unwrap()
                .push(json!({"m": [1, true, null]}));
        });
        for comment in ["# head", "# one", "# of b", "# first", "# inner", "# tail"] {
            assert!(now.contains(comment), "no {comment}: {now}");
        }
    }

    #[test]
    fn elements_come_and_go_with_their_comments() {
        let text = "l:\n  - a # of a\n  - b # of b\n  - {c: 1} # of c\nm: 1 # of m\n";
        let list = |value: &mut Value| value["l"].take().as_array().unwrap().clone();
        let now = changed(text, |value| {
            let mut all = list(value);
            all.insert(0, json!("new"));
            value["l"] = all.into();
        });
        assert_eq!(now, text.replace("l:\n", "l:\n  - new\n"));
        for (place, line) in ["  - a # of a\n", "  - b # of b\n", "  - {c: 1} # of c\n"]
            .into_iter()
            .enumerate()
        {
            let now = changed(text, |value| {
                let mut all = list(value);
                all.remove(place);
                value["l"] = all.into();
            });
            assert_eq!(now, text.replace(line, ""));
        }
    }

    #[test]
    fn all_styles_are_understood() {
        for text in [
            "a: {b: 1, c: [1, 2]}\nd: x\n",
            "a:\n    b: 1\n    c:\n    - 1\n    - 2\nd: |\n  long\n  text\n",
            "{a: {b: 1, c: [1, 2]}, d: x}\n",
            "a: {\n  b: 1,\n  c: [\n    1, 2\n  ]\n}\nd: \"x\"",
            " # on the mark's line\na: &anchor\n  b: 1\n  c: [1, 2]\nd: x\n",
        ] {
            changed(text, |value| {
                value["a"]["b"] = json!("yes");
                value["a"]["c"]
                    .as_array_mut()
                    .unwrap()
                    .push(json!({"x": "1"}));
                value["a"]["new"] = json!({"deep": {"er": []}});
                value["d"] = json!({"text": "multi\nline\n", "number": 1.5, "big": u64::MAX});
            });
            changed(text, |value| {
                value["a"].as_object_mut().unwrap().remove("b");
                value["a"]["c"] = json!([2]);
                value.as_object_mut().unwrap().remove("d");
            });
            for list in [
                json!([]),
                json!([1]),
                json!([0, 1, 2]),
                json!([1, {"x": 3}, 2]),
                json!([3, 2, 1, 0]),
            ] {
                changed(text, |value| value["a"]["c"] = list);
            }
        }
    }
}
