//! The state of one pinned image: a value without side effects. `sequences/image_pins.rs` asks registries, fetches, and reports events.
//!
//! ```text
//!                room for all, window open               whole, and the rules allow it
//!   Waiting ───────────────────────────────► Fetching ──────────────────────────────────► Verified ── on record ──► Pinned
//!    ▲ ▲ ▲ │                                   │  │                                          ▲                         │
//!    │ │ │ └──── it is in the store already ───┼──┼──────────────────────────────────────────┘                         │
//!    │ │ └────── the window closes ────────────┘  │                                                                    │
//!    │ └──────── the pause is over ── Failed ◄────┴── no room, no registry, refused: from all but Pinned               │
//!    └──────── its files are gone, or the rules for images have changed ───────────────────────────────────────────────┘
//! ```
//!
//! Nothing of it is kept: after a restart every image waits, and what is here already is found again.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use crate::base::back_off::BackOff;
use crate::values::Digest;

/// The pauses between two tries.
pub(super) const PAUSES: BackOff = BackOff {
    first: Duration::from_secs(30),
    longest: Duration::from_secs(3600),
};

/// How far a pinned image is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum State {
    /// Nothing is done for it at present.
    Waiting {
        /// Why.
        reason: Wait,
        /// The number of tries that failed before.
        failures: u32,
    },
    /// Its layers are fetched.
    Fetching {
        /// The digest of its manifest.
        digest: Digest,
        /// Bytes that are here.
        bytes: u64,
        /// Bytes in all.
        total: u64,
        /// The number of tries that failed before.
        failures: u32,
    },
    /// It is in the store, whole, and the machine's rules allow it.
    Verified {
        /// The digest of its manifest.
        digest: Digest,
    },
    /// The same, and it is on record: it stays.
    Pinned {
        /// The digest of its manifest.
        digest: Digest,
    },
    /// It is not here.
    Failed {
        /// Why.
        reason: String,
        /// The time of the next try.
        next: SystemTime,
        /// The number of tries that failed.
        failures: u32,
    },
}

/// Why an image waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Wait {
    /// Other images come first.
    Turn,
    /// Its window opens at this time.
    Window(SystemTime),
    /// Its window needs the time, and the clock has never been set.
    Clock,
}

/// A change in the course of a pinned image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Nothing can be done for it now.
    Waits(Wait),
    /// Its layers, of so many bytes, begin to come.
    Begun(Digest, u64),
    /// So many bytes of it are here.
    Arrived(u64),
    /// It is in the store, whole, and allowed.
    Here(Digest),
    /// It is on record.
    Recorded,
    /// Its files are gone, or it is to be judged by other rules.
    Gone,
    /// It cannot be had now: why.
    Failed(String),
}

impl Default for State {
    fn default() -> Self {
        State::Waiting {
            reason: Wait::Turn,
            failures: 0,
        }
    }
}

impl State {
    fn failures(&self) -> u32 {
        match self {
            State::Waiting { failures, .. }
            | State::Fetching { failures, .. }
            | State::Failed { failures, .. } => *failures,
            State::Verified { .. } | State::Pinned { .. } => 0,
        }
    }

    /// One word.
    pub fn word(&self) -> &'static str {
        match self {
            State::Waiting { .. } => "waiting",
            State::Fetching { .. } => "fetching",
            State::Verified { .. } => "verified",
            State::Pinned { .. } => "pinned",
            State::Failed { .. } => "failed",
        }
    }

    /// Its digest, once that is known.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            State::Fetching { digest, .. }
            | State::Verified { digest }
            | State::Pinned { digest } => Some(*digest),
            State::Waiting { .. } | State::Failed { .. } => None,
        }
    }
}

/// The state after an event. One that does not fit changes nothing.
pub fn after(state: State, event: Event, now: SystemTime) -> State {
    use State::{Fetching, Pinned, Verified, Waiting};
    let failures = state.failures();
    match (state, event) {
        // Nothing else ends a pin.
        (Pinned { .. }, Event::Gone) => State::default(),
        (pinned @ Pinned { .. }, _) => pinned,
        (Verified { digest }, Event::Recorded) => Pinned { digest },
        (_, Event::Waits(reason)) => Waiting { reason, failures },
        (Waiting { .. }, Event::Begun(digest, total)) => Fetching {
            digest,
            bytes: 0,
            total,
            failures,
        },
        (Fetching { digest, total, .. }, Event::Arrived(bytes)) => Fetching {
            digest,
            bytes: bytes.min(total),
            total,
            failures,
        },
        (_, Event::Here(digest)) => Verified { digest },
        (_, Event::Failed(reason)) => {
            let failures = failures.saturating_add(1);
            State::Failed {
                reason,
                next: now + PAUSES.after(failures),
                failures,
            }
        }
        (unchanged, _) => unchanged,
    }
}

/// The time until something is to be done for an image; `None`: only an event from outside changes anything.
pub fn time_until_due(state: &State, now: SystemTime) -> Option<Duration> {
    let until = |time: &SystemTime| time.duration_since(now).unwrap_or_default();
    match state {
        State::Pinned { .. } => None,
        State::Waiting {
            reason: Wait::Window(opens),
            ..
        } => Some(until(opens)),
        State::Failed { next, .. } => match until(next) {
            // The clock was set back.
            pause if pause > PAUSES.longest => Some(Duration::ZERO),
            pause => Some(pause),
        },
        _ => Some(Duration::ZERO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest() -> Digest {
        Digest::of(b"image")
    }

    fn waiting(reason: Wait, failures: u32) -> State {
        State::Waiting { reason, failures }
    }

    fn fetching(bytes: u64) -> State {
        State::Fetching {
            digest: digest(),
            bytes,
            total: 100,
            failures: 2,
        }
    }

    fn failed(failures: u32, pause: u64) -> State {
        State::Failed {
            reason: "no registry".to_owned(),
            next: SystemTime::UNIX_EPOCH + Duration::from_secs(pause),
            failures,
        }
    }

    #[test]
    fn an_image_is_fetched_verified_and_pinned() {
        let now = SystemTime::UNIX_EPOCH;
        let opens = now + Duration::from_secs(3600);
        let (verified, pinned) = (
            State::Verified { digest: digest() },
            State::Pinned { digest: digest() },
        );
        let failing = || Event::Failed("no registry".to_owned());
        let turn = |failures| waiting(Wait::Turn, failures);
        for (before, event, expected) in [
            (
                State::default(),
                Event::Waits(Wait::Clock),
                waiting(Wait::Clock, 0),
            ),
            (turn(2), Event::Begun(digest(), 100), fetching(0)),
            (fetching(0), Event::Arrived(70), fetching(70)),
            (fetching(0), Event::Arrived(700), fetching(100)),
            // The window closes.
            (
                fetching(70),
                Event::Waits(Wait::Window(opens)),
                waiting(Wait::Window(opens), 2),
            ),
            (fetching(100), Event::Here(digest()), verified.clone()),
            (turn(0), Event::Here(digest()), verified.clone()),
            (failed(1, 30), Event::Here(digest()), verified.clone()),
            (verified.clone(), Event::Recorded, pinned.clone()),
            (pinned.clone(), Event::Gone, State::default()),
            (pinned.clone(), Event::Waits(Wait::Turn), pinned.clone()),
            (pinned.clone(), failing(), pinned.clone()),
            (pinned.clone(), Event::Begun(digest(), 1), pinned.clone()),
            // Pauses double until the image is here.
            (State::default(), failing(), failed(1, 30)),
            (fetching(70), failing(), failed(3, 120)),
            (failed(1, 30), failing(), failed(2, 60)),
            (failed(40, 0), failing(), failed(41, 3600)),
            (failed(3, 9), Event::Waits(Wait::Turn), turn(3)),
            (verified.clone(), failing(), failed(1, 30)),
            // These do not fit.
            (State::default(), Event::Arrived(1), State::default()),
            (State::default(), Event::Recorded, State::default()),
            (failed(1, 30), Event::Begun(digest(), 1), failed(1, 30)),
            (fetching(7), Event::Gone, fetching(7)),
        ] {
            let told = format!("{before:?} {event:?}");
            assert_eq!(after(before, event, now), expected, "{told}");
        }
    }

    #[test]
    fn work_is_due_when_a_window_opens_and_a_pause_is_over() {
        let seconds = Duration::from_secs;
        let now = SystemTime::UNIX_EPOCH + seconds(10);
        let opens = |second| waiting(Wait::Window(SystemTime::UNIX_EPOCH + seconds(second)), 0);
        for (state, due) in [
            (State::default(), Some(0)),
            (fetching(3), Some(0)),
            (opens(90), Some(80)),
            (opens(5), Some(0)),
            (failed(1, 40), Some(30)),
            (failed(1, 4), Some(0)),
            (failed(1, 1_000_000), Some(0)),
            (State::Pinned { digest: digest() }, None),
        ] {
            let expected = due.map(seconds);
            assert_eq!(time_until_due(&state, now), expected, "{state:?}");
        }
    }
}
