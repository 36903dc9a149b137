//! A quota of places for calls, limited three times: in all, for callers who are no administrators, and for each connection. So
//! one caller cannot take the places of others, and all of them together leave enough for an administrator.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::caller::Holder;
use crate::base::lock::Lock as _;
use crate::base::quota::{Permit, Quota};

/// The quota.
pub(super) struct Shares {
    quota: Quota,
    /// Places for each connection.
    each: usize,
    /// Connections that hold places or wait for them.
    connections: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
}

/// A place, which is given back when this value is dropped.
pub(super) struct Share {
    _own: Option<OwnedSemaphorePermit>,
    _place: Permit,
}

impl Shares {
    /// Creates a quota with `all` places: at most `others` of them for callers who are no administrators, and at most `each` for
    /// each connection.
    pub(super) fn new(all: usize, others: usize, each: usize) -> Self {
        Shares {
            quota: Quota::new(all, others),
            each,
            connections: Mutex::default(),
        }
    }

    /// Takes a place, if one is free for this holder.
    pub(super) fn take(&self, holder: &Holder) -> Option<Share> {
        let own = self.of(holder).try_acquire_owned().ok()?;
        Some(Share {
            _own: Some(own),
            _place: self.quota.try_acquire(holder.rank)?,
        })
    }

    /// Waits for the next place that is free for this holder.
    pub(super) async fn wait(&self, holder: &Holder) -> Share {
        // The semaphore is never closed.
        let own = self.of(holder).acquire_owned().await.ok();
        Share {
            _own: own,
            _place: self.quota.acquire(holder.rank).await,
        }
    }

    /// Returns the places of one connection. The entry is removed when no call holds or awaits one.
    fn of(&self, holder: &Holder) -> Arc<Semaphore> {
        let mut connections = self.connections.locked();
        if let Some(known) = connections.get(&holder.connection).and_then(Weak::upgrade) {
            return known;
        }
        connections.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(self.each));
        connections.insert(holder.connection.clone(), Arc::downgrade(&places));
        places
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::base::quota::Rank;
    use futures_util::FutureExt as _;

    fn holder(connection: &str, rank: Rank) -> Holder {
        Holder {
            connection: connection.into(),
            rank,
        }
    }

    #[tokio::test]
    async fn nobody_takes_what_is_for_others() {
        let shares = Shares::new(5, 4, 3);
        let [one, two] = ["one", "two"].map(|name| holder(name, Rank::Other));
        let mut held: Vec<_> = (0..3).map(|_| shares.take(&one).unwrap()).collect();
        assert!(shares.take(&one).is_none(), "more than for one connection");
        held.push(shares.take(&two).unwrap());
        assert!(shares.take(&two).is_none(), "more than for all others");
        assert!(shares.wait(&two).now_or_never().is_none());
        let administrator = holder("three", Rank::Administrator);
        held.push(shares.wait(&administrator).now_or_never().unwrap());
        assert!(shares.take(&administrator).is_none(), "more than there are");
        held.clear();
        held.push(shares.take(&two).unwrap());
        // Entries of connections without a place are removed.
        let connections = shares.connections.lock().unwrap();
        assert!(connections.len() <= 3, "{}", connections.len());
    }
}
