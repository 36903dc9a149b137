//! Verdicts that hold for more states than the one that they were found in: for all that are the same in what was read.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use crate::region::{Key, Touching};
use crate::states::DiskState;

/// What is known so far. A class is a number of its own for each verdict that was found.
#[derive(Debug)]
pub(crate) struct Memory<Verdict> {
    known: RwLock<Known<Verdict>>,
}

#[derive(Debug)]
struct Known<Verdict> {
    /// By the writes that matter, and what of them is on the disk.
    by_writes: HashMap<Touching, HashMap<Key, (usize, Verdict)>>,
    classes: usize,
}

impl<Verdict: Clone> Memory<Verdict> {
    pub(crate) fn new() -> Self {
        Self {
            known: RwLock::new(Known {
                by_writes: HashMap::new(),
                classes: 0,
            }),
        }
    }

    /// The verdict for a state and its class, from memory or found now: `find` gives it with the writes that matter for it.
    pub(crate) fn recall_or(
        &self,
        state: &DiskState,
        find: impl FnOnce() -> (Verdict, Touching),
    ) -> (usize, Verdict) {
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let found = known
                .by_writes
                .iter()
                .find_map(|(writes, verdicts)| verdicts.get(&writes.key(state)));
            if let Some(found) = found {
                return found.clone();
            }
        }
        let (verdict, writes) = find();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let class = known.classes;
        known.classes += 1;
        let key = writes.key(state);
        // Another thread may have found the same meanwhile.
        let entry = known.by_writes.entry(writes).or_default().entry(key);
        entry.or_insert((class, verdict)).clone()
    }

    /// How many verdicts were found.
    pub(crate) fn classes(&self) -> usize {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_writes.values().map(HashMap::len).sum()
    }
}
