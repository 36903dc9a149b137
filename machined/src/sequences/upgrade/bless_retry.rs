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
    let record = recorded(machine).await;
    for failures in 1.. {
        tokio::time::sleep(PAUSES.after(failures)).await;
        let Ok(_lock) = machine.lock_operation(Operation::BlessBootEntry) else {
            continue;
        };
        if machine.store.get::<Problem>(UNBLESSED).is_none() {
            tracing::info!("another operation has had the boot entry of this version blessed");
            return;
        }
        let now = recorded(machine).await;
        if now.is_some_and(|now| record.as_ref() != Some(&now)) {
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

/// Returns the record of the upgrade under way, if STATE can be read.
async fn recorded(machine: &Machine) -> Option<UpgradeRecord> {
    trial_record::record(machine).await.ok().flatten()
}
