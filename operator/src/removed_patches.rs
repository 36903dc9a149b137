//! Patches that were taken out of a pool and stay in force on its nodes: nobody takes them back, so the pool says it. Pure.
//!
//! ```text
//!  in `configPatches`, and nodes have it ─► taken out, and no other patch sets what it set ─► told
//!                                            it is in the list again, or a person says that it is undone ─► forgotten
//! ```
//!
//! The decision: told, and not undone. The list is applied to the config that a node has, in which a person may have set the same since: only a
//! person knows the value that is meant to be there.

use std::collections::BTreeSet;

use instar_config_patch::documents;
use instar_rollout::{MachineName, Record, Step};
use instar_rollout_driver::ConfigChange;
use instar_values::Digest;
use serde_json::Value;

use crate::api::{RemovedPatch, UNDONE_PATCHES};

/// Patches that are remembered: two lists as long as a list can be.
const MOST: usize = 32;
/// The longest begin of a patch that is shown, in bytes.
const LONGEST: usize = 80;
/// The key of a piece that deletes what it would be merged with.
const DELETION: &str = "$patch";
/// A config in which nothing is set, to find out what a patch sets.
const EMPTY: &str = "version: v1alpha1\nmachine: {}\ncluster: {}\n";

/// The last rollout of configs.
pub(crate) struct Last<'a> {
    pub(crate) patches: &'a [String],
    pub(crate) record: &'a Record,
}

/// Notes which patches of the last rollout of configs are not wanted any more and stay in force. `undone`: the fingerprints of those that a person
/// has undone, one after the other.
pub(crate) fn note(
    known: &mut Vec<RemovedPatch>,
    last: Option<&Last<'_>>,
    wanted: &[String],
    undone: &str,
) {
    let undone: BTreeSet<&str> = undone
        .split(|letter: char| letter == ',' || letter.is_whitespace())
        .collect();
    let wanted_prints: BTreeSet<String> = wanted.iter().map(|text| fingerprint(text)).collect();
    let is_over = |print: &str| undone.contains(print) || wanted_prints.contains(print);
    known.retain(|one| !is_over(&one.fingerprint));
    let Some(last) = last else {
        return;
    };
    let nodes = nodes_with_it(last.record);
    for text in last.patches.iter().filter(|text| !wanted.contains(text)) {
        let print = fingerprint(text);
        known.retain(|one| one.fingerprint != print);
        if nodes > 0 && !is_over(&print) && stays(text, wanted) {
            known.push(RemovedPatch {
                begins: begin(text),
                fingerprint: print,
                nodes,
            });
        }
    }
    known.drain(..known.len().saturating_sub(MOST));
}

/// The nodes that have what the rollout brings, or may have it in a moment.
fn nodes_with_it(record: &Record) -> u32 {
    let entries = record.machines.values();
    let with_it = entries.filter(|entry| {
        matches!(
            entry.step,
            Step::Updated { .. } | Step::Switching { .. } | Step::Stuck { .. }
        )
    });
    u32::try_from(with_it.count()).unwrap_or(u32::MAX)
}

/// Whether something that the patch sets is there after the wanted patches as well, and not by them. A patch that cannot be compared stays: it
/// changes or deletes what a node's config has.
fn stays(removed: &str, wanted: &[String]) -> bool {
    if removed.contains(DELETION) {
        return true;
    }
    let (Some(empty), Some(set)) = (values(&[]), values(&[removed])) else {
        return true;
    };
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let both: Vec<&str> = [&[removed][..], &wanted[..]].concat();
    let Some(both) = values(&both) else {
        return true;
    };
    // Patches that delete what the removed one has set cannot be applied without it: they set nothing.
    let by_others = values(&wanted).unwrap_or_default();
    let mut own = set.difference(&empty);
    own.any(|value| both.contains(value) && !by_others.contains(value))
}

/// All values of a config after these patches, each with its place; none if they cannot be applied to an empty one.
fn values(patches: &[&str]) -> Option<BTreeSet<String>> {
    let texts = patches.iter().map(|text| (*text).to_owned()).collect();
    let change = ConfigChange::of_patches(texts).ok()?;
    let config = change.applied_to(&MachineName::from("any"), EMPTY).ok()?;
    let mut found = BTreeSet::new();
    for document in documents(&config).ok()? {
        let name = |key: &str| {
            document
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let place = format!("{} {}", name("kind"), name("name"));
        collect(&place, &document, &mut found);
    }
    Some(found)
}

/// Elements of a list are the same wherever they are in it: patches append to lists.
fn collect(place: &str, value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                collect(&format!("{place}/{key}"), value, found);
            }
        }
        Value::Array(elements) => {
            for element in elements {
                collect(&format!("{place}/-"), element, found);
            }
        }
        value => {
            found.insert(format!("{place}={value}"));
        }
    }
}

fn fingerprint(patch: &str) -> String {
    format!("{:.8}", Digest::of(patch.as_bytes()).hex())
}

/// The begin of a patch, by which a person knows it again.
fn begin(patch: &str) -> String {
    let line = patch.split_whitespace().collect::<Vec<_>>().join(" ");
    line[..line.floor_char_boundary(LONGEST)].to_owned()
}

/// The patches in a sentence, with what to do about them; none without one.
pub(crate) fn told(known: &[RemovedPatch]) -> Option<String> {
    let first = known.first()?;
    let one = |it: &RemovedPatch| {
        let nodes = if it.nodes == 1 { "node" } else { "nodes" };
        format!("{} ({}) on {} {nodes}", it.fingerprint, it.begins, it.nodes)
    };
    let listed: Vec<String> = known.iter().map(one).collect();
    let more = match known.len() {
        MOST => format!("; earlier ones than these {MOST} are not listed any more"),
        _ => String::new(),
    };
    Some(format!(
        "taken out of configPatches, and in force as before: {}{more}. Nothing undoes them: add a patch that sets or deletes the same, or change the \
         nodes' configs. Then name them in the annotation {UNDONE_PATCHES}, as in {UNDONE_PATCHES}={}",
        listed.join(", "),
        first.fingerprint,
    ))
}

/// The same in some words, for the end of another sentence.
pub(crate) fn in_short(known: &[RemovedPatch]) -> Option<String> {
    match known.len() {
        0 => None,
        1 => Some("a patch that was taken out stays in force".to_owned()),
        number => Some(format!(
            "{number} patches that were taken out stay in force"
        )),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use instar_rollout::{Member, Moment, Policy};

    use super::*;

    const SYSCTL: &str = "machine: {sysctls: {vm.swappiness: \"10\"}}";
    const OTHER: &str = "machine: {sysctls: {vm.swappiness: \"20\"}}";
    const LABELS: &str = "apiVersion: v1alpha1\nkind: KubeNodeConfig\nlabels: {a: \"7\"}\n";

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    /// A rollout of these patches, which one of two nodes has.
    fn record(patches: &[String]) -> Record {
        let members = ["n1", "n2"].map(|name| (MachineName::from(name), Member::default()));
        let release = ConfigChange::of_patches(patches.to_vec())
            .unwrap()
            .release();
        let mut record = Record::begin(release, vec![Policy::default()], members.into()).unwrap();
        let name = MachineName::from("n1");
        record.machines.get_mut(&name).unwrap().step = Step::Updated { at: Moment(1) };
        record
    }

    /// What is noted after a rollout of the first list with the second one in the pool.
    fn noted(known: &mut Vec<RemovedPatch>, rolled: &[&str], wanted: &[&str], undone: &str) {
        let patches = texts(rolled);
        let record = record(&patches);
        let last = Last {
            patches: &patches,
            record: &record,
        };
        note(known, Some(&last), &texts(wanted), undone);
    }

    fn prints(known: &[RemovedPatch]) -> Vec<String> {
        known.iter().map(|one| one.fingerprint.clone()).collect()
    }

    #[test]
    fn a_patch_that_is_taken_out_is_told_of_until_it_is_undone() {
        let mut known = Vec::new();
        noted(&mut known, &[SYSCTL, LABELS], &[SYSCTL, LABELS], "");
        assert!(known.is_empty());
        noted(&mut known, &[SYSCTL, LABELS], &[SYSCTL], "");
        assert_eq!(prints(&known), [fingerprint(LABELS)]);
        assert_eq!(known[0].nodes, 1);
        // The next rollout knows nothing of it.
        noted(&mut known, &[SYSCTL], &[SYSCTL], "");
        assert_eq!(prints(&known), [fingerprint(LABELS)]);
        let said = told(&known).unwrap();
        let begin = format!("{} (apiVersion: v1alpha1 kind: Kube", fingerprint(LABELS));
        assert!(
            said.contains(&begin) && said.contains(" on 1 node."),
            "{said}"
        );
        // The last patch, too: no rollout begins then.
        noted(&mut known, &[SYSCTL], &[], "");
        assert_eq!(prints(&known), [fingerprint(LABELS), fingerprint(SYSCTL)]);
        assert_eq!(
            in_short(&known).unwrap(),
            "2 patches that were taken out stay in force"
        );
        let undone = format!("{}, other", fingerprint(SYSCTL));
        noted(&mut known, &[SYSCTL], &[], &undone);
        assert_eq!(prints(&known), [fingerprint(LABELS)]);
        noted(&mut known, &[SYSCTL], &[SYSCTL, LABELS], "");
        assert!(known.is_empty() && told(&known).is_none() && in_short(&known).is_none());
    }

    #[test]
    fn a_patch_is_replaced_by_one_that_sets_or_deletes_the_same() {
        let deletes = "machine: {sysctls: {vm.swappiness: {$patch: delete}}}";
        for (removed, wanted, stays) in [
            (SYSCTL, &[OTHER][..], false),
            // The same in other words.
            (
                SYSCTL,
                &["machine:\n  sysctls:\n    vm.swappiness: \"10\"\n"],
                false,
            ),
            (SYSCTL, &[deletes], false),
            (SYSCTL, &[LABELS], true),
            (
                "machine: {sysctls: {a: \"1\", b: \"2\"}}",
                &["machine: {sysctls: {a: \"3\"}}"],
                true,
            ),
            (LABELS, &[&LABELS.replace('7', "8")], false),
            ("{}", &[], false),
            // It cannot be told.
            ("[{op: remove, path: /machine/sysctls}]", &[], true),
            (deletes, &[], true),
        ] {
            let mut known = Vec::new();
            noted(&mut known, &[removed], wanted, "");
            assert_eq!(!known.is_empty(), stays, "{removed} {wanted:?}");
        }
        // Undone by the next list, before its rollout has begun.
        let mut known = Vec::new();
        noted(&mut known, &[SYSCTL], &[], "");
        assert_eq!(known.len(), 1);
        noted(&mut known, &[SYSCTL], &[deletes], "");
        assert!(known.is_empty());
    }

    #[test]
    fn a_patch_that_no_node_has_is_not_told_of() {
        let patches = texts(&[SYSCTL]);
        let mut record = record(&patches);
        for entry in record.machines.values_mut() {
            entry.step = Step::Returned { at: Moment(2) };
        }
        let last = Last {
            patches: &patches,
            record: &record,
        };
        let mut known = Vec::new();
        note(&mut known, Some(&last), &[], "");
        note(&mut known, None, &[], "");
        assert!(known.is_empty());
    }

    #[test]
    fn the_list_has_a_bound_and_says_so() {
        let all: Vec<String> = (0..MOST + 9)
            .map(|number| {
                format!(
                    "machine: {{sysctls: {{s{number}: \"{}\"}}}}",
                    "ü".repeat(99)
                )
            })
            .collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut known = Vec::new();
        noted(&mut known, &all, &[], "");
        assert_eq!(known.len(), MOST);
        assert_eq!(
            known.last().unwrap().fingerprint,
            fingerprint(all.last().unwrap())
        );
        assert!(known.iter().all(|one| one.begins.len() <= LONGEST));
        assert!(told(&known).unwrap().contains("not listed any more"));
    }
}
