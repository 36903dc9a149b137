//! A service's state for clients: its phase, its health and its newest history.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use tokio::time::Instant;

use super::phase::Phase;
use super::restart::GOOD_RUN;

/// The result of the last health checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Health {
    /// There is no check, or none has finished yet.
    Unknown,
    /// The last check passed.
    Healthy,
    /// The checks fail; the text has the reason.
    Unhealthy(String),
}

/// An entry in the history of a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The phase that it led to.
    pub phase: Phase,
    /// The event, in one line.
    pub message: String,
    /// When.
    pub at: SystemTime,
}

/// Runs in a row that ended too early, from which on a service ends again and again.
const CRASH_LOOP: u32 = 3;
/// Entries of the history that are kept per service.
const KEPT: usize = 64;

/// A service as `ServiceList` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStatus {
    /// Its phase.
    pub phase: Phase,
    /// Its health.
    pub health: Health,
    /// When its health last changed.
    pub health_changed: SystemTime,
    /// Its history, oldest entry first.
    pub history: VecDeque<HistoryEntry>,
    /// Whether the service has a health check at all.
    pub checked: bool,
    /// It runs unattended: it is about to enter the next generation, or has just entered this one.
    pub left: bool,
    /// Its health is the one that an earlier machined recorded; no check has confirmed it.
    pub recalled: bool,
    /// It runs unattended, and the machine has said why it ends it.
    pub(super) ended_by_machine: bool,
    /// Whether its output is read although it runs unattended.
    pub(super) read: bool,
    /// How often this machined has started it.
    pub starts: u64,
    /// Runs in a row that ended too early, up to the last end.
    pub failures: u32,
    /// When the kernel last killed it for lack of memory.
    pub out_of_memory: Option<SystemTime>,
    /// When its process started, under an earlier machined too.
    pub(super) runs_since: Option<Instant>,
}

impl ServiceStatus {
    /// Returns the state of a service without history.
    pub fn new(checked: bool) -> Self {
        ServiceStatus {
            phase: Phase::Initialized,
            health: Health::Unknown,
            health_changed: SystemTime::now(),
            history: VecDeque::new(),
            checked,
            left: false,
            recalled: false,
            ended_by_machine: false,
            read: false,
            starts: 0,
            failures: 0,
            out_of_memory: None,
            runs_since: None,
        }
    }

    /// Enters a phase and adds it to the history.
    pub fn enter(&mut self, phase: Phase, message: String) {
        if phase == Phase::Running {
            // A process that is taken over is not started, and an announcement starts nothing.
            self.starts += u64::from(self.phase == Phase::Starting);
            self.runs_since.get_or_insert_with(Instant::now);
        } else {
            self.runs_since = None;
            self.set_health(Health::Unknown);
        }
        self.phase = phase;
        self.history.push_back(HistoryEntry {
            phase,
            message,
            at: SystemTime::now(),
        });
        if self.history.len() > KEPT {
            self.history.pop_front();
        }
    }

    /// Sets the result of the health check; returns whether it is new.
    pub fn set_health(&mut self, health: Health) -> bool {
        let confirmed = std::mem::take(&mut self.recalled);
        if self.health == health {
            return confirmed;
        }
        self.health = health;
        self.health_changed = SystemTime::now();
        true
    }

    /// Whether it works. A result that an earlier machined recorded does not count, nor does an unattended service.
    pub fn is_up(&self) -> bool {
        let is_healthy = self.health == Health::Healthy && !self.recalled;
        self.phase == Phase::Running && !self.left && (!self.checked || is_healthy)
    }

    /// Returns since when it ends again and again; None if it does not. A service that its operator has stopped does not.
    pub fn crash_loop_since(&self) -> Option<SystemTime> {
        if self.failures < CRASH_LOOP || self.phase.is_at_rest() || self.has_run() >= GOOD_RUN {
            return None;
        }
        let failed = self.history.iter().rev();
        let failed = failed.filter(|entry| entry.phase == Phase::Failed);
        let in_a_row = usize::try_from(self.failures).unwrap_or(usize::MAX);
        failed.take(in_a_row).last().map(|entry| entry.at)
    }

    /// Returns why it ended last.
    pub fn last_failure(&self) -> Option<&str> {
        let mut entries = self.history.iter().rev();
        let failed = entries.find(|entry| entry.phase == Phase::Failed);
        failed.map(|entry| entry.message.as_str())
    }

    /// Returns how long its process has run.
    pub(super) fn has_run(&self) -> Duration {
        self.runs_since
            .map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether its health check has no result yet.
    pub fn is_undecided(&self) -> bool {
        self.checked && (self.health == Health::Unknown || self.recalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checked_service_is_up_only_when_its_check_passes() {
        let mut status = ServiceStatus::new(true);
        status.enter(Phase::Running, "started".into());
        assert!(!status.is_up());
        assert!(status.set_health(Health::Healthy));
        assert!(status.is_up());
        status.enter(Phase::Failed, "exit 1".into());
        assert_eq!(status.health, Health::Unknown);
        assert!(!status.is_up());
    }

    #[test]
    fn a_service_ends_again_and_again_until_it_runs_well_or_is_stopped() {
        let mut status = ServiceStatus::new(false);
        for failures in 1..=4 {
            status.enter(Phase::Running, "started".into());
            status.enter(Phase::Failed, format!("exit {failures}"));
            status.failures = failures;
            assert_eq!(status.crash_loop_since().is_some(), failures >= 3);
        }
        let first = status.history.get(1).map(|entry| entry.at);
        assert_eq!(status.crash_loop_since(), first);
        assert_eq!(status.last_failure(), Some("exit 4"));
        status.enter(Phase::Running, "started".into());
        assert!(status.crash_loop_since().is_some());
        status.runs_since = Instant::now().checked_sub(GOOD_RUN);
        assert_eq!(status.crash_loop_since(), None);
        status.enter(Phase::Failed, "exit 5".into());
        status.enter(Phase::Finished, "stopped".into());
        assert_eq!(status.crash_loop_since(), None);
    }

    #[test]
    fn only_starts_count_as_starts() {
        let mut status = ServiceStatus::new(false);
        for (phase, message, starts) in [
            (Phase::Running, "lives on as process 7", 0),
            (Phase::Running, "taken over as process 7", 0),
            (Phase::Failed, "the process exited with code 1", 0),
            (Phase::Starting, "starting", 0),
            (Phase::Running, "started as process 8", 1),
            (Phase::Running, "ends with this upgrade", 1),
            (Phase::Finished, "stopped", 1),
            (Phase::Starting, "starting", 1),
            (Phase::Running, "started as process 9", 2),
        ] {
            status.enter(phase, message.to_owned());
            assert_eq!(status.starts, starts, "{message}");
        }
    }

    #[test]
    fn a_history_is_bounded() {
        let mut status = ServiceStatus::new(false);
        for _ in 0..KEPT + 1 {
            status.enter(Phase::Waiting, String::new());
        }
        assert_eq!(status.history.len(), KEPT);
    }
}
