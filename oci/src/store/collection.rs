//! The plan of collecting blobs: facts in, lists out.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use crate::blobs::BlobFile;
use instar_values::Digest;

/// Time that a blob without an image stays: whoever receives an image blob by blob names it at the end.
const WITHOUT_IMAGE: Duration = Duration::from_secs(3600);
/// Time that a partial blob stays after the last byte: a transfer goes on within it, or not at all.
const PARTIAL: Duration = Duration::from_secs(24 * 3600);

/// How much is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Files that nothing needs and nothing is likely to need.
    Usual,
    /// Everything that nothing needs now: there is no room.
    LackOfRoom,
}

/// The facts about a store's blobs.
#[derive(Debug)]
pub(crate) struct BlobFacts {
    /// The whole blobs.
    pub(crate) blobs: Vec<BlobFile>,
    /// The partial blobs.
    pub(crate) partial: Vec<BlobFile>,
    /// The blobs of the images that are in the store.
    pub(crate) needed: BTreeSet<Digest>,
    /// The time.
    pub(crate) now: SystemTime,
    pub(crate) urgency: Urgency,
}

/// The blobs to remove. Those that a pull holds stay all the same.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Surplus {
    pub(crate) blobs: Vec<Digest>,
    pub(crate) partial: Vec<Digest>,
}

impl BlobFacts {
    pub(crate) fn surplus(&self) -> Surplus {
        let is_old = |file: &BlobFile, limit: Duration| match self.urgency {
            Urgency::LackOfRoom => true,
            // A time in the future is from a wrong clock.
            Urgency::Usual => match self.now.duration_since(file.written_at) {
                Ok(age) => age >= limit,
                Err(_) => true,
            },
        };
        let blobs = self
            .blobs
            .iter()
            .filter(|file| !self.needed.contains(&file.digest) && is_old(file, WITHOUT_IMAGE));
        let partial = self.partial.iter().filter(|file| is_old(file, PARTIAL));
        Surplus {
            blobs: blobs.map(|file| file.digest).collect(),
            partial: partial.map(|file| file.digest).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_image_needs_goes_when_it_is_old_or_room_is_scarce() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let digest = |number: u8| Digest::of(&[number]);
        let file = |number: u8, written_at| BlobFile {
            digest: digest(number),
            bytes: 1,
            written_at,
        };
        let ago = |minutes: u64| now - Duration::from_secs(60 * minutes);
        let facts = |urgency| BlobFacts {
            blobs: vec![
                file(1, ago(100_000)),
                file(2, ago(59)),
                file(3, ago(60)),
                file(4, now + Duration::from_secs(1)),
            ],
            partial: vec![file(5, ago(24 * 60 - 1)), file(6, ago(24 * 60))],
            needed: BTreeSet::from([digest(1)]),
            now,
            urgency,
        };
        let usual = Surplus {
            blobs: vec![digest(3), digest(4)],
            partial: vec![digest(6)],
        };
        let scarce = Surplus {
            blobs: vec![digest(2), digest(3), digest(4)],
            partial: vec![digest(5), digest(6)],
        };
        assert_eq!(facts(Urgency::Usual).surplus(), usual);
        assert_eq!(facts(Urgency::LackOfRoom).surplus(), scarce);
    }
}
