//! A cache of verdicts: each holds for all states that are the same in the sectors that were read for it.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use crate::region::{Key, Touching};
use crate::states::DiskState;

/// The verdicts so far. Each verdict that was computed has a number of its own, its class.
#[derive(Debug)]
pub(crate) struct Memory<Verdict> {
    known: RwLock<Known<Verdict>>,
}

#[derive(Debug)]
struct Known<Verdict> {
    /// Verdicts by the writes that matter for them, and by the parts of those writes on the disk.
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

    /// Returns the verdict on a state, and its class, from the cache or from `find`, which also returns the writes that
    /// matter for it.
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
        // Another thread may have computed the same meanwhile.
        let entry = known.by_writes.entry(writes).or_default().entry(key);
        entry.or_insert((class, verdict)).clone()
    }

    /// Number of verdicts that were computed.
    pub(crate) fn classes(&self) -> usize {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_writes.values().map(HashMap::len).sum()
    }
}
