//! A change of machine configs, as a rollout brings it to its nodes.

use std::collections::BTreeMap;
use std::path::Path;

use instar_client::{Failure, FailureKind};
use instar_rollout::{MachineName, Release};
use instar_values::Digest;
use serde::{Deserialize, Serialize};

use crate::patch;

/// A change of machine configs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ConfigChange {
    /// Patches for all nodes, each as its text, one after the other.
    Patches(Vec<String>),
    /// A whole config for each node.
    Files(BTreeMap<MachineName, String>),
}

/// A node's config before a change and after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NodeConfigs {
    /// The change.
    pub(super) change: Release,
    pub(super) before: String,
    pub(super) after: String,
}

impl ConfigChange {
    /// Reads patches as they stand on the command line: `@FILE`, or the patch itself.
    pub(super) fn patches(arguments: &[String]) -> Result<Self, Failure> {
        let texts: Result<Vec<_>, _> = arguments.iter().map(|it| patch::text(it)).collect();
        let texts = texts?;
        patch::read_all(&texts)?;
        Ok(Self::Patches(texts))
    }

    /// Reads the file NAME.yaml of each node.
    pub(super) fn files<'a>(
        folder: &Path,
        nodes: impl Iterator<Item = &'a MachineName>,
    ) -> Result<Self, Failure> {
        let read = |name: &MachineName| {
            let file = folder.join(format!("{name}.yaml"));
            let text = std::fs::read_to_string(&file)
                .map_err(|error| Failure::io(format!("cannot read {}", file.display()), error))?;
            Ok((name.clone(), text))
        };
        nodes.map(read).collect::<Result<_, _>>().map(Self::Files)
    }

    /// The change as what a rollout leads to. The same change has the same digest.
    pub(super) fn release(&self) -> Release {
        let text = match self {
            Self::Patches(texts) => serde_json::to_vec(texts),
            Self::Files(files) => serde_json::to_vec(files),
        };
        // Lists and maps of texts can always be written.
        release_of(&text.unwrap_or_default())
    }

    /// A node's config after the change.
    pub(super) fn applied_to(&self, node: &MachineName, config: &str) -> Result<String, Failure> {
        match self {
            Self::Patches(texts) => patch::apply(config, &patch::read_all(texts)?),
            Self::Files(files) => files.get(node).cloned().ok_or_else(|| {
                Failure::new(
                    FailureKind::Failed,
                    format!("the rollout has no config for {node}"),
                )
            }),
        }
    }

    /// Whether this config of a node has the change. `known` is what the rollout has made of the config, if it has touched the node: a
    /// patch that removes something cannot be applied twice.
    pub(super) fn is_in(
        &self,
        config: &str,
        node: &MachineName,
        known: Option<&NodeConfigs>,
    ) -> bool {
        match known.filter(|known| known.change == self.release()) {
            Some(known) => says_the_same(config, &known.after),
            None => {
                let changed = self.applied_to(node, config);
                changed.is_ok_and(|changed| says_the_same(config, &changed))
            }
        }
    }
}

/// A config as what a node runs.
pub(super) fn release_of(config: &[u8]) -> Release {
    let digest = Digest::of(config);
    Release {
        version: format!("config {:.8}", digest.hex()),
        digest: Some(digest),
        image: None,
    }
}

/// Whether two configs differ in nothing but comments and notation.
pub(super) fn says_the_same(one: &str, other: &str) -> bool {
    let values = |text| patch::documents(text).ok();
    one == other || matches!((values(one), values(other)), (Some(a), Some(b)) if a == b)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const CONFIG: &str = "version: v1alpha1 # ours\nmachine:\n  sysctls: {a: \"1\"}\n";

    fn lamp() -> MachineName {
        MachineName::from("lamp-1")
    }

    #[test]
    fn a_patch_that_changes_nothing_is_in_the_config() {
        let change = |patch: &str| ConfigChange::patches(&[patch.to_owned()]).unwrap();
        let same = change("machine: {sysctls: {a: \"1\"}}");
        assert!(same.is_in(CONFIG, &lamp(), None));
        let other = change("machine: {sysctls: {a: \"2\"}}");
        assert!(!other.is_in(CONFIG, &lamp(), None));
        let after = other.applied_to(&lamp(), CONFIG).unwrap();
        assert!(other.is_in(&after, &lamp(), None));
        assert_ne!(same.release(), other.release());
        assert!(ConfigChange::patches(&["just words".to_owned()]).is_err());
    }

    #[test]
    fn a_patch_that_removes_something_is_in_the_config_that_it_made() {
        let patch = "[{op: remove, path: /machine/sysctls}]".to_owned();
        let change = ConfigChange::patches(&[patch]).unwrap();
        let known = NodeConfigs {
            change: change.release(),
            before: CONFIG.to_owned(),
            after: change.applied_to(&lamp(), CONFIG).unwrap(),
        };
        assert!(!change.is_in(&known.after, &lamp(), None));
        assert!(change.is_in(&known.after, &lamp(), Some(&known)));
        assert!(!change.is_in(CONFIG, &lamp(), Some(&known)));
        // Another change says nothing of this one.
        let other = ConfigChange::patches(&["machine: {sysctls: {b: \"2\"}}".to_owned()]).unwrap();
        assert!(!other.is_in(&known.after, &lamp(), Some(&known)));
    }

    #[test]
    fn a_folder_has_a_file_for_each_node() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("lamp-1.yaml"), CONFIG).unwrap();
        let change = ConfigChange::files(folder.path(), [&lamp()].into_iter()).unwrap();
        assert!(change.is_in(
            "version: v1alpha1\nmachine: {sysctls: {a: '1'}}",
            &lamp(),
            None
        ));
        assert!(!change.is_in("version: v1alpha1", &lamp(), None));
        let missing =
            ConfigChange::files(folder.path(), [&MachineName::from("lamp-2")].into_iter());
        assert!(missing.unwrap_err().chain().contains("lamp-2.yaml"));
    }
}
