//! What a service looks like from outside: its state, its health and the newest things that happened to it.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use tokio::time::Instant;

use super::phase::Phase;

/// What the health check last said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Health {
    /// There is no check, or none has ended yet.
    Unknown,
    /// The last check passed.
    Healthy,
    /// The checks fail; the text says how.
    Unhealthy(String),
}

/// Something that happened to a service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// The state that it led to.
    pub phase: Phase,
    /// One line.
    pub message: String,
    /// When.
    pub at: SystemTime,
}

/// How many entries of the history are kept per service.
const KEPT: usize = 64;

/// A service as `ServiceList` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStatus {
    /// Where it is in its life.
    pub phase: Phase,
    /// What its health check says.
    pub health: Health,
    /// When its health last changed.
    pub health_changed: SystemTime,
    /// Oldest first.
    pub history: VecDeque<HistoryEntry>,
    /// Whether the service has a health check at all.
    pub checked: bool,
    /// It runs, and nobody looks after it: it is on its way into the next generation, or has just come into this one.
    pub left: bool,
    /// Its health is what an earlier machined knew; no check has confirmed it.
    pub recalled: bool,
    /// Since when its process runs, under an earlier machined too.
    pub(super) runs_since: Option<Instant>,
}

impl ServiceStatus {
    /// A service that nothing has happened to.
    pub fn new(checked: bool) -> Self {
        ServiceStatus {
            phase: Phase::Initialized,
            health: Health::Unknown,
            health_changed: SystemTime::now(),
            history: VecDeque::new(),
            checked,
            left: false,
            recalled: false,
            runs_since: None,
        }
    }

    /// Notes a step of its life.
    pub fn enter(&mut self, phase: Phase, message: String) {
        if phase == Phase::Running {
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

    /// Notes what the health check said; true if that is news.
    pub fn set_health(&mut self, health: Health) -> bool {
        let confirmed = std::mem::take(&mut self.recalled);
        if self.health == health {
            return confirmed;
        }
        self.health = health;
        self.health_changed = SystemTime::now();
        true
    }

    /// Whether it does what it is there for. What an earlier machined found does not count, nor does what nobody looks after.
    pub fn is_up(&self) -> bool {
        let is_healthy = self.health == Health::Healthy && !self.recalled;
        self.phase == Phase::Running && !self.left && (!self.checked || is_healthy)
    }

    /// How long its process has run.
    pub(super) fn has_run(&self) -> Duration {
        self.runs_since
            .map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether its check has not told anything yet.
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
