//! A service's state for clients: its phase, its health and its newest history.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use tokio::time::Instant;

use super::phase::Phase;

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
    /// How often it came up under this machined.
    pub starts: u64,
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
            starts: 0,
            runs_since: None,
        }
    }

    /// Enters a phase and adds it to the history.
    pub fn enter(&mut self, phase: Phase, message: String) {
        if phase == Phase::Running {
            self.starts += 1;
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
    fn a_history_is_bounded() {
        let mut status = ServiceStatus::new(false);
        for _ in 0..KEPT + 1 {
            status.enter(Phase::Waiting, String::new());
        }
        assert_eq!(status.history.len(), KEPT);
    }
}
