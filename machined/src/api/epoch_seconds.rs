//! Moments in answers.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the seconds since 1970, as protobuf's int64; 0 for a moment before.
pub(super) fn epoch_seconds(at: SystemTime) -> i64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
