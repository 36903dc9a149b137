//! Counts of starts: how often the machine has booted, started a generation, and gone back to a version.
//!
//! ```text
//!                         boots   generations                     rollbacks
//!   a new kernel            +1    + its generation's number        +1 if the loader has given a version up for it
//!   the same kernel          0    + the numbers since the last     +1 if init has given a version up for it
//!   the same generation      0    0                                0      machined has restarted
//! ```
//!
//! A generation that never got this far, because it failed, is counted by the next one: init numbers them. A kernel that never got this far
//! is not counted. The counts are written once for each generation, when the disk is there; a failure costs only the counts.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::base::whole_file;
use crate::state_partition::STARTS;
use crate::store::Resource;

/// The counts, with the last start that is among them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct StartCounts {
    /// Boots of a kernel.
    pub boots: u64,
    /// Generations of all these boots.
    pub generations: u64,
    /// Starts of a version because another one was given up.
    pub rollbacks: u64,
    /// The kernel's boot id.
    kernel: String,
    /// The number of the generation since the kernel's boot.
    generation: u64,
}

impl Resource for StartCounts {
    const NAMESPACE: &'static str = "runtime";
    const TYPE: &'static str = "StartCounts.instar.dev";
}

/// A start of a generation.
#[derive(Debug, Clone, Copy)]
pub struct Start<'a> {
    /// The kernel's boot id.
    pub kernel: &'a str,
    /// The number of the generation since the kernel's boot, from 1.
    pub generation: u64,
    /// Whether another version was given up for it.
    pub is_rollback: bool,
}

impl StartCounts {
    /// The id of the only instance.
    pub const ID: &'static str = "machine";

    /// Counts a start; returns whether it is a new one.
    pub fn count(&mut self, start: Start<'_>) -> bool {
        let is_same_kernel = self.kernel == start.kernel;
        let counted = match is_same_kernel {
            true => self.generation,
            false => 0,
        };
        if start.generation <= counted {
            return false;
        }
        self.boots = self.boots.saturating_add(u64::from(!is_same_kernel));
        let new = start.generation - counted;
        self.generations = self.generations.saturating_add(new);
        self.rollbacks = self.rollbacks.saturating_add(u64::from(start.is_rollback));
        self.kernel = start.kernel.to_owned();
        self.generation = start.generation;
        true
    }

    /// Counts a start in the record of this directory; returns the counts. Writes at most once. Counts from zero if the record cannot be
    /// read.
    ///
    /// # Errors
    /// The record cannot be written: the error, beside the counts that hold until machined ends.
    pub fn count_in(directory: &Path, start: Start<'_>) -> (Self, anyhow::Result<()>) {
        let file = directory.join(STARTS.name);
        let read = whole_file::read_json::<StartCounts>(&file).unwrap_or_else(|error| {
            tracing::warn!("the counts of boots begin anew: {error:#}");
            None
        });
        let mut counts = read.unwrap_or_default();
        let written = match counts.count(start) {
            true => whole_file::replace_json(&file, STARTS.mode, &counts),
            false => Ok(()),
        };
        (counts, written)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Starts of one machine in order: the start, and the counts after it.
    const LIFE: [(Start<'_>, [u64; 3]); 9] = [
        (start("a", 1, false), [1, 1, 0]),
        // machined has restarted.
        (start("a", 1, false), [1, 1, 0]),
        // An upgrade without a reboot.
        (start("a", 2, false), [1, 2, 0]),
        // The next version, number 3, never got this far.
        (start("a", 4, true), [1, 4, 1]),
        (start("a", 4, true), [1, 4, 1]),
        // A reboot.
        (start("b", 1, false), [2, 5, 1]),
        // A reboot whose first generation never got this far.
        (start("c", 2, true), [3, 7, 2]),
        // The boot loader has given a version up.
        (start("d", 1, true), [4, 8, 3]),
        (start("d", 2, false), [4, 9, 3]),
    ];

    const fn start(kernel: &str, generation: u64, is_rollback: bool) -> Start<'_> {
        Start {
            kernel,
            generation,
            is_rollback,
        }
    }

    #[test]
    fn each_start_counts_once_and_over_reboots() {
        let state = tempfile::tempdir().unwrap();
        for (start, expected) in LIFE {
            let (counts, written) = StartCounts::count_in(state.path(), start);
            written.unwrap();
            let told = [counts.boots, counts.generations, counts.rollbacks];
            assert_eq!(told, expected, "{start:?}");
        }
    }

    #[test]
    fn a_record_that_is_lost_or_cannot_be_written_costs_the_counts_alone() {
        let state = tempfile::tempdir().unwrap();
        std::fs::write(state.path().join(STARTS.name), "{").unwrap();
        let (counts, written) = StartCounts::count_in(state.path(), start("a", 3, false));
        written.unwrap();
        assert_eq!((counts.boots, counts.generations), (1, 3));
        let file = state.path().join(STARTS.name);
        let (counts, written) = StartCounts::count_in(&file, start("a", 3, false));
        assert!(written.is_err());
        assert_eq!(counts.boots, 1);
        // A later version may add fields, or drop some.
        std::fs::write(&file, r#"{"boots":7,"moon":true}"#).unwrap();
        let (counts, _) = StartCounts::count_in(state.path(), start("b", 1, false));
        assert_eq!((counts.boots, counts.generations), (8, 1));
    }
}
