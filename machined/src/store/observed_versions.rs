//! Versions and times of resources that are not stored: they are made when a client asks, and only a fingerprint of each is kept.
//!
//! A version counts the changes that a client has seen. The map is as large as the number of resources that clients have ever seen and that
//! still exist.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use super::Metadata;
use crate::base::lock::Lock as _;

/// The last observation of each resource, by type and id.
#[derive(Default)]
pub struct ObservedVersions(Mutex<BTreeMap<&'static str, BTreeMap<String, Seen>>>);

struct Seen {
    fingerprint: u64,
    version: u64,
    created: SystemTime,
    updated: SystemTime,
}

impl ObservedVersions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, BTreeMap<String, Seen>>> {
        self.0.locked()
    }

    /// Notes all resources of a type as they are now (id and content), and returns version and times of each, in the same order.
    pub fn note(
        &self,
        kind: &'static str,
        seen: &[(&str, &[u8])],
        now: SystemTime,
    ) -> Vec<Metadata> {
        let mut kinds = self.lock();
        let known = kinds.entry(kind).or_default();
        known.retain(|id, _| seen.iter().any(|(seen, _)| seen == id));
        seen.iter()
            .map(|(id, content)| {
                let fingerprint = fingerprint(content);
                let entry = known.entry((*id).to_owned()).or_insert(Seen {
                    fingerprint,
                    version: 1,
                    created: now,
                    updated: now,
                });
                if entry.fingerprint != fingerprint {
                    entry.fingerprint = fingerprint;
                    entry.version += 1;
                    entry.updated = now;
                }
                Metadata {
                    id: (*id).to_owned(),
                    version: entry.version,
                    created: entry.created,
                    updated: entry.updated,
                }
            })
            .collect()
    }
}

fn fingerprint(content: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn versions_count_what_was_seen_to_change() {
        let ledger = ObservedVersions::default();
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let versions = |seen: &[(&str, &[u8])], now| {
            let told = ledger.note("Lamps", seen, at(now));
            told.iter().map(|it| it.version).collect::<Vec<_>>()
        };
        assert_eq!(versions(&[("a", b"off"), ("b", b"off")], 1), [1, 1]);
        assert_eq!(versions(&[("a", b"on"), ("b", b"off")], 2), [2, 1]);
        let told = ledger.note("Lamps", &[("a", b"on")], at(3));
        assert_eq!((told[0].created, told[0].updated), (at(1), at(2)));
        // A resource that was removed and returned is a new one; other types are independent.
        assert_eq!(versions(&[("a", b"on"), ("b", b"on")], 4), [2, 1]);
        assert_eq!(ledger.note("Doors", &[("a", b"on")], at(5))[0].version, 1);
    }
}
