//! A version that has proved itself, and whose boot entry could not be blessed: it is tried again until the disk takes it. Otherwise the
//! next boots would use up the entry's tries, and the version before would be back.

use std::sync::Arc;
use std::time::Duration;

use super::trial_record;
use crate::base::back_off::BackOff;
use crate::boot_loader::EspError;
use crate::machine::Machine;
use crate::operation_lock::Operation;
use crate::status;
use crate::store::Problem;
use crate::upgrade::UpgradeRecord;
use crate::upgrade::trial::Bless;

/// The machine is not ready for this.
const PROBLEM: &str = "boot entry";
/// Between two tries.
const PAUSES: BackOff = BackOff {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(300),
};

/// Notes that the machine is not ready, and why, until the entry is blessed.
pub(in crate::sequences) fn start(machine: &Arc<Machine>, bless: Bless, error: &anyhow::Error) {
    tracing::error!("the boot entry of this version is not blessed: {error:#}");
    status::note_problem(machine, PROBLEM, &format!("{error:#}"));
    // What leads elsewhere does so the next time, too.
    if let Some(EspError::OtherVersion { .. }) = error.downcast_ref() {
        return;
    }
    let machine = machine.clone();
    tokio::spawn(async move { until_blessed(&machine, bless).await });
}

async fn until_blessed(machine: &Machine, bless: Bless) {
    let record = recorded(machine);
    for failures in 1.. {
        tokio::time::sleep(PAUSES.after(failures)).await;
        let Ok(_lock) = machine.lock_operation(Operation::BlessBootEntry) else {
            continue;
        };
        if recorded(machine).is_some_and(|now| record.as_ref() != Some(&now)) {
            tracing::warn!("another upgrade has come: this version is not blessed any more");
            return;
        }
        match trial_record::finish(machine, bless).await {
            Ok(()) => {
                tracing::info!("the boot entry of this version is blessed now");
                machine.store.remove::<Problem>(PROBLEM);
                return;
            }
            Err(error) => {
                let problem = format!("{error:#}");
                tracing::warn!("the boot entry of this version is still not blessed: {problem}");
                status::note_problem(machine, PROBLEM, &problem);
            }
        }
    }
}

/// The upgrade that is under way, as far as STATE can be read.
fn recorded(machine: &Machine) -> Option<UpgradeRecord> {
    trial_record::record(machine).ok().flatten()
}
