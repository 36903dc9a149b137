//! The value of a column: the paths that definitions use, `{.a.b}`, `{.list[:]}` and `{@}`, a part of JSONPath.

use serde_json::Value;

/// The value at a path; empty if there is none.
pub(super) fn cell(path: &str, content: &Value) -> String {
    let path = path.trim().trim_start_matches('{').trim_end_matches('}');
    let (keys, elements) = match path
        .strip_suffix("[:]")
        .or_else(|| path.strip_suffix("[*]"))
    {
        Some(keys) => (keys, true),
        None => (path, false),
    };
    let mut keys = keys
        .trim_start_matches('@')
        .split('.')
        .filter(|key| !key.is_empty());
    let Some(value) = keys.try_fold(content, |value, key| value.get(key)) else {
        return String::new();
    };
    match value {
        Value::Array(values) if elements => {
            let texts: Vec<String> = values.iter().map(text).collect();
            texts.join(" ")
        }
        value => text(value),
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        // A row is one line.
        Value::String(text) => text.trim_end().replace('\n', " "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_definitions_are_followed() {
        let content = serde_json::json!({
            "stage": "running",
            "status": {"ready": true},
            "addresses": ["10.0.0.1", "fd00::1"],
            "metric": 5,
        });
        for (path, shown) in [
            ("{.stage}", "running"),
            ("{.status.ready}", "true"),
            ("{.addresses}", r#"["10.0.0.1","fd00::1"]"#),
            ("{.addresses[:]}", "10.0.0.1 fd00::1"),
            ("{.metric}", "5"),
            ("{.missing.key}", ""),
        ] {
            assert_eq!(cell(path, &content), shown, "{path}");
        }
        assert_eq!(cell("{@}", &Value::from("worker")), "worker");
    }
}
