//! Counts this start, once the disk is there. Nothing waits for it, and a disk that fails costs only the counts.

use std::path::PathBuf;
use std::sync::Arc;

use crate::base::blocking_io;
use crate::machine::Machine;
use crate::state_partition::STARTS;
use crate::upgrade::{Start, StartCounts};

/// Counts this start in the background, in the record of this directory, and publishes the counts.
pub(in crate::sequences) fn count(machine: &Arc<Machine>, directory: PathBuf) {
    crate::base::task::spawn(count_once(machine.clone(), directory));
}

async fn count_once(machine: Arc<Machine>, directory: PathBuf) {
    let counted = machine.clone();
    let counting = move || {
        let generation = &counted.generation;
        let start = Start {
            kernel: &generation.kernel_boot_id.to_string(),
            generation: generation.number,
            is_rollback: counted.upgrades.is_rollback(),
        };
        StartCounts::count_in(&directory, start)
    };
    match blocking_io::within(blocking_io::ANSWER, counting).await {
        Ok((counts, written)) => {
            if let Err(error) = &written {
                tracing::warn!("this start is not counted over a reboot: {error:#}");
            }
            if machine.disk.state().is_some() {
                STARTS.note_written(&written);
            }
            machine.store.put(StartCounts::ID, counts);
        }
        Err(error) => tracing::warn!("this start is not counted: {error}"),
    }
}
