//! The record of an upgrade with a reboot, on STATE, for the version that boots next.

use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::handover::PendingUpgrade;
use crate::base::{removal, whole_file};
use crate::state_partition::UPGRADE;

/// An upgrade that a boot has to finish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[derive(Default)]
pub struct UpgradeRecord {
    /// The requested upgrade.
    pub upgrade: PendingUpgrade,
    /// Services that were up; the upgrade succeeds when they are up again.
    pub services_up: Vec<String>,
    /// The reasons of the failed tries, if they could note them.
    pub failures: Vec<String>,
}

impl UpgradeRecord {
    /// Reads the record; None if no upgrade is under way.
    pub fn load(state: &Path) -> anyhow::Result<Option<Self>> {
        whole_file::read_json(&state.join(UPGRADE.name))
    }

    /// Writes the record, whole or not at all.
    pub fn save(&self, state: &Path) -> anyhow::Result<()> {
        whole_file::replace_json(&state.join(UPGRADE.name), UPGRADE.mode, self)
    }

    /// Removes the record: the upgrade is over.
    pub fn remove(state: &Path) -> anyhow::Result<()> {
        let file = state.join(UPGRADE.name);
        removal::file(&file).with_context(|| format!("remove {}", file.display()))
    }

    /// Returns why the upgrade is given up, in one line.
    pub fn reason(&self) -> String {
        match self.failures.last() {
            Some(last) => format!("tried {} times; the last time: {last}", self.failures.len()),
            None => "it was started and did not become healthy, and could not tell why".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_record_lasts_until_it_is_removed() {
        let state = tempfile::tempdir().unwrap();
        assert_eq!(UpgradeRecord::load(state.path()).unwrap(), None);
        let mut record = UpgradeRecord::default();
        record.upgrade.to = "v0.2.0".to_owned();
        assert!(record.reason().contains("could not tell why"));
        record.failures.push("service web: failed".to_owned());
        record.save(state.path()).unwrap();
        let loaded = UpgradeRecord::load(state.path()).unwrap().unwrap();
        assert_eq!(loaded, record);
        assert!(loaded.reason().ends_with("service web: failed"));
        UpgradeRecord::remove(state.path()).unwrap();
        UpgradeRecord::remove(state.path()).unwrap();
        assert_eq!(UpgradeRecord::load(state.path()).unwrap(), None);
    }
}
