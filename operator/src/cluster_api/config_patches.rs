//! Patches of a machine config that may be applied again and again. Pure.
//!
//! Nobody knows here which patches a node has had since its first boot, so an update applies all of them. Each has to leave a config that has it as
//! it is: a merge that appends to a list does not, and a list of operations need not.
//!
//! Anybody in reach may have patches checked, so they are looked at before anything is made of them: no operations, and no more than their texts can
//! say without aliases.

use instar_config_patch::{Patch, Size, apply};
use instar_rollout_driver::says_the_same;
use serde_json::Value;

/// The most that a patch of a pool says without aliases: of 16,384 characters each value takes two, and each character four bytes.
const LARGEST: Size = Size {
    values: 8192,
    bytes: 65_536,
};

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
    let patch = Patch::read("the patch", patch).map_err(|failure| failure.chain())?;
    if !patch.only_merges() {
        return Err("it is a JSON patch; write it as a piece of machine config".to_owned());
    }
    let Size { values, bytes } = patch.size();
    if values > LARGEST.values || bytes > LARGEST.bytes {
        return Err(format!(
            "its aliases make {values} values and {bytes} bytes of it: write it without them"
        ));
    }
    let patches = [patch];
    // Where a patch that only merges does the same twice on an empty config, it does so on each: merging goes key by key.
    let applied = |config: &str| {
        apply(config, &patches).map_err(|failure| {
            let why = failure.chain();
            format!(
                "it needs a config that has something already, and would need it each time: {why}"
            )
        })
    };
    let once = applied("")?;
    match says_the_same(&once, &applied(&once)?) {
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
            // Also one that could be repeated.
            ("[{op: add, path: /a, value: b}]", "JSON patch"),
            ("a: b\n---\n[]", "JSON patch"),
            ("kind: X\n$patch: delete", "would need it each time"),
            ("machine: {certSANs: [a]}", "append to its lists"),
            ("a: 1\n---\nkind: X\nb: {c: [d]}", "append to its lists"),
        ] {
            let why = check_that_they_can_be_repeated(&texts(&["{}", bad])).unwrap_err();
            assert!(why.contains("patch 2"), "{why}");
            assert!(why.contains(words), "{why}");
        }
    }

    /// A few bytes that would take the memory of the whole server.
    #[test]
    fn a_patch_says_no_more_than_its_text() {
        let copies = ["{op: copy, from: '', path: /a/-}"; 60].join(", ");
        let aliases = format!(
            "a: &a [{}]\nb: [*a, *a, *a, *a, *a]\n",
            ["x"; 2000].join(",")
        );
        let long = format!(
            "a: &a {}\nb: [{}]\n",
            "x".repeat(8000),
            ["*a"; 10].join(",")
        );
        for (bad, words) in [
            (
                format!("[{{op: add, path: /a, value: []}}, {copies}]"),
                "JSON patch",
            ),
            (aliases, "12008 values"),
            (long, "88002 bytes"),
        ] {
            assert!(bad.len() <= 16_384);
            let why = check_one(&bad).unwrap_err();
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
