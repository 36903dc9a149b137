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
    /// The field in a spec; none if it is not there, or not below maps alone.
    pub(super) fn of<'a>(&self, spec: &'a Value) -> Option<&'a Value> {
        let mut parts = self.0.iter();
        parts.try_fold(spec, |value, part| value.as_object()?.get(part))
    }

    /// The same, to be changed.
    pub(super) fn of_mut<'a>(&self, spec: &'a mut Value) -> Option<&'a mut Value> {
        let mut parts = self.0.iter();
        parts.try_fold(spec, |value, part| value.as_object_mut()?.get_mut(part))
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
            let mut spec = spec.clone();
            assert_eq!(path.of_mut(&mut spec).is_some(), expected.is_some());
        }
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
