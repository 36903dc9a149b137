//! Patches of a machine config that may be applied again and again. Pure.
//!
//! Nobody knows here which patches a node has had since its first boot, so an update applies all of them. Each has to leave a config that has it as
//! it is: a merge that appends to a list does not, and a list of operations need not.

use instar_rollout::MachineName;
use instar_rollout_driver::{ConfigChange, says_the_same};
use serde_json::Value;

/// The patches that a field lists.
///
/// # Errors
/// It is no list of texts.
pub(super) fn listed(field: &Value) -> Result<Vec<String>, String> {
    let not = || "it is no list of patches, each a text".to_owned();
    let texts = field.as_array().ok_or_else(not)?.iter();
    let texts = texts.map(|text| text.as_str().map(str::to_owned));
    texts.collect::<Option<_>>().ok_or_else(not)
}

/// Whether one list is the other with more at its end. A patch that is taken away or changed would leave in the config of a node what it has
/// brought there.
///
/// # Errors
/// It is not, or is no list of patches.
pub(super) fn check_that_they_are_appended(
    before: Option<&Value>,
    after: &Value,
) -> Result<(), String> {
    let before = before.map(listed).transpose()?.unwrap_or_default();
    match listed(after)?.starts_with(&before) {
        true => Ok(()),
        false => {
            Err("in place, patches are only appended: none is taken away or changed".to_owned())
        }
    }
}

/// Whether each of these patches changes nothing in a config that has it.
///
/// # Errors
/// One does; says which.
pub(super) fn check_that_they_can_be_repeated(patches: &[String]) -> Result<(), String> {
    for (number, patch) in (1..).zip(patches) {
        check_one(patch).map_err(|why| format!("patch {number} of the config: {why}"))?;
    }
    Ok(())
}

fn check_one(patch: &str) -> Result<(), String> {
    if patch.is_empty() {
        return Err("it is empty".to_owned());
    }
    let change = ConfigChange::of_patches(vec![patch.to_owned()]);
    let change = change.map_err(|failure| failure.chain())?;
    // Where a patch that only merges does the same twice on an empty config, it does so on each: merging goes key by key.
    let apply = |config: &str| {
        let applied = change.applied_to(&MachineName::from(""), config);
        applied.map_err(|failure| {
            let why = failure.chain();
            format!(
                "it needs a config that has something already, and would need it each time: {why}"
            )
        })
    };
    let once = apply("")?;
    match says_the_same(&once, &apply(&once)?) {
        true => Ok(()),
        false => Err("each update would append to its lists again".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn texts(patches: &[&str]) -> Vec<String> {
        patches.iter().map(|it| (*it).to_owned()).collect()
    }

    #[test]
    fn a_patch_that_can_be_applied_twice_is_taken() {
        for good in [
            "machine: {sysctls: {a: '1'}, env: {$patch: delete}}",
            // A list that a patch replaces.
            "cluster: {network: {podSubnets: [10.1.0.0/16]}}",
            "kind: KubeletConfig\napiVersion: v1alpha1\nconfig: {maxPods: 200}\n---\nkind: X\nname: y\n",
            "# only words",
            "{}",
        ] {
            assert_eq!(
                check_that_they_can_be_repeated(&texts(&[good])),
                Ok(()),
                "{good}"
            );
        }
        assert_eq!(check_that_they_can_be_repeated(&[]), Ok(()));
    }

    #[test]
    fn another_one_is_named_by_its_number() {
        for (bad, words) in [
            ("", "empty"),
            ("a: [", "cannot read"),
            ("just words", "no patch"),
            (
                "[{op: remove, path: /machine/env}]",
                "would need it each time",
            ),
            (
                "[{op: add, path: /machine/env/A, value: b}]",
                "would need it each time",
            ),
            ("kind: X\n$patch: delete", "would need it each time"),
            ("machine: {certSANs: [a]}", "append to its lists"),
            ("a: 1\n---\nkind: X\nb: {c: [d]}", "append to its lists"),
        ] {
            let why = check_that_they_can_be_repeated(&texts(&["{}", bad])).unwrap_err();
            assert!(why.contains("patch 2"), "{why}");
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn patches_are_appended_alone() {
        for (before, after, is_appended) in [
            (json!(["a"]), json!(["a", "b"]), true),
            (json!([]), json!(["a"]), true),
            (json!(["a"]), json!(["b", "a"]), false),
            (json!(["a", "b"]), json!(["a"]), false),
            (json!(["a"]), json!(["b"]), false),
            (json!(["a"]), json!([]), false),
            (json!("a"), json!(["a"]), false),
            (json!(["a"]), json!(["a", 1]), false),
            (json!(["a"]), json!(null), false),
        ] {
            let checked = check_that_they_are_appended(Some(&before), &after);
            assert_eq!(checked.is_ok(), is_appended, "{before} {after}");
        }
        assert!(check_that_they_are_appended(None, &json!(["a"])).is_ok());
    }
}
