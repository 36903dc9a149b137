//! Retries to bless the boot entry of a version that has proved itself, until the disk takes the change. Otherwise the next boots would use
//! up the entry's tries, and the version before would return.

use std::sync::Arc;
use std::time::Duration;

use super::trial_record::{self, UNBLESSED};
use crate::base::back_off::BackOff;
use crate::boot_loader::EspError;
use crate::machine::Machine;
use crate::operation_lock::Operation;
use crate::status;
use crate::store::Problem;
use crate::upgrade::UpgradeRecord;
use crate::upgrade::trial::Bless;

/// Pauses between two tries.
const PAUSES: BackOff = BackOff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(300),
};

/// Notes that the machine is not ready, and why, until the entry is blessed.
pub(in crate::sequences) fn start(machine: &Arc<Machine>, bless: Bless, error: &anyhow::Error) {
    tracing::error!("the boot entry of this version is not blessed: {error:#}");
    status::note_problem(machine, UNBLESSED, &format!("{error:#}"));
    // An entry that leads to another version does so at the next try, too.
    if let Some(EspError::OtherVersion { .. }) = error.downcast_ref() {
        return;
    }
    let machine = machine.clone();
    crate::base::task::spawn(async move { until_blessed(&machine, bless).await });
}

async fn until_blessed(machine: &Machine, bless: Bless) {
    let mut known = Known::default();
    // The first one that can be read is its own.
    let _ = known.is_another(trial_record::record(machine).await);
    for failures in 1.. {
        tokio::time::sleep(PAUSES.after(failures)).await;
        let Ok(_lock) = machine.lock_operation(Operation::BlessBootEntry) else {
            continue;
        };
        if machine.store.get::<Problem>(UNBLESSED).is_none() {
            tracing::info!("another operation has had the boot entry of this version blessed");
            return;
        }
        if known.is_another(trial_record::record(machine).await) {
            tracing::warn!("another upgrade has come: this version is not blessed any more");
            return;
        }
        match trial_record::finish(machine, bless, None).await {
            Ok(()) => {
                tracing::info!("the boot entry of this version is blessed now");
                machine.store.remove::<Problem>(UNBLESSED);
                return;
            }
            Err(error) => {
                let problem = format!("{error:#}");
                tracing::warn!("the boot entry of this version is still not blessed: {problem}");
                status::note_problem(machine, UNBLESSED, &problem);
            }
        }
    }
}

/// The record of the upgrade that brought this version, as it was when it could first be read: the disk that does not take the blessing may not
/// answer to that either. An upgrade that comes before then makes the blessing first.
#[derive(Debug, Default)]
struct Known(Option<Option<UpgradeRecord>>);

impl Known {
    /// Takes what was read now; returns whether it is the record of another upgrade.
    fn is_another(&mut self, read: anyhow::Result<Option<UpgradeRecord>>) -> bool {
        let Ok(now) = read else {
            return false;
        };
        let first = self.0.get_or_insert_with(|| now.clone());
        now.is_some() && *first != now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upgrade::PendingUpgrade;

    /// The record of the upgrade to a version; `None` if STATE does not answer.
    fn read(to: Option<Option<&str>>) -> anyhow::Result<Option<UpgradeRecord>> {
        let record = |to: &str| UpgradeRecord {
            upgrade: PendingUpgrade {
                to: to.to_owned(),
                ..PendingUpgrade::default()
            },
            ..UpgradeRecord::default()
        };
        match to {
            Some(to) => Ok(to.map(record)),
            None => Err(anyhow::anyhow!("no answer within 300 s")),
        }
    }

    /// It would stop the tries, and the next boots would use up the entry's.
    #[test]
    fn a_record_that_could_not_be_read_at_first_is_none_of_another_upgrade() {
        let (silent, none) = (None, Some(None));
        let (this, other) = (Some(Some("v0.2.0")), Some(Some("v0.3.0")));
        for (reads, expected) in [
            ([this, this, this], false),
            ([silent, silent, this], false),
            ([silent, this, this], false),
            ([this, silent, this], false),
            ([this, none, none], false),
            ([this, silent, other], true),
            ([silent, this, other], true),
            ([none, none, other], true),
        ] {
            let mut known = Known::default();
            let found = reads.map(|it| known.is_another(read(it)));
            assert_eq!(found, [false, false, expected], "{reads:?}");
        }
    }
}
