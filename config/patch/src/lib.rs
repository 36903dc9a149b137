//! Patches of machine configs: incomplete configs that are merged into a whole one (strategic merge patches), and lists of operations (JSON
//! patches).
//!
//! A config is one or more YAML documents. A patch is too, and each of its documents is merged with the one of the same kind and name, or
//! added when there is none ([`merge`]). A patch that is a list changes a single document ([`operations`]). Parts that a patch does not
//! touch stay as they were written, with comments, order and all ([`keep`]): people keep these files.
//!
//! The result of a patch is never larger than a config can be ([`size`]).
//!
//! The decision: a patch changes the text of the config. To read a config into its model and to write that out anew was the other choice: comments
//! and order would be lost, and with them each field that this version does not know.
//!
//! The crate reads no files: a program that takes patches from a network must not open a file that one of them names.

#![forbid(unsafe_code)]

mod documents;
mod keep;
mod merge;
mod operations;
mod size;

use instar_client::{Failure, FailureKind};
use serde_json::Value;

use documents::{Documents, Identity};
use operations::Operations;

pub use documents::Unreadable;
pub use size::Size;

/// A patch.
pub struct Patch {
    /// The name of the patch for messages.
    name: String,
    pieces: Vec<Piece>,
    size: Size,
}

/// A document of a patch.
enum Piece {
    /// A piece of config to merge.
    Config(Value),
    /// Operations to carry out.
    Operations(Operations),
}

impl Patch {
    /// Reads a patch. `name`: what messages call it, as in `the patch`.
    ///
    /// # Errors
    /// It is neither a piece of machine config nor a list of operations.
    pub fn read(name: &str, text: &str) -> Result<Self, Failure> {
        let parsed = Documents::parse(text).map_err(|error| {
            Failure::new(FailureKind::Usage, format!("cannot read {name}")).because(error)
        })?;
        let size = parsed.size().map_err(|reason| too_large(name, reason))?;
        let documents = parsed.into_values().filter(|value| !value.is_null());
        let pieces: Result<Vec<_>, _> = documents
            .map(|document| {
                Piece::read(document).map_err(|reason| {
                    Failure::new(FailureKind::Usage, format!("{name} is no patch: {reason}")).advise(
                        "a patch is a piece of machine config, or a list of operations (RFC 6902); a file is named with @ before it",
                    )
                })
            })
            .collect();
        Ok(Self {
            pieces: pieces?,
            name: name.to_owned(),
            size,
        })
    }

    /// How large it is. That can be far more than its text, by aliases.
    pub fn size(&self) -> Size {
        self.size
    }

    /// Whether it only merges: it has no operations.
    pub fn only_merges(&self) -> bool {
        let mut pieces = self.pieces.iter();
        pieces.all(|piece| matches!(piece, Piece::Config(_)))
    }
}

impl Piece {
    fn read(document: Value) -> Result<Self, String> {
        match document {
            Value::Object(_) => Ok(Piece::Config(document)),
            Value::Array(list) => Operations::read(list).map(Piece::Operations),
            other => Err(format!("it says only {}", documents::bare(other))),
        }
    }
}

/// The documents of a config, without empty ones.
///
/// # Errors
/// It is no YAML, or too large for a config.
pub fn documents(config: &str) -> Result<Vec<Value>, Unreadable> {
    let values = Documents::parse(config)?.into_values();
    let values = values.filter(|value| !value.is_null());
    Ok(values.map(documents::bare).collect())
}

/// The config after all patches, one after the other.
///
/// # Errors
/// It is no YAML, or has nothing that a patch deletes or changes, or becomes larger than a config can be.
pub fn apply(config: &str, patches: &[Patch]) -> Result<String, Failure> {
    let mut documents = Documents::parse(config).map_err(|error| {
        Failure::new(FailureKind::Usage, "cannot read the machine config").because(error)
    })?;
    for patch in patches {
        for piece in &patch.pieces {
            let changed = match piece {
                Piece::Config(config) => lay_over(&mut documents, config),
                Piece::Operations(operations) => carry_out(&mut documents, operations),
            };
            changed.map_err(|reason| {
                Failure::new(FailureKind::Usage, format!("{}: {reason}", patch.name))
            })?;
            // After each piece: the next one could make far more of what is too large already.
            let size = documents.size();
            size.map_err(|reason| too_large(&patch.name, reason))?;
        }
    }
    Ok(documents.to_string())
}

fn too_large(name: &str, reason: String) -> Failure {
    Failure::new(FailureKind::Usage, format!("{name}: {reason}"))
        .advise("leave out what the config does not need; an alias counts as often as it is used")
}

fn lay_over(documents: &mut Documents, piece: &Value) -> Result<(), String> {
    let identity = Identity::of(piece);
    let found = documents.find(&identity);
    if merge::is_deletion(piece) {
        let place = found.ok_or_else(|| format!("there is no {identity} to delete"))?;
        documents.remove(place);
        return Ok(());
    }
    match found {
        Some(place) => {
            let document = documents.get(place);
            let merged = merge::merged(document.value(), piece, &identity);
            let text = keep::rewritten(document.text(), document.value(), &merged);
            documents.replace(place, text, merged);
        }
        None => {
            let merged = merge::merged(&Value::Object(serde_json::Map::new()), piece, &identity);
            let text = keep::written(&merged);
            documents.push(text, merged);
        }
    }
    Ok(())
}

fn carry_out(documents: &mut Documents, operations: &Operations) -> Result<(), String> {
    let place = documents.nameless().ok_or(
        "a JSON patch cannot say which document it is for, and the config has none without a kind; write it as a piece of machine config",
    )?;
    let document = documents.get(place);
    let changed = operations.applied(document.value())?;
    let text = keep::rewritten(document.text(), document.value(), &changed);
    documents.replace(place, text, changed);
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const CONFIG: &str = "\
# of the machine in the cellar
version: v1alpha1 # the old shape
machine:
  type: controlplane
  certSANs:
    - 127.0.0.1 # itself
  unknown: {kept: as it is}
  install:
    disk: /dev/vda
cluster:
  network:
    podSubnets: [10.1.0.0/16]
---
# its name
apiVersion: v1alpha1
kind: HostnameConfig
auto: off # a word, not a truth value
hostname: old # for now
---
apiVersion: v1alpha1
kind: ContainerConfig
name: web
image: example/web:1
";

    fn read(text: &str) -> Result<Patch, Failure> {
        Patch::read("the patch", text)
    }

    fn patched(patches: &[&str]) -> String {
        let patches: Result<Vec<_>, _> = patches.iter().map(|patch| read(patch)).collect();
        apply(CONFIG, &patches.unwrap()).unwrap()
    }

    #[test]
    fn no_patch_changes_no_byte() {
        assert_eq!(patched(&[]), CONFIG);
        assert_eq!(patched(&["{}", "machine: {type: controlplane}"]), CONFIG);
    }

    #[test]
    fn only_what_is_touched_changes() {
        let changed = patched(&["machine: {certSANs: [node.example], install: {disk: /dev/vdb}}"]);
        let expected = CONFIG
            .replace(
                "    - 127.0.0.1 # itself\n",
                "    - 127.0.0.1 # itself\n    - node.example\n",
            )
            .replace("/dev/vda", "/dev/vdb");
        assert_eq!(changed, expected);
    }

    /// Texts that are numbers for people, or for other readers of YAML, come to the node as they were written: `0644` is not 644 there.
    #[test]
    fn numbers_stay_as_they_are_written() {
        const FORMS: [&str; 16] = [
            "0644",
            "0123456",
            "1.10",
            "1e3",
            "0x1f",
            "0b101",
            "+7",
            "1_000",
            "~",
            "yes",
            "true",
            "True",
            "-0",
            ".5",
            "1.5",
            "18446744073709551615",
        ];
        let list: String = FORMS.map(|form| format!("    - {form}\n")).concat();
        let quoted: String = FORMS.map(|form| format!("    - \"{form}\"\n")).concat();
        let told = |config: &str| {
            let document = config.split("---\n").find(|it| it.contains("0644"));
            instar_config::document_as_json(document.unwrap(), &|text, is_typed| {
                serde_json::json!([text, is_typed])
            })
            .unwrap()
        };
        // Beside a change, by a merge, and in a new document.
        let piece = format!("machine:\n  kept:\n{list}  quoted:\n{quoted}");
        let value = format!(
            "{{kept: [{}], quoted: [\"{}\"]}}",
            FORMS.join(", "),
            FORMS.join("\", \"")
        );
        let operations = format!("[{{op: add, path: /machine/new, value: {value}}}]");
        let document = format!("apiVersion: v1alpha1\nkind: X\n{piece}");
        let changed = patched(&[&piece, "machine: {type: worker}"]);
        for form in FORMS
            .iter()
            .filter(|form| !["~", "1_000", "yes"].contains(form))
        {
            assert!(
                changed.contains(&format!("- {form}\n")),
                "{form}: {changed}"
            );
        }
        let machine = told(&piece)["machine"].clone();
        for (config, path) in [
            (changed, "/machine"),
            (patched(&[&operations]), "/machine/new"),
            (patched(&[&document]), "/machine"),
            (
                patched(&[&document, "kind: X\napiVersion: v1alpha1\nmore: {}\n"]),
                "/machine",
            ),
        ] {
            let found = told(&config);
            let found = found.pointer(path).unwrap();
            assert_eq!(found["kept"], machine["kept"], "{config}");
            assert_eq!(found["quoted"], machine["quoted"], "{config}");
        }
    }

    #[test]
    fn documents_go_by_kind_and_name() {
        let changed = patched(&[
            "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: new\n---\napiVersion: v1alpha1\nkind: ContainerConfig\nname: web\nimage: example/web:2\n",
        ]);
        let expected = CONFIG
            .replace("hostname: old # for now", "hostname: new # for now")
            .replace("web:1", "web:2");
        assert_eq!(changed, expected);
        // Another name makes another document.
        let added =
            patched(&["apiVersion: v1alpha1\nkind: ContainerConfig\nname: db\nimage: d:1\n"]);
        let rest = added.strip_prefix(CONFIG).unwrap();
        let rest: Value = serde_saphyr::from_str(rest.strip_prefix("---\n").unwrap()).unwrap();
        assert_eq!(rest["name"], "db");
    }

    #[test]
    fn documents_can_be_deleted() {
        let delete = "apiVersion: v1alpha1\nkind: ContainerConfig\nname: web\n$patch: delete\n";
        let changed = patched(&[delete]);
        assert_eq!(
            changed,
            CONFIG
                .split("---\napiVersion: v1alpha1\nkind: ContainerConfig")
                .next()
                .unwrap()
        );
        let unknown = read(&delete.replace("web", "nobody")).unwrap();
        let refused = apply(CONFIG, &[unknown]).unwrap_err();
        assert!(refused.to_string().contains("nobody"), "{refused}");
    }

    #[test]
    fn patches_follow_each_other() {
        let changed = patched(&[
            "machine: {install: {disk: /dev/vdb}}",
            "machine: {install: {$patch: delete}}",
            "cluster: {network: {podSubnets: [10.2.0.0/16]}}",
        ]);
        let main: Value = serde_saphyr::from_str(changed.split("---\n").next().unwrap()).unwrap();
        assert_eq!(main["machine"]["install"], Value::Null);
        assert_eq!(
            main["cluster"]["network"]["podSubnets"],
            serde_json::json!(["10.2.0.0/16"])
        );
        assert!(changed.contains("unknown: {kept: as it is}"), "{changed}");
        assert!(changed.contains("# itself"), "{changed}");
    }

    #[test]
    fn what_is_no_patch_is_refused() {
        for (text, word) in [
            ("[{op: grow, path: /a}]", "operation 1"),
            ("just-words", "says only \"just-words\""),
            ("a: [", "cannot read"),
            // The name of a file is none.
            ("@/etc/hostname", "cannot read the patch"),
        ] {
            let refused = read(text).map(|_| ()).unwrap_err();
            assert!(refused.to_string().contains(word), "{text}: {refused}");
        }
    }

    #[test]
    fn operations_change_the_document_without_a_kind() {
        let changed = patched(&["- {op: test, path: /machine/type, value: controlplane}
- {op: replace, path: /machine/install/disk, value: /dev/vdb}
- {op: add, path: /machine/certSANs/0, value: node.example}
- {op: remove, path: /cluster}
"]);
        let expected = CONFIG
            .replace(
                "    - 127.0.0.1 # itself\n",
                "    - node.example\n    - 127.0.0.1 # itself\n",
            )
            .replace("/dev/vda", "/dev/vdb")
            .replace("cluster:\n  network:\n    podSubnets: [10.1.0.0/16]\n", "");
        assert_eq!(changed, expected);
        // The patch as JSON, and together with a piece of config.
        let changed = patched(&[
            r#"[{"op": "add", "path": "/machine/install/wipe", "value": true}]"#,
            "machine: {install: {disk: /dev/vdb}}",
        ]);
        let expected = CONFIG.replace("disk: /dev/vda\n", "disk: /dev/vdb\n    wipe: true\n");
        assert_eq!(changed, expected);
        assert_eq!(patched(&["[]"]), CONFIG);
    }

    #[test]
    fn operations_that_fail_change_nothing() {
        let failing = "[{op: remove, path: /cluster}, {op: remove, path: /machine/nodeLabels}]";
        let refused = apply(CONFIG, &[read(failing).unwrap()]).unwrap_err();
        let said = refused.to_string();
        assert!(
            said.contains("operation 2 (remove \"/machine/nodeLabels\")"),
            "{said}"
        );
    }

    /// Each patch is small, and so is each document.
    #[test]
    fn patches_do_not_make_too_much_of_a_config() {
        let list = vec!["x"; 12_000].join(",");
        let patches = ["A", "B", "C", "D", "E"]
            .map(|kind| read(&format!("kind: {kind}\nl: [{list}]")).unwrap());
        assert_eq!(patches[0].size().values, 12_003);
        assert!(apply("", &patches[..4]).is_ok());
        let refused = apply("", &patches).unwrap_err().to_string();
        assert!(refused.contains("too large"), "{refused}");
    }

    #[test]
    fn a_patch_tells_whether_it_only_merges() {
        for (patch, only_merges) in [
            ("a: 1\n---\nkind: X\n", true),
            ("# words", true),
            ("[]", false),
            ("a: 1\n---\n[{op: remove, path: /a}]", false),
        ] {
            assert_eq!(read(patch).unwrap().only_merges(), only_merges, "{patch}");
        }
    }

    #[test]
    fn operations_are_for_the_only_document() {
        let operations = [read("[{op: replace, path: /hostname, value: new}]").unwrap()];
        let one = "# of it\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: old\n";
        let changed = apply(one, &operations).unwrap();
        assert_eq!(changed, one.replace("old", "new"));
        let two = format!("{one}---\napiVersion: v1alpha1\nkind: TimeSyncConfig\n");
        let refused = apply(&two, &operations).unwrap_err().to_string();
        assert!(refused.contains("which document"), "{refused}");
    }
}
