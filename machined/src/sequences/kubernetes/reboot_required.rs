//! Why a reboot of the machine waits, for agents that do it when it suits the cluster.

use anyhow::Context as _;

use crate::base::blocking_io;
use crate::machine::Machine;
use crate::upgrade::UpgradeRecord;

/// Returns why a reboot waits; `None` if none does. A version waits in memory, or on the disk if it needs another kernel.
///
/// # Errors
/// STATE cannot be read.
pub(super) async fn reboot_required(machine: &Machine) -> anyhow::Result<Option<String>> {
    let version = match machine.upgrades.prepared_version() {
        Some(version) => Some(version),
        None => on_disk(machine).await?,
    };
    Ok(version.map(|version| format!("{version} is prepared and starts with a reboot")))
}

/// Returns the version that the next boot tries. While an operation runs, nothing waits: an upgrade writes its record too, and starts the
/// version itself.
async fn on_disk(machine: &Machine) -> anyhow::Result<Option<String>> {
    if machine.operations.check_free().is_err() {
        return Ok(None);
    }
    let Some(state) = machine.disk.state().map(ToOwned::to_owned) else {
        return Ok(None);
    };
    let read = move || UpgradeRecord::load(&state);
    let record = blocking_io::within(blocking_io::ANSWER, read).await?;
    let record = record.context("read the record of the upgrade under way")?;
    Ok(record.and_then(|record| waiting(record, &machine.running.version)))
}

/// Returns the version of a record that waits for its first boot. The running version's is on trial, also after a start without a boot.
fn waiting(record: UpgradeRecord, running: &str) -> Option<String> {
    let upgrade = record.upgrade;
    (upgrade.boot_entry.is_some() && upgrade.to != running).then_some(upgrade.to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upgrade::PendingUpgrade;

    fn record(to: &str, boot_entry: Option<u32>) -> UpgradeRecord {
        UpgradeRecord {
            upgrade: PendingUpgrade {
                to: to.to_owned(),
                boot_entry,
                ..PendingUpgrade::default()
            },
            ..UpgradeRecord::default()
        }
    }

    #[test]
    fn a_version_on_the_disk_waits_until_it_runs() {
        for (to, boot_entry, expected) in [
            ("v0.2.0", Some(2), Some("v0.2.0")),
            ("v0.1.0", Some(2), None),
            ("v0.2.0", None, None),
        ] {
            let found = waiting(record(to, boot_entry), "v0.1.0");
            assert_eq!(found.as_deref(), expected, "{to}");
        }
    }
}
