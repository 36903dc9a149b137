//! JSON patches (RFC 6902): operations on paths of a document. They are done one after the other, or none of them.

use json_patch::{PatchErrorKind, PatchOperation};
use serde_json::Value;

/// The operations of a patch, in their order.
pub(super) struct Operations(Vec<PatchOperation>);

impl Operations {
    /// Reads a list of operations.
    ///
    /// # Errors
    ///
    /// Names the first element that is not an operation, counted from 1.
    pub(super) fn read(list: Vec<Value>) -> Result<Self, String> {
        let operations = (1..).zip(list).map(|(number, operation)| {
            serde_json::from_value(operation)
                .map_err(|error| format!("operation {number} is none of a JSON patch: {error}"))
        });
        operations.collect::<Result<_, _>>().map(Operations)
    }

    /// The document after all operations.
    ///
    /// # Errors
    ///
    /// Names the operation that failed, and its path.
    pub(super) fn applied(&self, document: &Value) -> Result<Value, String> {
        let mut changed = document.clone();
        json_patch::patch(&mut changed, &self.0).map_err(|error| {
            let (number, reason) = (error.operation + 1, reason(&error.kind));
            match self.0.get(error.operation) {
                Some(operation) => format!("operation {number} ({}): {reason}", shown(operation)),
                None => format!("operation {number}: {reason}"),
            }
        })?;
        match changed.is_object() {
            true => Ok(changed),
            false => Err("its operations leave no machine config".to_owned()),
        }
    }
}

/// An operation, for messages. Values stay out of it: they may be secrets.
fn shown(operation: &PatchOperation) -> String {
    let (name, from) = match operation {
        PatchOperation::Add(_) => ("add", None),
        PatchOperation::Remove(_) => ("remove", None),
        PatchOperation::Replace(_) => ("replace", None),
        PatchOperation::Move(moved) => ("move", Some(&moved.from)),
        PatchOperation::Copy(copied) => ("copy", Some(&copied.from)),
        PatchOperation::Test(_) => ("test", None),
    };
    // The empty path is the whole document.
    let path = operation.path();
    match from {
        Some(from) => format!("{name} \"{from}\" to \"{path}\""),
        None => format!("{name} \"{path}\""),
    }
}

fn reason(kind: &PatchErrorKind) -> String {
    match kind {
        PatchErrorKind::TestFailed => "another value is there".to_owned(),
        PatchErrorKind::InvalidPointer => "there is no such place in the config".to_owned(),
        PatchErrorKind::InvalidFromPointer => "there is nothing to take from there".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn read(list: Value) -> Result<Operations, String> {
        Operations::read(list.as_array().unwrap().clone())
    }

    #[test]
    fn all_operations_are_done_in_their_order() {
        let operations = read(json!([
            {"op": "test", "path": "/a/b", "value": 1},
            {"op": "add", "path": "/list/-", "value": "z"},
            {"op": "add", "path": "/list/0", "value": "v"},
            {"op": "replace", "path": "/a/b", "value": null},
            {"op": "copy", "from": "/a", "path": "/c"},
            {"op": "move", "from": "/a/b", "path": "/d~1e"},
            {"op": "remove", "path": "/list/1"},
        ]));
        let changed = operations
            .unwrap()
            .applied(&json!({"a": {"b": 1}, "list": ["x", "y"]}));
        assert_eq!(
            changed.unwrap(),
            json!({"a": {}, "c": {"b": null}, "d/e": null, "list": ["v", "y", "z"]})
        );
    }

    #[test]
    fn what_cannot_be_done_is_named() {
        let document = json!({"a": {"b": 1}});
        let fine = json!({"op": "test", "path": "/a/b", "value": 1});
        for (operation, expected) in [
            (
                json!({"op": "test", "path": "/a/b", "value": 2}),
                "operation 2 (test \"/a/b\"): another value",
            ),
            (
                json!({"op": "replace", "path": "/a/c", "value": 2}),
                "operation 2 (replace \"/a/c\"): there is no such place",
            ),
            (
                json!({"op": "add", "path": "/x/y", "value": 2}),
                "operation 2 (add \"/x/y\"): there is no such place",
            ),
            (
                json!({"op": "move", "from": "/x", "path": "/y"}),
                "operation 2 (move \"/x\" to \"/y\"): there is nothing",
            ),
            (
                json!({"op": "replace", "path": "", "value": 2}),
                "leave no machine config",
            ),
        ] {
            let operations = read(json!([fine, operation])).unwrap();
            let error = operations.applied(&document).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_is_no_operation_is_named() {
        let fine = json!({"op": "remove", "path": "/a"});
        for wrong in [
            json!({"op": "grow", "path": "/a"}),
            json!({"op": "add", "path": "/a"}),
            json!({"op": "remove"}),
            json!({"op": "remove", "path": "a/b"}),
            json!("remove /a"),
        ] {
            let error = read(json!([fine, wrong])).map(|_| ()).unwrap_err();
            assert!(error.starts_with("operation 2 is none"), "{error}");
        }
        assert!(read(json!([])).is_ok());
    }
}
