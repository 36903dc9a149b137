//! JSON patches (RFC 6902): operations on paths of a document. They are done one after the other, or none of them.

use json_patch::{PatchErrorKind, PatchOperation};
use serde_json::Value;

use super::size::Size;

/// The most operations of one patch: each is a walk through the document.
const MOST: usize = 1000;

/// The operations of a patch, in their order.
pub(super) struct Operations(Vec<PatchOperation>);

impl Operations {
    /// Reads a list of operations.
    ///
    /// # Errors
    ///
    /// Names the first element that is not an operation, counted from 1; or there are too many.
    pub(super) fn read(list: Vec<Value>) -> Result<Self, String> {
        if list.len() > MOST {
            let many = list.len();
            return Err(format!(
                "it has {many} operations, and {MOST} are the most; make several patches of it"
            ));
        }
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
    /// Names the operation that failed, or has made more of the document than a config can be, and its path.
    pub(super) fn applied(&self, document: &Value) -> Result<Value, String> {
        let mut changed = document.clone();
        for (number, operation) in (1..).zip(&self.0) {
            let done = json_patch::patch(&mut changed, std::slice::from_ref(operation));
            let done = done.map_err(|error| reason(&error.kind));
            // After each one: a few copies of the whole into itself take all memory.
            let small = done.and_then(|()| Size::of([&changed]).map(drop));
            small.map_err(|why| format!("operation {number} ({}): {why}", shown(operation)))?;
        }
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

    /// Each operation doubles the document, or its depth.
    #[test]
    fn operations_do_not_make_too_much_of_a_document() {
        let doubled = (0..40).map(|number| {
            let path = format!("/copy-{number}");
            json!({"op": "copy", "from": "", "path": path})
        });
        let copied = json!({"op": "copy", "from": "", "path": "/a"});
        let grown = json!({"op": "add", "path": "/a/a/b", "value": "x".repeat(3 << 20)});
        for (operations, words) in [
            (Value::from_iter(doubled), "(copy \"\" to \"/copy-"),
            (Value::from(vec![copied.clone(); 70]), "deeper"),
            (
                json!([copied, copied, grown]),
                "operation 3 (add \"/a/a/b\"): it would be too large",
            ),
        ] {
            let operations = read(operations).unwrap();
            let error = operations.applied(&json!({"a": {}})).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn there_are_not_too_many_operations() {
        let test = json!({"op": "test", "path": "", "value": {}});
        assert!(read(Value::from(vec![test.clone(); MOST])).is_ok());
        let refused = read(Value::from(vec![test; MOST + 1])).map(|_| ());
        assert!(refused.unwrap_err().contains("1001 operations"));
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
