//! The room that pulls under way were promised, so that two of them do not plan with the same bytes.
//!
//! ```text
//! room of the disk and of the store's limit
//! ├─ promised    what each pull needs at least: the blobs to fetch, and its layers, as large as they are packed
//! └─ spare       the rest; whoever unpacks to more than that takes it piece by piece
//! ```
//!
//! Bytes that have come are on the disk, whose own numbers have them from then on: they leave the promise.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use instar_base::lock::Lock as _;

use super::room::{RoomFacts, RoomPlan};

/// The promises of a store; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Promises {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    pulls: BTreeMap<u64, Outstanding>,
    next: u64,
    /// Bytes of the disk that nobody was promised, with the reserve; as of the last plan.
    spare_of_disk: u64,
    /// Bytes of the capacity that images do not have and nobody was promised, with what is beyond the limit; as of the last plan.
    spare_of_capacity: u64,
}

/// The bytes of a promise that have not come yet.
#[derive(Debug, Clone, Copy)]
struct Outstanding {
    fetch: u64,
    unpack: u64,
    /// Bytes that the unpacking has taken beyond that.
    taken: u64,
}

impl State {
    fn promised(&self) -> u64 {
        let pulls = self.pulls.values();
        let each = pulls.map(|it| it.fetch.saturating_add(it.unpack));
        each.fold(0, u64::saturating_add)
    }
}

/// The making of a plan. No other one is made at the same time.
pub(super) struct Planning<'a> {
    promises: &'a Promises,
    state: MutexGuard<'a, State>,
}

impl Promises {
    /// Begins a plan.
    pub(super) fn plan(&self) -> Planning<'_> {
        Planning {
            promises: self,
            state: self.state.locked(),
        }
    }

    /// The bytes that are promised now.
    pub(super) fn bytes(&self) -> u64 {
        self.state.locked().promised()
    }
}

impl Planning<'_> {
    /// The bytes that are promised to other pulls.
    pub(super) fn bytes(&self) -> u64 {
        self.state.promised()
    }

    /// Promises what the plan for an image needs; `None` if it finds no room.
    pub(super) fn promise(mut self, facts: &RoomFacts) -> Option<Promise> {
        let fetch = match facts.plan() {
            RoomPlan::WithBlobs(_) => facts.missing,
            RoomPlan::WithoutBlobs(_) => 0,
            RoomPlan::None(_) => return None,
        };
        let state = &mut *self.state;
        let pull = state.next;
        state.next += 1;
        let outstanding = Outstanding {
            fetch,
            unpack: facts.packed,
            taken: 0,
        };
        state.pulls.insert(pull, outstanding);
        let own = fetch.saturating_add(facts.packed);
        let promised = own.saturating_add(facts.promised);
        state.spare_of_disk = facts.free.saturating_sub(promised);
        let unused = facts.capacity.saturating_sub(facts.used);
        state.spare_of_capacity = unused.saturating_sub(promised);
        Some(Promise {
            promises: self.promises.clone(),
            pull,
            packed: facts.packed,
            reserve: facts.reserve(),
            beyond_limit: facts.beyond_limit(),
        })
    }
}

/// The promise to one pull. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Promise {
    promises: Promises,
    pull: u64,
    packed: u64,
    /// Bytes of the disk that it has to leave.
    reserve: u64,
    /// Bytes of the capacity that it has to leave.
    beyond_limit: u64,
}

impl Promise {
    /// Notes that bytes of blobs have come.
    pub(crate) fn fetched(&self, bytes: u64) {
        let mut state = self.promises.state.locked();
        if let Some(own) = state.pulls.get_mut(&self.pull) {
            own.fetch = own.fetch.saturating_sub(bytes);
        }
    }

    /// Takes room for bytes that are about to be unpacked; returns whether there is room for them.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let mut state = self.promises.state.locked();
        let of_disk = state.spare_of_disk.saturating_sub(self.reserve);
        let of_limit = state.spare_of_capacity.saturating_sub(self.beyond_limit);
        let spare = of_disk.min(of_limit);
        let Some(own) = state.pulls.get_mut(&self.pull) else {
            return false;
        };
        let beyond = bytes.saturating_sub(own.unpack);
        if beyond > spare {
            return false;
        }
        own.unpack = own.unpack.saturating_sub(bytes);
        own.taken += beyond;
        state.spare_of_disk -= beyond;
        state.spare_of_capacity -= beyond;
        true
    }

    /// Gives back what was unpacked: it is removed, and unpacked once more.
    pub(crate) fn begin_again(&self) {
        let mut state = self.promises.state.locked();
        let Some(own) = state.pulls.get_mut(&self.pull) else {
            return;
        };
        own.unpack = self.packed;
        let taken = std::mem::take(&mut own.taken);
        state.spare_of_disk = state.spare_of_disk.saturating_add(taken);
        state.spare_of_capacity = state.spare_of_capacity.saturating_add(taken);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.promises.state.locked().pulls.remove(&self.pull);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A disk of 1000 bytes, all of them free: 100 are the reserve, and images may have 750.
    fn facts(missing: u64, packed: u64, promised: u64) -> RoomFacts {
        RoomFacts {
            capacity: 1000,
            free: 1000,
            used: 0,
            promised,
            missing,
            packed,
            for_upgrade: false,
        }
    }

    fn promised(promises: &Promises, missing: u64, packed: u64) -> Option<Promise> {
        let planning = promises.plan();
        let facts = facts(missing, packed, planning.bytes());
        planning.promise(&facts)
    }

    #[test]
    fn two_pulls_are_not_promised_the_same_room() {
        let promises = Promises::default();
        let first = promised(&promises, 200, 200).unwrap();
        assert_eq!(promises.bytes(), 400);
        // 350 are left: with blobs it would need 400.
        let second = promised(&promises, 200, 200).unwrap();
        assert_eq!(promises.bytes(), 600);
        assert!(promised(&promises, 200, 200).is_none());
        drop(first);
        assert_eq!(promises.bytes(), 200);
        drop(second);
        assert_eq!(promises.bytes(), 0);
        assert!(promised(&promises, 375, 375).is_some());
    }

    #[test]
    fn what_has_come_leaves_the_promise() {
        let promises = Promises::default();
        let pull = promised(&promises, 200, 200).unwrap();
        pull.fetched(150);
        assert!(pull.take(50));
        assert_eq!(promises.bytes(), 200);
        pull.begin_again();
        assert_eq!(promises.bytes(), 250);
        pull.fetched(1000);
        assert_eq!(promises.bytes(), 200);
    }

    #[test]
    fn the_rest_is_taken_piece_by_piece_and_only_once() {
        let promises = Promises::default();
        let first = promised(&promises, 100, 100).unwrap();
        let second = promised(&promises, 100, 100).unwrap();
        // Images may have 750, of which 350 are spare.
        assert!(first.take(100 + 250));
        assert!(!first.take(101));
        assert!(second.take(100 + 100));
        assert!(!second.take(1) && !first.take(1));
        first.begin_again();
        assert!(second.take(250) && !second.take(1));
    }

    #[test]
    fn the_reserve_is_taken_by_an_upgrade_alone() {
        let promises = Promises::default();
        let facts = |for_upgrade, promised| RoomFacts {
            free: 300,
            for_upgrade,
            ..facts(50, 50, promised)
        };
        let usual = promises.plan().promise(&facts(false, 0)).unwrap();
        let upgrade = promises.plan().promise(&facts(true, 100)).unwrap();
        assert!(!usual.take(51));
        assert!(usual.take(50) && !usual.take(1));
        assert!(upgrade.take(50 + 100) && !upgrade.take(1));
    }

    #[test]
    fn the_limit_binds_all_but_an_upgrade() {
        let promises = Promises::default();
        let facts = |for_upgrade, promised| RoomFacts {
            used: 500,
            for_upgrade,
            ..facts(50, 50, promised)
        };
        let usual = promises.plan().promise(&facts(false, 0)).unwrap();
        let upgrade = promises.plan().promise(&facts(true, 100)).unwrap();
        // Of 250 below the limit, both were promised 200.
        assert!(!usual.take(50 + 51));
        assert!(usual.take(50 + 50) && !usual.take(1));
        assert!(upgrade.take(50 + 250) && !upgrade.take(1));
    }
}
