//! Who follows the events from now on: talosctl does so over the connection on which it asks for what it means to see through.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tonic::Request;

/// Streams of each caller's connection; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Followers(Arc<Mutex<BTreeMap<String, usize>>>);

/// One stream, as long as this is kept.
#[derive(Debug)]
pub(super) struct Following {
    all: Followers,
    peer: String,
}

impl Followers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Counts a stream.
    pub(super) fn begin(&self, peer: &str) -> Following {
        *self.lock().entry(peer.to_owned()).or_default() += 1;
        Following {
            all: self.clone(),
            peer: peer.to_owned(),
        }
    }

    /// Whether this connection has one.
    pub(super) fn has(&self, peer: &str) -> bool {
        self.lock().contains_key(peer)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let mut counts = self.all.lock();
        if let Some(count) = counts.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.peer);
            }
        }
    }
}

/// Whether the call is talosctl's, by what that always says of itself.
pub(super) fn is_talosctl<T>(request: &Request<T>) -> bool {
    let runtime = request.metadata().get("runtime");
    runtime.is_some_and(|name| name == "Talos")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_connection_follows_as_long_as_one_of_its_streams_lasts() {
        let followers = Followers::default();
        let streams = [
            followers.begin("10.0.0.1:4000"),
            followers.begin("10.0.0.1:4000"),
        ];
        assert!(followers.has("10.0.0.1:4000") && !followers.has("10.0.0.1:4001"));
        let [first, second] = streams;
        drop(first);
        assert!(followers.has("10.0.0.1:4000"));
        drop(second);
        assert!(!followers.has("10.0.0.1:4000"));
        assert!(followers.lock().is_empty());
    }
}
