//! Places that callers of the API share: so many at a time for everybody, and only a part of them for those who are no administrators.
//! Whatever the others take, an administrator finds one.

use std::sync::Arc;

use instar_pki::Role;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Whose place it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// `os:admin`, or another node, which may call for one.
    Administrator,
    /// Everybody else.
    Other,
}

impl Rank {
    /// Of a caller with these roles.
    pub fn of(roles: &[Role]) -> Self {
        let may_all = [Role::Admin, Role::Impersonator];
        match roles.iter().any(|role| may_all.contains(role)) {
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
    /// So many in all, so many of them for those who are no administrators.
    pub fn new(all: usize, others: usize) -> Self {
        Quota {
            all: Arc::new(Semaphore::new(all)),
            others: Arc::new(Semaphore::new(others)),
        }
    }

    /// A place, if one is free.
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

    /// The next place that is free.
    pub async fn acquire(&self, rank: Rank) -> Permit {
        // The semaphores are never closed. Others wait for their part first, so that only few of them are in an administrator's way.
        let of_others = match rank {
            Rank::Administrator => None,
            Rank::Other => self.others.clone().acquire_owned().await.ok(),
        };
        Permit {
            _all: self.all.clone().acquire_owned().await.ok(),
            _of_others: of_others,
        }
    }

    /// How many are free for everybody.
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
        // Administrators may take all.
        let all = (0..3).map(|_| quota.try_acquire(Rank::Administrator).unwrap());
        assert_eq!(all.collect::<Vec<_>>().len(), 3);
    }

    #[test]
    fn rank_is_by_role() {
        assert_eq!(Rank::of(&[Role::Reader, Role::Admin]), Rank::Administrator);
        assert_eq!(Rank::of(&[Role::Impersonator]), Rank::Administrator);
        assert_eq!(Rank::of(&[Role::Operator]), Rank::Other);
        assert_eq!(Rank::of(&[]), Rank::Other);
    }
}
