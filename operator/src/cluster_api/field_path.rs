//! The path of a field in an object, as a JSON pointer: `/spec/osImage`.

use std::fmt;
use std::str::FromStr;

use serde_json::{Value, json};

/// Where a field is below an object's `spec`. Every part is the key of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldPath(Vec<String>);

impl FromStr for FieldPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = |why: &str| format!("{text} is no path of a field: {why}, as in /spec/osImage");
        let parts = text.strip_prefix("/spec/");
        let parts = parts.ok_or_else(|| bad("it has to begin with /spec/"))?;
        let parts: Vec<String> = parts.split('/').map(unescaped).collect();
        if parts.iter().any(String::is_empty) {
            return Err(bad("a part of it is empty"));
        }
        Ok(Self(parts))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "/spec{}", pointer(self.0.iter().map(String::as_str)))
    }
}

impl FieldPath {
    /// The field with this name in a spec itself.
    pub(super) fn named(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }

    /// The field in a spec; none if it is not there, or not below maps alone.
    pub(super) fn of<'a>(&self, spec: &'a Value) -> Option<&'a Value> {
        let mut parts = self.0.iter();
        parts.try_fold(spec, |value, part| value.as_object()?.get(part))
    }

    /// Sets the field in a spec, with the maps on its way. Where something else than a map is in the way, nothing is set.
    pub(super) fn set_in(&self, spec: &mut Value, value: Value) {
        let Some((name, way)) = self.0.split_last() else {
            return;
        };
        let mut place = spec;
        for part in way {
            let Value::Object(map) = place else { return };
            place = map.entry(part.clone()).or_insert_with(|| json!({}));
        }
        if let Value::Object(map) = place {
            map.insert(name.clone(), value);
        }
    }

    /// The merge patch of a spec that sets the field.
    pub(super) fn set_to(&self, value: Value) -> Value {
        let parts = self.0.iter().rev();
        parts.fold(value, |value, part| json!({ part: value }))
    }
}

/// The keys as a JSON pointer.
pub(super) fn pointer<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let parts = parts.map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1")));
    parts.collect()
}

fn unescaped(part: &str) -> String {
    part.replace("~1", "/").replace("~0", "~")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_path_leads_through_maps_alone() {
        let spec = json!({"os": {"a/b": "x"}, "list": [{"image": "y"}]});
        for (path, expected) in [
            ("/spec/os/a~1b", Some("x")),
            ("/spec/os/b", None),
            ("/spec/list/0/image", None),
            ("/spec/os/a~1b/c", None),
        ] {
            let path: FieldPath = path.parse().unwrap();
            assert_eq!(path.of(&spec).and_then(Value::as_str), expected, "{path}");
        }
    }

    #[test]
    fn a_field_is_set_below_maps_alone() {
        let spec = json!({"os": {"image": "x"}, "list": []});
        for (path, expected) in [
            (
                "/spec/os/image",
                json!({"os": {"image": "new"}, "list": []}),
            ),
            ("/spec/list", json!({"os": {"image": "x"}, "list": "new"})),
            (
                "/spec/a/b",
                json!({"os": {"image": "x"}, "list": [], "a": {"b": "new"}}),
            ),
            ("/spec/list/0", spec.clone()),
            ("/spec/os/image/x", spec.clone()),
        ] {
            let mut changed = spec.clone();
            let path: FieldPath = path.parse().unwrap();
            path.set_in(&mut changed, json!("new"));
            assert_eq!(changed, expected, "{path}");
        }
        let mut none = Value::Null;
        FieldPath::named("x").set_in(&mut none, json!("new"));
        assert_eq!(none, Value::Null);
    }

    #[test]
    fn a_path_is_written_as_it_was_read_and_is_below_spec() {
        for good in ["/spec/osImage", "/spec/os/a~1b~0c"] {
            assert_eq!(good.parse::<FieldPath>().unwrap().to_string(), good);
        }
        for bad in ["", "spec/x", "/status/x", "/spec", "/spec/", "/spec//x"] {
            assert!(bad.parse::<FieldPath>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_patch_sets_the_field_alone() {
        let path: FieldPath = "/spec/os/image".parse().unwrap();
        assert_eq!(path.set_to(json!("x")), json!({"os": {"image": "x"}}));
    }
}
