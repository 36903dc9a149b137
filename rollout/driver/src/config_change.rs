//! A change of machine configs, as a rollout brings it to its nodes.

use std::collections::BTreeMap;

use instar_client::{Failure, FailureKind};
use instar_config_patch::{Patch, apply, documents};
use instar_rollout::{MachineName, Release};
use instar_values::Digest;
use serde::{Deserialize, Serialize};

/// A change of machine configs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConfigChange {
    /// Patches for all nodes, each as its text, one after the other.
    Patches(Vec<String>),
    /// A whole config for each node.
    Files(BTreeMap<MachineName, String>),
}

/// A node's config before a change and after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeConfigs {
    /// The change.
    pub change: Release,
    /// Its config before.
    pub before: String,
    /// Its config after.
    pub after: String,
}

/// Where the configs of nodes before a change and after it are kept: the way back, and the proof that a node has the change. They hold secrets.
pub trait NodeConfigStore {
    /// The configs of a node; none if it was not asked to change yet.
    fn known(
        &self,
        node: &MachineName,
    ) -> impl Future<Output = Result<Option<NodeConfigs>, Failure>>;

    /// Keeps them, in place of those that are kept for this node.
    fn keep(
        &self,
        node: &MachineName,
        configs: &NodeConfigs,
    ) -> impl Future<Output = Result<(), Failure>>;
}

fn read_all(texts: &[String]) -> Result<Vec<Patch>, Failure> {
    let patches = (1..).zip(texts);
    let patches = patches.map(|(number, text)| {
        let name = match texts.len() {
            1 => "the patch".to_owned(),
            _ => format!("patch {number}"),
        };
        Patch::read(&name, text)
    });
    patches.collect()
}

impl ConfigChange {
    /// A change by patches, each as its text.
    ///
    /// # Errors
    /// A text is no patch.
    pub fn of_patches(texts: Vec<String>) -> Result<Self, Failure> {
        read_all(&texts)?;
        Ok(Self::Patches(texts))
    }

    /// The change as what a rollout leads to. The same change has the same digest.
    pub fn release(&self) -> Release {
        let text = match self {
            Self::Patches(texts) => serde_json::to_vec(texts),
            Self::Files(files) => serde_json::to_vec(files),
        };
        // Lists and maps of texts can always be written.
        release_of(&text.unwrap_or_default())
    }

    /// A node's config after the change.
    ///
    /// # Errors
    /// The config has nothing that a patch deletes or changes, or there is none for the node.
    pub fn applied_to(&self, node: &MachineName, config: &str) -> Result<String, Failure> {
        match self {
            Self::Patches(texts) => apply(config, &read_all(texts)?),
            Self::Files(files) => files.get(node).cloned().ok_or_else(|| {
                Failure::new(
                    FailureKind::Failed,
                    format!("the rollout has no config for {node}"),
                )
            }),
        }
    }

    /// Whether this config of a node has the change: it is the one that the rollout has made (`known`, if the rollout has touched the node), or the
    /// change changes nothing in it. The first is for a patch that cannot be applied twice, such as one that removes something; the second, for
    /// a config in which something else was changed since.
    pub fn is_in(&self, config: &str, node: &MachineName, known: Option<&NodeConfigs>) -> bool {
        let made = known.filter(|known| known.change == self.release());
        if made.is_some_and(|made| says_the_same(config, &made.after)) {
            return true;
        }
        let changed = self.applied_to(node, config);
        changed.is_ok_and(|changed| says_the_same(config, &changed))
    }
}

/// A config as what a node runs.
pub fn release_of(config: &[u8]) -> Release {
    let digest = Digest::of(config);
    Release {
        version: format!("config {:.8}", digest.hex()),
        digest: Some(digest),
        image: None,
    }
}

/// Whether two configs differ in nothing but comments and notation.
pub fn says_the_same(one: &str, other: &str) -> bool {
    let values = |text| documents(text).ok();
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
        let change = |patch: &str| ConfigChange::of_patches(vec![patch.to_owned()]).unwrap();
        let same = change("machine: {sysctls: {a: \"1\"}}");
        assert!(same.is_in(CONFIG, &lamp(), None));
        let other = change("machine: {sysctls: {a: \"2\"}}");
        assert!(!other.is_in(CONFIG, &lamp(), None));
        let after = other.applied_to(&lamp(), CONFIG).unwrap();
        assert!(other.is_in(&after, &lamp(), None));
        assert_ne!(same.release(), other.release());
        assert!(ConfigChange::of_patches(vec!["just words".to_owned()]).is_err());
    }

    #[test]
    fn a_patch_that_removes_something_is_in_the_config_that_it_made() {
        let patch = "[{op: remove, path: /machine/sysctls}]".to_owned();
        let change = ConfigChange::of_patches(vec![patch]).unwrap();
        let known = NodeConfigs {
            change: change.release(),
            before: CONFIG.to_owned(),
            after: change.applied_to(&lamp(), CONFIG).unwrap(),
        };
        assert!(!change.is_in(&known.after, &lamp(), None));
        assert!(change.is_in(&known.after, &lamp(), Some(&known)));
        assert!(!change.is_in(CONFIG, &lamp(), Some(&known)));
        let with_more = format!("{}\n---\nkind: HostnameConfig\n", known.after);
        assert!(
            !change.is_in(&with_more, &lamp(), Some(&known)),
            "it cannot be told"
        );
        // Another change says nothing of this one.
        let other = ConfigChange::of_patches(vec!["machine: {sysctls: {b: \"2\"}}".to_owned()]);
        let other = other.unwrap();
        assert!(!other.is_in(&known.after, &lamp(), Some(&known)));
    }

    #[test]
    fn a_config_that_was_changed_since_has_the_change_still() {
        let change = ConfigChange::of_patches(vec!["machine: {sysctls: {b: \"2\"}}".to_owned()]);
        let change = change.unwrap();
        let known = NodeConfigs {
            change: change.release(),
            before: CONFIG.to_owned(),
            after: change.applied_to(&lamp(), CONFIG).unwrap(),
        };
        let with_more = format!("{}---\nkind: HostnameConfig\n", known.after);
        assert!(change.is_in(&with_more, &lamp(), Some(&known)));
        assert!(!change.is_in(CONFIG, &lamp(), Some(&known)));
    }

    #[test]
    fn a_patch_that_cannot_be_read_is_named_by_its_number() {
        let of = |texts: &[&str]| {
            let texts = texts.iter().map(|text| (*text).to_owned()).collect();
            ConfigChange::of_patches(texts).unwrap_err().to_string()
        };
        assert!(of(&["[1]"]).starts_with("the patch is no patch"));
        assert!(of(&["{}", "just words"]).starts_with("patch 2 is no patch"));
        // The name of a file is none: it would be one of the program's computer.
        assert!(of(&["@/etc/hostname"]).starts_with("cannot read the patch"));
    }

    #[test]
    fn whole_configs_are_for_their_nodes_alone() {
        let files = [(lamp(), CONFIG.to_owned())].into();
        let change = ConfigChange::Files(files);
        let other_words = "version: v1alpha1\nmachine: {sysctls: {a: '1'}}";
        assert!(change.is_in(other_words, &lamp(), None));
        assert!(!change.is_in("version: v1alpha1", &lamp(), None));
        let missing = change.applied_to(&MachineName::from("lamp-2"), CONFIG);
        assert!(missing.unwrap_err().chain().contains("lamp-2"));
    }
}
