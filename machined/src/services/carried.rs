//! The record of a service that lives through a change of generations, or through a restart of machined: written beside it when its run begins and
//! when it is left unattended, and read by the machined that adopts it. A record that cannot be read only costs the service's history.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::state::{Health, HistoryEntry, ServiceStatus};

/// Version of the format; a version of Instar that changes the format increments it.
const VERSION: u32 = 1;
/// Limit on a message, in bytes: a service may print a last line of any length.
const LONGEST_MESSAGE: usize = 512;
/// Limit on a record, in bytes: as many entries as a history has, each with the longest message, escaped as JSON.
pub(super) const LONGEST_RECORD: usize = 256 << 10;

/// The record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Carried {
    version: u32,
    health: Health,
    health_changed: SystemTime,
    /// The field's name in versions before and after this one.
    #[serde(rename = "happenings")]
    history: VecDeque<HistoryEntry>,
    /// Runs in a row that ended too early.
    pub(super) failures: u32,
    /// How long the service had run when this was written.
    ran: Duration,
    /// When this was written, from the kernel's start. Versions before do not note it.
    #[serde(default)]
    written: Option<Duration>,
    /// When the kernel last killed it for lack of memory. Versions before do not note it.
    #[serde(default)]
    out_of_memory: Option<SystemTime>,
    /// How many of its processes the kernel had killed for lack of memory when its run began. Versions before do not note it.
    #[serde(default)]
    pub(super) memory_kills: Option<u64>,
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl Carried {
    /// Makes the record of a running service.
    pub(super) fn of(status: &ServiceStatus, failures: u32, ran: Duration) -> Self {
        let mut history = status.history.clone();
        for entry in &mut history {
            shorten(&mut entry.message);
        }
        let mut health = status.health.clone();
        if let Health::Unhealthy(why) = &mut health {
            shorten(why);
        }
        Carried {
            version: VERSION,
            health,
            health_changed: status.health_changed,
            history,
            failures,
            ran,
            written: Some(since_boot()),
            out_of_memory: status.out_of_memory,
            memory_kills: None,
        }
    }

    /// Returns how long the service has run by now, with the time since this was written.
    pub(super) fn has_run(&self) -> Duration {
        let since = self.written.map(|at| since_boot().saturating_sub(at));
        self.ran.saturating_add(since.unwrap_or_default())
    }

    /// Adds how many of its processes the kernel had killed for lack of memory when its run began, if that is known.
    pub(super) fn with_memory_kills(self, memory_kills: Option<u64>) -> Self {
        Carried {
            memory_kills,
            ..self
        }
    }

    /// Returns the record's text.
    pub(super) fn to_text(&self) -> anyhow::Result<String> {
        serde_json::to_string(self).context("write down what is known of it")
    }

    /// Reads a record.
    ///
    /// # Errors
    /// It is not a record, or one of a version that this one does not know.
    pub(super) fn from_text(text: &[u8]) -> anyhow::Result<Self> {
        let Versioned { version } = serde_json::from_slice(text).context("it is no record")?;
        anyhow::ensure!(
            version == VERSION,
            "it is of the version {version}, this machined knows {VERSION}"
        );
        serde_json::from_slice(text).context("it is not whole")
    }

    /// Restores the state of a service that has no history yet.
    pub(super) fn recall(self, status: &mut ServiceStatus) {
        status.runs_since = Instant::now().checked_sub(self.has_run());
        status.history = self.history;
        status.failures = self.failures;
        status.out_of_memory = self.out_of_memory;
        if status.checked && self.health != Health::Unknown {
            status.health = self.health;
            status.health_changed = self.health_changed;
            status.recalled = true;
        }
    }
}

/// The time since the kernel's start, which no clock that is set changes.
fn since_boot() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(now.tv_sec.unsigned_abs(), nanoseconds)
}

fn shorten(text: &mut String) {
    if text.len() > LONGEST_MESSAGE {
        let mut end = LONGEST_MESSAGE;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::services::phase::Phase;

    fn status() -> ServiceStatus {
        let mut status = ServiceStatus::new(true);
        status.enter(Phase::Failed, "it fell".into());
        status.enter(Phase::Running, "started as process 7".into());
        status.set_health(Health::Healthy);
        status
    }

    #[test]
    fn the_past_goes_on_and_health_counts_when_it_is_confirmed() {
        let before = status();
        let text = Carried::of(&before, 3, Duration::from_secs(90)).to_text();
        let text = text.unwrap();
        assert!(text.contains(r#""happenings":[{"#), "{text}");
        let carried = Carried::from_text(text.as_bytes()).unwrap();
        assert_eq!(
            (carried.failures, carried.ran),
            (3, Duration::from_secs(90))
        );
        let mut after = ServiceStatus::new(true);
        carried.recall(&mut after);
        after.enter(Phase::Running, "taken over as process 7".into());
        assert_eq!(after.history.len(), 3);
        assert_eq!(after.history[0], before.history[0]);
        assert_eq!(after.health, Health::Healthy);
        assert_eq!(after.health_changed, before.health_changed);
        assert!(after.has_run() >= Duration::from_secs(90));
        // A new version needs a check of its own to prove that the service works.
        assert!(!after.is_up());
        assert!(after.set_health(Health::Healthy));
        assert!(after.is_up());
        assert_eq!(after.health_changed, before.health_changed);
        assert!(!after.set_health(Health::Healthy));
    }

    #[test]
    fn a_kill_for_lack_of_memory_is_not_forgotten() {
        let mut before = status();
        before.out_of_memory = Some(SystemTime::UNIX_EPOCH);
        let carried = Carried::of(&before, 0, Duration::ZERO).with_memory_kills(Some(2));
        let text = carried.to_text().unwrap();
        let read = Carried::from_text(text.as_bytes()).unwrap();
        assert_eq!(read.memory_kills, Some(2));
        let mut after = ServiceStatus::new(true);
        read.recall(&mut after);
        assert_eq!(after.out_of_memory, before.out_of_memory);

        // The record of a version that notes neither.
        let mut older: serde_json::Value = serde_json::from_str(&text).unwrap();
        for field in ["out-of-memory", "memory-kills"] {
            assert!(older.as_object_mut().unwrap().remove(field).is_some());
        }
        let read = Carried::from_text(older.to_string().as_bytes()).unwrap();
        assert_eq!((read.out_of_memory, read.memory_kills), (None, None));
    }

    /// One that is read after a machined has died may be days old.
    #[test]
    fn the_time_since_a_record_was_written_counts_as_run() {
        let ran = Duration::from_secs(5);
        let mut carried = Carried::of(&status(), 3, ran);
        carried.written = since_boot().checked_sub(Duration::from_secs(2));
        let has_run = carried.has_run();
        assert!((7..60).contains(&has_run.as_secs()), "{has_run:?}");
        // A version before says nothing of it, and a record cannot be of a time to come.
        for written in [None, Some(Duration::MAX)] {
            carried.written = written;
            assert_eq!(carried.has_run(), ran);
        }
    }

    /// The health of a check that the config no longer has is dropped.
    #[test]
    fn health_is_recalled_only_where_there_is_a_check() {
        let mut after = ServiceStatus::new(false);
        Carried::of(&status(), 0, Duration::ZERO).recall(&mut after);
        assert_eq!(after.health, Health::Unknown);
        after.enter(Phase::Running, "taken over".into());
        assert!(after.is_up());
    }

    #[test]
    fn a_record_is_bounded_whatever_was_said() {
        let mut status = ServiceStatus::new(true);
        let long = "\u{1}ü\"".repeat(4000);
        for _ in 0..200 {
            status.enter(Phase::Running, long.clone());
        }
        status.set_health(Health::Unhealthy(long));
        let text = Carried::of(&status, u32::MAX, Duration::MAX).to_text();
        let text = text.unwrap();
        assert!(text.len() <= LONGEST_RECORD, "{}", text.len());
        Carried::from_text(text.as_bytes()).unwrap();
    }

    #[test]
    fn others_are_refused_with_the_reason() {
        let whole = Carried::of(&status(), 0, Duration::ZERO).to_text().unwrap();
        let refused = |text: &str| {
            let error = Carried::from_text(text.as_bytes()).unwrap_err();
            error.to_string()
        };
        assert_eq!(refused(""), "it is no record");
        assert_eq!(refused(&whole[..whole.len() / 2]), "it is no record");
        assert_eq!(refused("{\"version\":1}"), "it is not whole");
        let newer = whole.replace("\"version\":1", "\"version\":2");
        assert_eq!(
            refused(&newer),
            "it is of the version 2, this machined knows 1"
        );
    }
}
