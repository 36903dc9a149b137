//! A quota that callers of the API share: a number of places, and a part of them for callers who are no administrators. However many the
//! others take, an administrator finds a free place.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The rank of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// One who may do everything, or another node, which may call on behalf of such a caller.
    Administrator,
    /// All other callers.
    Other,
}

impl Rank {
    /// The rank of a caller who may do everything, or of one who may not.
    pub fn of(may_all: bool) -> Self {
        match may_all {
            true => Rank::Administrator,
            false => Rank::Other,
        }
    }
}

/// The places; clones share them.
#[derive(Debug, Clone)]
pub struct Quota {
    all: Arc<Semaphore>,
    others: Arc<Semaphore>,
}

/// A place, given back when this is dropped.
#[derive(Debug)]
pub struct Permit {
    _all: Option<OwnedSemaphorePermit>,
    _of_others: Option<OwnedSemaphorePermit>,
}

impl Quota {
    /// A quota of `all` places, of which `others` may be used by callers who are no administrators.
    pub fn new(all: usize, others: usize) -> Self {
        Quota {
            all: Arc::new(Semaphore::new(all)),
            others: Arc::new(Semaphore::new(others)),
        }
    }

    /// Takes a place if one is free.
    pub fn try_acquire(&self, rank: Rank) -> Option<Permit> {
        let of_others = match rank {
            Rank::Administrator => None,
            Rank::Other => Some(self.others.clone().try_acquire_owned().ok()?),
        };
        Some(Permit {
            _all: Some(self.all.clone().try_acquire_owned().ok()?),
            _of_others: of_others,
        })
    }

    /// Waits for a free place.
    pub async fn acquire(&self, rank: Rank) -> Permit {
        // The semaphores are never closed. Other callers wait for their own part first, so that few of them compete with administrators.
        let of_others = match rank {
            Rank::Administrator => None,
            Rank::Other => self.others.clone().acquire_owned().await.ok(),
        };
        Permit {
            _all: self.all.clone().acquire_owned().await.ok(),
            _of_others: of_others,
        }
    }

    /// Number of free places for all callers.
    pub fn free(&self) -> usize {
        self.all.available_permits()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures_util::FutureExt as _;

    #[tokio::test]
    async fn others_leave_places_to_administrators() {
        let quota = Quota::new(3, 2);
        let others: Vec<_> = (0..2)
            .map(|_| quota.try_acquire(Rank::Other).unwrap())
            .collect();
        assert!(quota.try_acquire(Rank::Other).is_none());
        assert!(quota.acquire(Rank::Other).now_or_never().is_none());
        let administrator = quota.acquire(Rank::Administrator).now_or_never().unwrap();
        assert!(quota.try_acquire(Rank::Administrator).is_none());
        drop(administrator);
        drop(others);
        assert_eq!(quota.free(), 3);
        // Administrators may take all places.
        let all = (0..3).map(|_| quota.try_acquire(Rank::Administrator).unwrap());
        assert_eq!(all.collect::<Vec<_>>().len(), 3);
    }
}
