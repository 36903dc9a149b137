//! Looks once after each start, and once a day from then on, whether the versions on the disk would still start: one that would not is told before
//! it is needed.
//!
//! It changes nothing on the disk. What failed to be read today may be read tomorrow, and the loader takes a version that is there before none.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::steps::boot_assets;
use crate::boot_loader::{KeptVersion, Unbootable};
use crate::machine::Machine;
use crate::store::{Resource, Store};

/// Pause after the boot: the machine has its services then, and reads no more of its own.
const AFTER_START: Duration = Duration::from_secs(120);
/// Time between two looks.
const EACH: Duration = Duration::from_secs(24 * 3600);
/// Time between two looks while the partition cannot be read.
const AGAIN: Duration = Duration::from_secs(3600);

/// A version on the disk that would not start. Its id is the order of its boot entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct UnbootableFact {
    /// The version.
    pub(super) version: String,
    /// Whether the next boot takes it.
    pub(super) is_next: bool,
    /// Whether the firmware has revoked it. If not, its UKI is damaged.
    pub(super) is_revoked: bool,
    /// Why it would not start.
    pub(super) why: String,
}

impl Resource for UnbootableFact {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "UnbootableVersions.instar.dev";
}

/// Looks for as long as machined runs.
pub async fn keep(machine: Arc<Machine>) {
    let mut settled = machine.watch_settled();
    if settled.wait_for(|settled| *settled).await.is_err() {
        return;
    }
    tokio::time::sleep(AFTER_START).await;
    loop {
        // In memory of its own, which is there only while it looks.
        let pause = match Box::pin(look(&machine)).await {
            Ok(()) => EACH,
            Err(error) => {
                tracing::warn!(
                    "nobody can tell whether the versions on the disk would start: {error:#}"
                );
                AGAIN
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Looks at each version on the disk.
async fn look(machine: &Machine) -> anyhow::Result<()> {
    let Some(installed) = boot_assets::installed(machine).await? else {
        return Ok(());
    };
    let kept = boot_assets::kept_versions(&installed).await?;
    for version in &kept {
        let found = boot_assets::check_version(machine, &installed, version.order).await?;
        note(&machine.store, version, found);
    }
    let is_kept = |id: &str| kept.iter().any(|version| version.order.to_string() == id);
    machine.store.retain::<UnbootableFact>(is_kept);
    Ok(())
}

/// Notes what was found of a version.
fn note(store: &Store, version: &KeptVersion, found: Option<Unbootable>) {
    let id = version.order.to_string();
    let (is_revoked, why) = match found {
        None => return store.remove::<UnbootableFact>(&id),
        Some(Unbootable::Damaged(why)) => (false, why),
        Some(Unbootable::Revoked(why)) => (true, why),
    };
    let fact = UnbootableFact {
        version: version.version.clone(),
        is_next: version.is_next,
        is_revoked,
        why,
    };
    store.put(&id, fact);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_told_until_it_is_mended() {
        let store = Store::default();
        let version = KeptVersion {
            order: 7,
            version: "v0.2.0".to_owned(),
            is_next: true,
        };
        let told = |found| {
            note(&store, &version, found);
            let facts = store.list::<UnbootableFact>().into_iter();
            let facts = facts.map(|(_, it)| (it.version, it.is_next, it.is_revoked, it.why));
            facts.collect::<Vec<_>>()
        };
        let (damaged, revoked) = ("it rots".to_owned(), "dbx".to_owned());
        let name = || "v0.2.0".to_owned();
        assert!(told(None).is_empty());
        assert_eq!(
            told(Some(Unbootable::Damaged(damaged.clone()))),
            [(name(), true, false, damaged)]
        );
        assert_eq!(
            told(Some(Unbootable::Revoked(revoked.clone()))),
            [(name(), true, true, revoked)]
        );
        assert!(told(None).is_empty());
    }
}
