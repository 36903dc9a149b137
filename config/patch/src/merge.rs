//! Merges a patch into a document: maps are merged, lists appended to, all else replaced. The exceptions are those that users of this kind
//! of patch know (docs/machine-config.md).

use serde_json::{Map, Value};

use super::documents::Identity;

/// The key and its value that delete the map in which they stand.
const DIRECTIVE: &str = "$patch";
const DELETE: &str = "delete";

/// How a list takes the elements of a patch.
enum ListRule {
    Append,
    Replace,
    /// Elements that have the same value at one of these keys are merged.
    MergeBy(&'static [&'static str]),
    /// Elements that have the same value at one of these keys are replaced.
    ReplaceBy(&'static [&'static str]),
}

/// The kind of a document; the large one has none.
fn kind(identity: &Identity) -> Option<&str> {
    match identity {
        Identity::Main => None,
        Identity::Kind { kind, .. } => Some(kind),
    }
}

/// The rule for the list at this path of a document.
fn rule(identity: &Identity, path: &[&str]) -> ListRule {
    match (kind(identity), path) {
        (None, ["cluster", "network", "podSubnets" | "serviceSubnets"])
        | (Some("KubeNetworkConfig"), ["podSubnets" | "serviceSubnets"]) => ListRule::Replace,
        (None, ["machine", "network", "interfaces"]) => {
            ListRule::MergeBy(&["interface", "deviceSelector"])
        }
        (None, ["machine", "network", "interfaces", "vlans"]) => ListRule::MergeBy(&["vlanId"]),
        (None, ["cluster", "apiServer", "admissionControl"]) => ListRule::MergeBy(&["name"]),
        (Some("ExtensionServiceConfig"), ["configFiles"]) => ListRule::MergeBy(&["mountPath"]),
        (Some("ImageVerificationConfig"), ["rules"]) => ListRule::ReplaceBy(&["image"]),
        _ => ListRule::Append,
    }
}

/// Whether a map is replaced instead of merged.
fn is_replaced(identity: &Identity, path: &[&str]) -> bool {
    matches!(
        (kind(identity), path),
        (None, ["cluster", "apiServer", "auditPolicy"])
            | (
                Some(
                    "KubeAuditPolicyConfig"
                        | "KubeAuthenticationConfig"
                        | "KubeCredentialProviderConfig"
                ),
                ["configuration"]
            )
            | (Some("KubeStaticPodConfig"), ["pod"])
    )
}

/// Whether a piece of a patch deletes the part that it names.
pub(super) fn is_deletion(piece: &Value) -> bool {
    piece.get(DIRECTIVE).and_then(Value::as_str) == Some(DELETE)
}

/// The document with the patch merged into it.
pub(super) fn merged(document: &Value, patch: &Value, identity: &Identity) -> Value {
    let mut path = Vec::new();
    merge(document, patch, identity, &mut path)
}

fn merge<'a>(old: &Value, patch: &'a Value, identity: &Identity, path: &mut Vec<&'a str>) -> Value {
    match (old, patch) {
        (Value::Object(_), Value::Object(patch)) if is_replaced(identity, path) => {
            Value::Object(patch.clone())
        }
        (Value::Object(old), Value::Object(patch)) => merge_maps(old, patch, identity, path),
        // Merged with nothing, so that keys which only steer the merge do not get into the result.
        (_, Value::Object(patch)) => merge_maps(&Map::new(), patch, identity, path),
        (Value::Array(old), Value::Array(patch)) => merge_lists(old, patch, identity, path),
        (_, Value::Array(patch)) => merge_lists(&[], patch, identity, path),
        (_, patch) => patch.clone(),
    }
}

fn merge_maps<'a>(
    old: &Map<String, Value>,
    patch: &'a Map<String, Value>,
    identity: &Identity,
    path: &mut Vec<&'a str>,
) -> Value {
    let mut merged = old.clone();
    for (key, piece) in patch {
        if is_deletion(piece) {
            merged.remove(key);
            continue;
        }
        // A key without a value says nothing: a patch whose lines below it are comments must not take a section away.
        if piece.is_null() {
            continue;
        }
        path.push(key);
        let before = old.get(key).unwrap_or(&Value::Null);
        merged.insert(key.clone(), merge(before, piece, identity, path));
        path.pop();
    }
    Value::Object(merged)
}

fn merge_lists<'a>(
    old: &[Value],
    patch: &'a [Value],
    identity: &Identity,
    path: &mut Vec<&'a str>,
) -> Value {
    let (keys, merges) = match rule(identity, path) {
        ListRule::Replace => return Value::Array(patch.to_vec()),
        ListRule::Append => (&[][..], false),
        ListRule::MergeBy(keys) => (keys, true),
        ListRule::ReplaceBy(keys) => (keys, false),
    };
    let mut merged = old.to_vec();
    for piece in patch {
        if is_deletion(piece) {
            merged.retain(|element| !is_meant(element, piece));
            continue;
        }
        let same = |element: &&mut Value| {
            keys.iter().any(|key| {
                let value = piece.get(key);
                value.is_some() && element.get(key) == value
            })
        };
        match merged.iter_mut().find(same) {
            Some(element) if merges => *element = merge(element, piece, identity, path),
            Some(element) => *element = merge(&Value::Null, piece, identity, path),
            None => merged.push(merge(&Value::Null, piece, identity, path)),
        }
    }
    Value::Array(merged)
}

/// Whether an element matches all fields of a deletion.
fn is_meant(element: &Value, deletion: &Value) -> bool {
    let Some(said) = deletion.as_object() else {
        return false;
    };
    let mut said = said.iter().filter(|(key, _)| *key != DIRECTIVE).peekable();
    said.peek().is_some() && said.all(|(key, value)| element.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn main(document: Value, patch: Value) -> Value {
        merged(&document, &patch, &Identity::Main)
    }

    #[test]
    fn maps_merge_lists_grow_values_change() {
        assert_eq!(
            main(
                json!({"a": {"b": 1, "c": [1]}, "d": "x"}),
                json!({"a": {"c": [2], "e": true}, "d": "y"}),
            ),
            json!({"a": {"b": 1, "c": [1, 2], "e": true}, "d": "y"})
        );
        // A value of another type is replaced.
        assert_eq!(
            main(json!({"a": [1]}), json!({"a": {"b": 1}})),
            json!({"a": {"b": 1}})
        );
    }

    /// As with Talos, for whom such a key is not there.
    #[test]
    fn a_key_without_a_value_changes_nothing() {
        let document = json!({"machine": {"install": {"disk": "/dev/vda"}, "certSANs": ["a"]}});
        let patch = json!({"machine": {"install": null, "certSANs": null, "sysctls": null}});
        assert_eq!(main(document.clone(), patch), document);
        assert_eq!(main(document.clone(), json!({"machine": null})), document);
        // Nor does it stand in the elements of a list.
        let patch = json!({"l": [{"a": 1, "b": null}]});
        assert_eq!(main(json!({}), patch), json!({"l": [{"a": 1}]}));
    }

    #[test]
    fn interfaces_and_vlans_go_by_their_names() {
        let document = json!({"machine": {"network": {"interfaces": [
            {"interface": "eth0", "mtu": 1500, "vlans": [{"vlanId": 5, "dhcp": true}]},
            {"deviceSelector": {"busPath": "0*"}, "dhcp": true},
        ]}}});
        let patch = json!({"machine": {"network": {"interfaces": [
            {"interface": "eth0", "mtu": 9000, "vlans": [{"vlanId": 5, "mtu": 1400}, {"vlanId": 6}]},
            {"deviceSelector": {"busPath": "0*"}, "dhcp": false},
            {"interface": "eth1"},
        ]}}});
        assert_eq!(
            main(document, patch)["machine"]["network"]["interfaces"],
            json!([
                {"interface": "eth0", "mtu": 9000, "vlans": [{"vlanId": 5, "dhcp": true, "mtu": 1400}, {"vlanId": 6}]},
                {"deviceSelector": {"busPath": "0*"}, "dhcp": false},
                {"interface": "eth1"},
            ])
        );
    }

    #[test]
    fn some_are_replaced() {
        let document = json!({"cluster": {
            "network": {"podSubnets": ["a"], "serviceSubnets": ["b"]},
            "apiServer": {"auditPolicy": {"rules": [1], "kind": "Policy"}},
        }});
        let patch = json!({"cluster": {
            "network": {"podSubnets": ["c"]},
            "apiServer": {"auditPolicy": {"rules": [2]}},
        }});
        assert_eq!(
            main(document, patch),
            json!({"cluster": {
                "network": {"podSubnets": ["c"], "serviceSubnets": ["b"]},
                "apiServer": {"auditPolicy": {"rules": [2]}},
            }})
        );
    }

    fn of_kind(kind: &str) -> Identity {
        Identity::Kind {
            api_version: "v1alpha1".into(),
            kind: kind.into(),
            name: None,
        }
    }

    #[test]
    fn documents_of_their_own_replace_the_same_as_the_large_one() {
        assert_eq!(
            merged(
                &json!({"podSubnets": ["a"], "serviceSubnets": ["b"], "dnsDomain": "d"}),
                &json!({"podSubnets": ["c"], "serviceSubnets": ["e", "f"]}),
                &of_kind("KubeNetworkConfig"),
            ),
            json!({"podSubnets": ["c"], "serviceSubnets": ["e", "f"], "dnsDomain": "d"})
        );
        for (kind, field) in [
            ("KubeAuditPolicyConfig", "configuration"),
            ("KubeAuthenticationConfig", "configuration"),
            ("KubeCredentialProviderConfig", "configuration"),
            ("KubeStaticPodConfig", "pod"),
        ] {
            assert_eq!(
                merged(
                    &json!({field: {"rules": [1], "kind": "Policy"}}),
                    &json!({field: {"rules": [2]}}),
                    &of_kind(kind),
                ),
                json!({field: {"rules": [2]}}),
                "{kind}"
            );
        }
        // A plugin's configuration is merged, as Talos does.
        assert_eq!(
            merged(
                &json!({"configuration": {"rules": [1]}}),
                &json!({"configuration": {"rules": [2]}}),
                &of_kind("KubeAdmissionControlConfig"),
            ),
            json!({"configuration": {"rules": [1, 2]}})
        );
    }

    #[test]
    fn a_rule_for_images_replaces_the_one_of_the_same_pattern() {
        let identity = of_kind("ImageVerificationConfig");
        let document =
            json!({"rules": [{"image": "a/*", "skip": true}, {"image": "*", "deny": true}]});
        let patch =
            json!({"rules": [{"image": "a/*", "deny": true}, {"image": "b/*", "skip": true}]});
        assert_eq!(
            merged(&document, &patch, &identity),
            json!({"rules": [{"image": "a/*", "deny": true}, {"image": "*", "deny": true}, {"image": "b/*", "skip": true}]})
        );
    }

    #[test]
    fn files_of_extensions_go_by_their_place() {
        let identity = Identity::Kind {
            api_version: "v1alpha1".into(),
            kind: "ExtensionServiceConfig".into(),
            name: Some("x".into()),
        };
        let file = |path: &str, content: &str| json!({"mountPath": path, "content": content});
        assert_eq!(
            merged(
                &json!({"configFiles": [file("/a", "old"), file("/b", "b")]}),
                &json!({"configFiles": [file("/a", "new")]}),
                &identity,
            ),
            json!({"configFiles": [file("/a", "new"), file("/b", "b")]})
        );
    }

    #[test]
    fn parts_and_elements_are_deleted() {
        let delete = |key: &str| json!({"interface": key, "$patch": "delete"});
        let document = json!({"machine": {
            "install": {"disk": "/dev/vda"},
            "network": {"interfaces": [{"interface": "eth0", "mtu": 1}, {"interface": "eth1"}]},
        }});
        let patch = json!({"machine": {
            "install": {"$patch": "delete"},
            "network": {"interfaces": [delete("eth0"), delete("eth7")]},
        }});
        assert_eq!(
            main(document, patch),
            json!({"machine": {"network": {"interfaces": [{"interface": "eth1"}]}}})
        );
        // A deletion of a missing part leaves nothing behind, and one without fields deletes nothing.
        let patch = json!({"a": {"b": {"$patch": "delete"}}, "l": [{"$patch": "delete"}]});
        assert_eq!(main(json!({"l": [1]}), patch), json!({"a": {}, "l": [1]}));
    }
}
